#!/usr/bin/env bash
# KaaS, section 5.2: the first (cold) and the second (warm) request of a kernel task (figure 8), in
# gfaas-kerneld on the simulated GPU. Times of copies on the simulated GPU mean nothing, so the
# results are the copied bytes and the linked modules.
. "$(dirname "$0")/lib.sh"

export GFAAS_RUN_DIR=$work/run GFAAS_SIM_DIR=$work/sim

# Three layers with matrices of 1024 x 1024 floats, of which only the input changes. On the
# simulated GPU, the kernels take time and compute nothing.
printf '%s\n' .version\ 7.0 .target\ sm_50 .address_size\ 64 '// gfaas-sim: matmul block_us=1000' \
	'.visible .entry matmul(.param .u64 A, .param .u64 B, .param .u64 C) { ret; }' >"$work/matmul.ptx"
# multiply A B C: prints a launch of the kernel.
multiply() { printf '{"module":"m","name":"matmul","grid":[80,1,1],"block":[256,1,1],"args":[{"buffer":"%s"},{"buffer":"%s"},{"buffer":"%s"}]}' "$@"; }
{
	printf '{"version":1,"modules":{"m":{"file":"matmul.ptx"}},"buffers":{'
	for name in x w1 w2 w3; do printf '"%s":{"kind":"input","key":"%s"},' $name $name; done
	for name in h1 h2; do printf '"%s":{"kind":"temporary","size":4194304},' $name; done
	printf '"y":{"kind":"output","key":"y","size":4194304}},"kernels":[%s,%s,%s]}\n' \
		"$(multiply x w1 h1)" "$(multiply h1 w2 h2)" "$(multiply h2 w3 y)"
} >"$work/request.json"

gfaas-kerneld -q --gpu sim 2>"$work/daemon.log" &
daemon=$!
trap 'kill $daemon; wait $daemon || true; rm -rf "$work"' EXIT
for _ in $(seq 300); do
	gfaas-kerneld ls >/dev/null 2>&1 && break || sleep 0.1
done
head -c 4194304 /dev/zero >"$work/matrix"
for name in w1 w2 w3; do gfaas-kerneld put $name "$work/matrix"; done
for run in cold warm; do gfaas-kerneld run "$work/request.json" --in "x=$work/matrix" --out-file "$work/$run"; done

# value RUN FIELD: prints a number of an answer.
value() { awk -F'[:,]' -v name="\"$2\"" '$1 ~ name { print $2 }' "$work/$1"; }
result bytes "$(value cold bytes_up) / $(value warm bytes_up)"
result kernels "$(value cold gpu_ms) / $(value warm gpu_ms)"
for run in cold warm; do result linked-$run "$(value $run modules_linked)"; done
result found "$(value warm gpu_hits)"
finish
