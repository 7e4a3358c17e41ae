#!/bin/sh
# gpu-check.sh BUILD: on a machine with an NVIDIA driver, runs the programs of
# build/check and build/victim, and PyTorch where it is there, on the real
# device, bare and under the preload library, and prints one table. It needs
# nothing but the build folder and this one.
set -u

build=$(cd "$1" && pwd)
if ! [ -e /dev/nvidiactl ]; then
	echo "gpu-check: no NVIDIA driver here (/dev/nvidiactl is missing): nothing was checked" >&2
	exit 4
fi
work=$(mktemp -d /tmp/gfaas-check.XXXXXX)
export GFAAS_RUN_DIR=$work/run GFAAS_LIB_DIR=$build/lib
trap 'rm -rf "$work"' EXIT
failed=0

row() { printf '%-44s %s\n' "$1" "$2"; }
check() { # NAME COMMAND...
	name=$1
	shift
	if timeout 120 "$@" >"$work/out" 2>&1 </dev/null; then
		row "$name" "ok"
	elif [ $? -eq 77 ]; then
		row "$name" "not in this driver"
	else
		row "$name" "FAILED: $(tail -n 1 "$work/out")"
		failed=1
	fi
}
value() { # NAME COMMAND...
	name=$1
	shift
	row "$name" "$(timeout 120 "$@" 2>&1 </dev/null | tail -n 1)"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
for program in "$build"/check/sim_*; do
	[ -x "$program" ] && check "bare $(basename "$program")" "$program"
done
for way in link dlsym default next proc proc2 proc-of-proc; do
	for call in kernel kernel-thread extra ex ex-thread cooperative cooperative-thread grid grid-async; do
		check "$way $call" "$build/bin/gfaas" run -q -- "$build/check/route" $way $call 5
	done
done
value "launch, bare (ns)" "$build/check/cost" 500
value "launch, under the library (ns)" "$build/bin/gfaas" run -q -- "$build/check/cost" 500
value "memory under a limit of 1GiB" "$build/bin/gfaas" run -q --mem 1GiB -- "$build/check/memory" 64 1
value "alone, quota 0.3:0.8" "$build/bin/gfaas" run -q --quota 0.3:0.8 -- "$build/victim/saturate" 5
for quota in 0.2 0.3 0.5; do
	"$build/bin/gfaas" run -q --quota $quota -- "$build/victim/saturate" 10 >"$work/$quota" 2>&1 &
done
wait
for quota in 0.2 0.3 0.5; do
	row "one of three, quota $quota" "$(tail -n 1 "$work/$quota")"
done
torch=$(dirname "$0")/torch_loop.py
if python3 -c 'import torch' 2>/dev/null; then
	for size in 512 4096; do
		value "PyTorch $size, bare" python3 "$torch" 5 $size
		value "PyTorch $size, under the library" "$build/bin/gfaas" run -q -- python3 "$torch" 5 $size
		value "PyTorch $size, quota 0.3" "$build/bin/gfaas" run -q --quota 0.3 -- python3 "$torch" 5 $size
	done
	value "PyTorch, memory limit 8GiB" "$build/bin/gfaas" run -q --mem 8GiB -- python3 "$torch" 1
fi
exit $failed
