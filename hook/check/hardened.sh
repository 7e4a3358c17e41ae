#!/bin/sh
# hardened.sh FILE...: whether what runs in other people's processes was built with
# what makes a fault in it hard to use: a guard on the stack, checked copies, and
# tables of addresses that nobody can write to.
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
