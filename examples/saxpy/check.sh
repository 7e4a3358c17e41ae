#!/bin/sh
# check.sh [FUNCTION [COUNT]]: invokes the function COUNT times with different numbers and
# checks every answer on the CPU. It needs gfaas on PATH.
set -eu

function=${1:-saxpy}
count=${2:-200}
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)

i=1
while [ "$i" -le "$count" ]; do
	n=$((i * 37 % 5000 + 1))
	printf '{"n": %d, "a": %d.%d}' "$n" "$((i % 11 - 5))" "$((i % 10))" | gfaas invoke "$function"
	i=$((i + 1))
done | "$here/saxpy-check" "$count"
