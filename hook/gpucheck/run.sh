#!/bin/sh
# run.sh [--sim] [SECTION...]: checks gfaas on this machine's NVIDIA GPU and prints one
# table. It needs nothing but the folder it is in, which `make gpu-check` fills:
# no Go, no compiler, no Docker, no network. It takes about eight minutes, a
# section at a time less:
#
#   driver   the conformance programs of the simulated driver, on this one
#   routes   every way to the GPU is gated, and its result right
#   cost     what the preload library adds, a lease held
#   memory   the memory limit
#   shares   two and three programs that each want the whole GPU
#   mps      SM shares: throughput against percentage, and side by side
#   torch    PyTorch: eager, CUDA graphs, torch.compile; what it loses, quotas
#
# --sim runs it on the simulated GPU, to check this script; its figures say
# nothing about a GPU. Exit 1: something failed. Exit 4: no NVIDIA driver.
set -u

here=$(cd "$(dirname "$0")" && pwd)
gpu=0
if [ "${1-}" = --sim ]; then
	gpu=sim
	shift
	export LD_LIBRARY_PATH="$here/lib/sim"
fi
sections=${*:-driver routes cost memory shares mps torch}
if [ $gpu = 0 ] && ! [ -e /dev/nvidiactl ]; then
	echo "gpu-check: no NVIDIA driver here (/dev/nvidiactl is missing): nothing was checked" >&2
	echo "gpu-check: copy $here to a machine that has one and start run.sh there" >&2
	exit 4
fi
work=$(mktemp -d /tmp/gfaas-check.XXXXXX)
export GFAAS_RUN_DIR=$work/run GFAAS_LIB_DIR=$here/lib GFAAS_STATE=$work/state.db
trap 'rm -rf "$work"' EXIT
failed=0

# A program and not a function, so that timeout can run it.
slice=$work/slice
printf '#!/bin/sh\nexec "%s/bin/gfaas" run -q --gpu %s "$@"\n' "$here" $gpu >"$slice"
chmod +x "$slice"

row() { printf '%-48s %s\n' "$1" "$2"; }

# check NAME COMMAND...: ok, or the last line it said.
check() {
	name=$1
	shift
	timeout 120 "$@" >"$work/out" 2>&1 </dev/null
	case $? in
	0) row "$name" "ok" ;;
	77) row "$name" "not in this driver" ;;
	*)
		row "$name" "FAILED: $(tail -n 1 "$work/out")"
		failed=1
		;;
	esac
}

# last COMMAND...: the last line it prints.
last() { timeout 120 "$@" 2>"$work/err" </dev/null | tail -n 1; }

# field NAME: of the JSON object on standard input.
field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p"; }

# rate: kernels a second, of what saturate printed.
rate() { sed 's/[{}"]//g; s/[:,]/ /g' | awk '{print $2 / $4}'; }

median() { sort -g | awk '{v[NR] = $1} END {print NR ? v[int((NR + 1) / 2)] : "none"}'; }

ratio() { awk -v a="$1" -v b="$2" 'BEGIN {if (b + 0 > 0) printf "%.4f", a / b; else print "none"}'; }

driver() {
	for program in "$here"/check/sim_*; do
		check "driver: $(basename "$program")" "$program"
	done
}

routes() {
	for way in link dlsym default next proc proc2 proc-of-proc; do
		timeout 120 "$slice" -- "$here/check/route" $way all 5 >"$work/out" 2>&1 </dev/null
		status=$?
		absent=$(sed -n 's/^absent//p' "$work/out" | tr -d '\n')
		row "routes: $way" "$(grep -c '^ok' "$work/out") ok${absent:+; not in this driver:$absent}"
		if [ $status -ne 0 ]; then
			row "routes: $way" "FAILED: $(tail -n 1 "$work/out")"
			failed=1
		fi
	done
}

# The two take turns, and the median of each counts.
cost() {
	for i in 1 2 3 4 5; do
		last "$here/check/cost" 300 >>"$work/bare"
		last "$slice" -- "$here/check/cost" 300 >>"$work/hooked"
	done
	row "cost: ns a launch, bare and under the library" "$(median <"$work/bare"), $(median <"$work/hooked")"
	for us in 10 1000; do
		: >"$work/bare" && : >"$work/hooked"
		for i in 1 2 3; do
			last "$here/victim/saturate" 3 $us 80 0 | rate >>"$work/bare"
			last "$slice" -- "$here/victim/saturate" 3 $us 80 0 | rate >>"$work/hooked"
		done
		row "cost: throughput kept, kernels of $us us" "$(ratio "$(median <"$work/hooked")" "$(median <"$work/bare")")"
	done
}

