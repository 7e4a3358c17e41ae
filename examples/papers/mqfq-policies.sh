#!/usr/bin/env bash
# MQFQ-Sticky, section 6.2 and the end of section 6.4: mean latency by policy and by D (figure
# 6a), utilization (6c), variance of latency (6b), and the value of single mechanisms.
. "$(dirname "$0")/lib.sh"

options="--set correct=false"
workload base mqfq
compare d1 base --pool 16 --policy fcfs,fcfs-naive,batch,sjf,eevdf,mqfq,mqfq-sticky $options
for d in 1 2 3; do
	compare pool32-d$d base --pool 32 --concurrency $d --policy fcfs,batch,sjf,mqfq-sticky $options
done

# d1 POLICY: prints the mean latency with D = 1 and a pool of 16, in milliseconds.
d1() { mean d1 "$1" mean_ms; }
sticky=$(d1 mqfq-sticky)
result fcfs "$(d1 fcfs) / 1000"
result sticky "$sticky / 1000"
result fcfs-ratio "$(d1 fcfs) / $sticky"
result naive-ratio "$(d1 fcfs-naive) / $sticky"
result sjf-ratio "$(d1 sjf) / $sticky"
result batch-ratio "$(d1 batch) / $sticky"
result eevdf-ratio "$(d1 eevdf) / $sticky"
result mqfq-ratio "$(d1 mqfq) / $sticky"
for d in 1 2 3; do
	result fcfs-ratio-d$d "$(mean pool32-d$d fcfs mean_ms) / $(mean pool32-d$d mqfq-sticky mean_ms)"
done
for policy in mqfq-sticky sjf; do
	result $policy-d2 "100 * ($(mean pool32-d2 $policy mean_ms) / $(mean pool32-d1 $policy mean_ms) - 1)"
done
result d3 "100 * ($(mean pool32-d3 mqfq-sticky mean_ms) / $(mean pool32-d2 mqfq-sticky mean_ms) - 1)"

# The fraction of the time of one GPU that the trace would need if no start were cold.
for seed in $seeds; do
	awk -F, 'NR == FNR { warm[$1] = $2; next } FNR > 1 { sum += warm[$1]; last = $2 } END { print "load," sum / last }' \
		"$work/base-$seed.costs" "$work/base-$seed.trace"
done >"$work/load.rows"
(echo name,load && cat "$work/load.rows") >"$work/load"
result utilization "100 * $(mean load load load)"

# Variances in s²: within a function, the mean over the functions; between functions, the variance
# of their mean latencies.
for policy in fcfs mqfq-sticky; do
	for seed in $seeds; do
		gfaas-sim queue -q --functions "$work/base-$seed.costs" --trace "$work/base-$seed.trace" --pool 16 --policy $policy $options -o csv |
			awk -F, 'NR > 1 { n++; within += $5; mean += $3; square += $3 * $3 }
				END { printf "variance,%.9g,%.9g\n", within / n / 1e6, (square / n - (mean / n) ^ 2) / 1e6 }'
	done >"$work/$policy.rows"
	(echo name,within,between && cat "$work/$policy.rows") >"$work/variance-$policy"
done
for kind in within between; do
	result $kind "$(mean variance-fcfs variance $kind) / $(mean variance-mqfq-sticky variance $kind)"
done
finish
