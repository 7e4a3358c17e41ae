#!/bin/sh
# library.sh LIB: checks the built preload library: it does not need libcuda and needs at
# most glibc 2.17, it exports only wrappers, a shell runs under it, and launches have no
# stack protector, which would slow down each of them.
set -eu
lib=$1
fail() { echo "$lib: $*" >&2; exit 1; }

objdump -p "$lib" | grep NEEDED | grep -q libcuda && fail "needs libcuda: no program could load it where there is no driver"
newest=$(objdump -T "$lib" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
[ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -n 1)" = 2.17 ] || fail "needs glibc $newest; 2.17 must do"
alien=$(nm -D --defined-only "$lib" | awk '{print $3}' | grep -vE '^(cu[A-Z].*|nvmlDeviceGet(MemoryInfo|[A-Za-z]*RunningProcess|Process(es)?Utilization|Accounting(Pids|Stats)).*|dlsym|dlm?open|f?exec(ve|v|vp|vpe|l|le|lp|veat)|(posix|pidfd)_spawnp?|system|popen)$' || true)
[ -z "$alien" ] || fail "exports $alien"
[ "$(LD_PRELOAD=$lib sh -c 'echo works')" = works ] || fail "a shell does not run under it"
for name in cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx cuMemcpyHtoDAsync_v2; do for launch in $name gf_$name; do
	code=$(objdump -d --no-show-raw-insn --disassemble="$launch" "$lib")
	echo "$code" | grep -q "<$launch>:" || fail "has no $launch"
	if echo "$code" | grep -qE 'stack_chk|%fs:0x28'; then fail "$launch has a guard on the stack: nothing on it wants one, and every launch would pay"; fi
done; done
echo "$lib: ok (glibc $newest)"
