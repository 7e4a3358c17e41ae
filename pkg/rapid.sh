#!/bin/sh
# rapid.sh FLAG PROGRAM ARG...: runs a test program of go test -exec, with the
# flag if it has property tests; the others do not know it. GOGC is for what
# compiled it.
unset GOGC
flag=$1 program=$2
shift 2
if grep -q 'rapid\.seed' "$program"; then
  set -- "$@" "$flag"
fi
exec "$program" "$@"