memory() {
	row "memory: of --mem 1GiB, 64 MiB at a time" "$(last "$slice" --mem 1GiB -- "$here/check/memory" 64 1)"
	check "memory: every kind, to the limit and no further" "$slice" --mem 1GiB -- "$here/check/kinds" fill
	check "memory: all kinds at once, 2 processes" "$slice" --mem 1GiB -- "$here/check/kinds" race 2 4
	check "memory: how long it counts" "$slice" --mem 1GiB -- "$here/check/lifetimes"
	check "memory: oversubscribed, out and in again" "$slice" --oversubscribe --mem 1GiB -- "$here/check/swap" 64 2
}

# together SECONDS QUOTA...: all at once; the part of all kernels that each ran.
together() {
	seconds=$1
	shift
	for quota in "$@"; do
		last "$slice" --quota "$quota" -- "$here/victim/saturate" "$seconds" 100 80 0 | field launches >"$work/share.$quota" &
	done
	wait
	for quota in "$@"; do cat "$work/share.$quota"; done |
		awk '{v[NR] = $1; sum += $1} END {for (i = 1; i <= NR; i++) printf("%s%.4f", (i > 1 ? ", " : ""), (sum ? v[i] / sum : 0))}'
}

shares() {
	row "shares: alone, quota 0.3:0.8" "$(last "$slice" --quota 0.3:0.8 -- "$here/victim/saturate" 5 100 80 0 | field share)"
	row "shares: 0.1 and 0.9" "$(together 10 0.1 0.9)"
	row "shares: 0.2, 0.3 and 0.5" "$(together 10 0.2 0.3 0.5)"
	row "shares: graphs of 50 kernels, quota 0.3" "$(last "$slice" --quota 0.3 -- "$here/victim/saturate" 5 100 80 0 50 | field share)"
}

mps() {
	if ! command -v nvidia-cuda-mps-control >/dev/null; then
		row "mps" "nvidia-cuda-mps-control is not installed"
		return
	fi
	[ -x "$here/check/mps.test" ] && check "mps: control daemon suite" "$here/check/mps.test" -test.run Real
	# Blocks that fill an SM each: time is inverse to the SMs there are.
	for sm in 100 50 24 12; do
		row "mps: ms a kernel of 1320 blocks at $sm%" "$(last "$slice" --sm $sm -- "$here/victim/saturate" 3 100 1320 8 | field kernel_ms)"
	done
	for pair in 24 60; do
		for n in 1 2; do
			last "$slice" --sm $pair --name "pair-$n" -- "$here/victim/saturate" 5 100 80 0 | field share >"$work/pair.$n" &
		done
		wait
		row "mps: two at $pair%, time of kernels per time" "$(cat "$work/pair.1"), $(cat "$work/pair.2")"
	done
}

torch() {
	if ! python3 -c 'import torch' 2>/dev/null; then
		row "torch" "PyTorch is not installed"
		return
	fi
	loop="$here/torch_loop.py"
	for mode in eager graph compile; do
		for size in 512 4096; do
			: >"$work/bare" && : >"$work/hooked"
			for i in 1 2 3; do
				last python3 "$loop" 3 $size $mode >>"$work/bare"
				last "$slice" -- python3 "$loop" 3 $size $mode >>"$work/hooked"
			done
			bare=$(median <"$work/bare")
			row "torch: $mode $size, products a second, bare" "$bare"
			row "torch: $mode $size, kept under the library" "$(ratio "$(median <"$work/hooked")" "$bare")"
			row "torch: $mode $size, at quota 0.3" "$(ratio "$(last "$slice" --quota 0.3 -- python3 "$loop" 4 $size $mode)" "$bare")"
		done
	done
	row "torch: MiB it sees of --mem 8GiB" "$(last "$slice" --mem 8GiB -- python3 "$loop" 1 512 total)"
	row "torch: --mem 2GiB, expandable segments" \
		"$(last env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$slice" --mem 2GiB -- python3 "$loop" 1 512 fill)"
	row "torch: --mem 2GiB, cudaMallocAsync" \
		"$(last env PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync "$slice" --mem 2GiB -- python3 "$loop" 1 512 fill)"
}

if [ $gpu = sim ]; then
	echo "on the simulated GPU: these are not a GPU's figures"
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
date -u +'%Y-%m-%d, %H:%M UTC'
for section in $sections; do
	case $section in
	driver | routes | cost | memory | shares | mps | torch) $section ;;
	*)
		echo "gpu-check: no section $section" >&2
		exit 2
		;;
	esac
done
exit $failed
