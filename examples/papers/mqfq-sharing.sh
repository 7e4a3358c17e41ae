#!/usr/bin/env bash
# MQFQ-Sticky, section 6.3: MIG and MPS, with and without MQFQ-Sticky (figure 7a), and the time of
# invocations on a MIG slice (7b).
. "$(dirname "$0")/lib.sh"

# Two invocations at once take 50% longer each if they share the time of a GPU, and 25% longer under
# MPS, which runs their kernels at the same time. Two MIG slices are two GPUs on which nothing is shared;
# there, FFT takes 73% longer, and the others 9%. These are the ratios of the functions whisper and bert
# between 50% and 100% of the SMs in the sample profile (testdata/samples). All these figures are ours.
options="--set correct=false"
shared="--concurrency 2 --pool 32 --set interference=0.5"
mps="--concurrency 2 --pool 32 --set interference=0.25"
mig="--gpus 2 --concurrency 1 --pool 16"

# service TABLE WORKLOAD OPTION...: collects the mean time in service of FFT and of the other functions.
service() {
	local table=$1 of=$2 seed
	shift 2
	for seed in $seeds; do
		gfaas-sim queue -q --functions "$work/$of-$seed.costs" --trace "$work/$of-$seed.trace" --policy mqfq-sticky $options "$@" -o csv |
			awk -F, 'NR > 1 { kind = /fft/ ? "fft" : "other"; n[kind] += $2; sum[kind] += $2 * $6 } END { print "kind,ms"; for (k in n) print k "," sum[k] / n[k] }'
	done >"$work/$table"
}

for trace in 0:1.12:37.9 4:2.69:77.1 6:2.55:79.9; do
	IFS=: read -r id rate utilization <<<"$trace"
	functions=24
	[ $id != 4 ] || functions=19
	workload whole$id mqfq --functions $functions --rate "$rate" --utilization "$(awk "BEGIN { print $utilization / 100 }")"
	for seed in $seeds; do
		awk -F, -v OFS=, 'NR > 1 { factor = $1 ~ /fft/ ? 95 / 55 : 24 / 22; $3 += (factor - 1) * $2; $2 *= factor } { print }' \
			"$work/whole$id-$seed.costs" >"$work/slices$id-$seed.costs"
		cp "$work/whole$id-$seed.trace" "$work/slices$id-$seed.trace"
	done
	compare shared$id whole$id --policy mqfq-sticky $options $shared
	compare mps$id whole$id --policy fcfs,mqfq-sticky $options $mps
	compare mig$id slices$id --policy mqfq-sticky $options $mig
	alone=$(mean shared$id mqfq-sticky mean_ms)
	result mig$id "$(mean mig$id mqfq-sticky mean_ms) / $alone"
	result mps$id "$(mean mps$id fcfs mean_ms) / $alone"
	result both$id "100 * ($(mean mps$id mqfq-sticky mean_ms) / $alone - 1)"
done
service service-whole whole4 $shared
service service-mig slices4 $mig
for kind in fft other; do
	result time-$kind "$(mean service-mig $kind ms) / $(mean service-whole $kind ms)"
done
finish
