#!/bin/sh
# rapid.sh FLAG PROGRAM ARG...: runs a test program of go test -exec, with the
# flag if it has property tests; the others do not know it. GOGC is for what
# compiled it; the tests of policies and simulations, which hold little memory and start
# no daemon, take a quarter less time where garbage is collected less often.
unset GOGC
case $PWD in */pkg/policy | */pkg/policy/* | */pkg/sim | */pkg/sim/*) export GOGC=400 ;; esac
flag=$1 program=$2
shift 2
if grep -q 'rapid\.seed' "$program"; then
  set -- "$@" "$flag"
fi
exec "$program" "$@"
