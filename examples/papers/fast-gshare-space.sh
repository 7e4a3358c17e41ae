#!/usr/bin/env bash
# FaST-GShare, sections 5.2 and 5.3: throughput by SM share (figure 8) and of several pods on one GPU
# (figure 10), measured on the simulated GPU with the example saxpy. It needs the examples: make
# examples, or an installation.
. "$(dirname "$0")/lib.sh"

examples=$here/../../build/examples
[ -d "$examples" ] || examples=$(dirname "$(command -v gfaas-sim)")/../lib/gfaas/examples
export GFAAS_RUN_DIR=$work/run GFAAS_SIM_DIR=$work/sim

# The kernels stand for those of ResNet: a request takes 14 ms on the whole GPU (71.37 requests/s,
# section 5.3), and uses no more than 24% of the SMs (section 5.2), which are 20 of 80.
printf '%s\n' '.version 7.0' '.target sm_50' '.address_size 64' '// gfaas-sim: saxpy block_us=14000 op=saxpy_f32' \
	'.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n) { ret; }' >"$work/resnet.ptx"
printf '%s\n' 'name: resnet' "command: [\"$(realpath "$examples")/saxpy/saxpy\"]" 'contract: http' 'kind: inference' \
	"env: {SAXPY_PTX: $work/resnet.ptx, SAXPY_BLOCKS: \"20\", SAXPY_LAUNCHES: \"1\", SAXPY_STREAMS: \"32\"}" >"$work/resnet.yaml"

# measure TABLE SM CLIENTS TIME OPTION...: measures pods with these SM shares, in percent, and this number
# of clients for each. The rows are named by the share, and added to the table.
measure() {
	gfaas-profile run -q "$work/resnet.yaml" --gpu sim --sm "$2" --load "closed:$3" --quota 1 --duration "$4" --warmup 600ms --precision 0 \
		--goodput=false --park=false "${@:5}" --out-file "$work/profile"
	awk -F, 'NR == 1 { print "sm,rps,p95"; for (i = 1; i <= NF; i++) at[$i] = i; next } { print $at["sm_pct"] "," $at["throughput_rps"] "," $at["p95_ms"] }' \
		"$work/profile" >>"$work/$1"
}

# 32 clients in each case, so that each pod always has several requests on the GPU. Otherwise, on a busy
# machine, the GPU would be idle until a process notices that a request has ended. Runs whose
# latency matters, or that have few requests a second, are longer.
measure one 6,12 32 1500ms
measure one 24,50 32 1s
measure one 100 32 3s
for sm in 6 12 50 100; do
	result sm-$sm "100 * $(mean one $sm rps) / $(mean one 24 rps)"
done

# Figure 10. "Racing" pods have all SMs.
for run in 8:12:1s 4:24:1s 8:24:1s 8:100:3s; do
	IFS=: read -r pods sm time <<<"$run"
	measure pods$pods-$sm "$sm" $((32 / pods)) "$time" --instances "$pods"
	result pods$pods-$sm "$(mean pods$pods-$sm "$sm" rps) / $(mean one 100 rps)"
done
result p95-one "$(mean pods8-12 12 p95) / $(mean one 100 p95)"
result p95-eight "$(mean pods8-100 100 p95) / $(mean pods8-12 12 p95)"
finish
