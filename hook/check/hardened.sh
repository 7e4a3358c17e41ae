#!/bin/sh
# hardened.sh FILE...: checks that libraries and programs are hardened: they are
# position-independent, their relocations are resolved at load time and then read-only, the
# stack is not executable, and they use the stack protector and checked copies
# (_FORTIFY_SOURCE).
set -eu
for file in "$@"; do
	fail() { echo "$file: $*" >&2; exit 1; }
	head=$(readelf -hldW "$file")
	symbols=$(objdump -T "$file")
	echo "$head" | grep -q 'Type: *DYN' || fail "is at a fixed address"
	echo "$head" | grep -q GNU_RELRO || fail "has no table that is read-only after loading (relro)"
	echo "$head" | grep -qE 'BIND_NOW|Flags:.* NOW' || fail "finds functions when they are called (-z now), in a table that can be written to"
	echo "$head" | grep 'GNU_STACK' | grep -q 'RWE' && fail "has a stack that can be executed"
	echo "$symbols" | grep -q '__stack_chk_fail' || fail "has no guard on the stack (-fstack-protector-strong)"
	echo "$symbols" | grep -q '__[a-z]*_chk' || fail "does not check what it copies (_FORTIFY_SOURCE)"
	echo "$file: ok (stack guard, fortify, relro, now)"
done
