#!/bin/sh
# rapid.sh FLAG PROGRAM ARG...: runs a test program for go test -exec. It adds FLAG if the
# program contains property tests, which define that flag. It unsets GOGC, which is meant for
# the compiler, except for tests of policies and simulations: they use little memory and
# start no daemon, and take a quarter less time with a higher GOGC.
unset GOGC
case $PWD in */pkg/policy | */pkg/policy/* | */pkg/sim | */pkg/sim/*) export GOGC=400 ;; esac
flag=$1 program=$2
shift 2
if grep -q 'rapid\.seed' "$program"; then
  set -- "$@" "$flag"
fi
exec "$program" "$@"
