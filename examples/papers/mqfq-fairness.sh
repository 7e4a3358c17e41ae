#!/usr/bin/env bash
# MQFQ-Sticky, section 6.1: service of four functions (figure 5a), the largest gap (5b) and the
# latency by load (5c), and the traces of table 3.
. "$(dirname "$0")/lib.sh"

# Figure 5a: four functions of 1 s, two with 1.2 and two with 0.6 requests per second; the
# second two begin after 5 minutes. Together they exceed the capacity of 2 per second. The result is the service of each kind in the minutes 6 to 10. The paper
# prints neither the duration nor the rates.
printf '%s\n' function,warm_ms,cold_ms a,1000,1000 b,1000,1000 c,1000,1000 d,1000,1000 >"$work/four.costs"
{
	echo function,invoke_time_ms
	gfaas-sim generate trace --functions 2 --zipf 0 --rate 2.4 --duration 10m --seed 1 | awk -F, 'NR > 1 { print ($1 == "f0" ? "a" : "b") "," $2 }'
	gfaas-sim generate trace --functions 2 --zipf 0 --rate 1.2 --duration 5m --seed 2 | awk -F, 'NR > 1 { print ($1 == "f0" ? "c" : "d") "," $2 + 300000 }'
} >"$work/four.trace"
for policy in fcfs mqfq-sticky; do
	gfaas-sim queue -q --functions "$work/four.costs" --trace "$work/four.trace" --concurrency 2 --pool 32 --policy $policy --trace-out "$work/four.jsonl" -o csv >"$work/four.rows"
	result share-$policy "$(awk -F'[:,]' '
		$2 >= 360000 && $2 < 600000 { ran[$6]++ }
		END { print (ran["\"a\""] + ran["\"b\""]) / (ran["\"c\""] + ran["\"d\""]) }' "$work/four.jsonl")"
done

# Figures 5b and 5c: 24 functions. The load is the rate of the arrivals times the mean duration.
options="--set correct=false"
for load in 0.5 0.7 0.9 1.1; do
	workload load$load mqfq --functions 24 --rate "$(awk "BEGIN { print 2.69 * $load / 0.7 }")" --utilization $load
	compare load$load load$load --concurrency 2 --pool 32 --policy fcfs,mqfq-sticky $options
	result load$load "$(mean load$load fcfs mean_ms) / $(mean load$load mqfq-sticky mean_ms)"
done
result gap "100 * $(mean load0.7 mqfq-sticky max_gap_ms) / $(mean load0.7 mqfq-sticky bound_ms)"
result bound "$(mean load0.7 mqfq-sticky bound_ms) / 1000"

# Table 3: rates and utilizations of nine traces. Trace 4 has 19 functions (section 6.2).
id=0
for trace in 1.12:37.9 1.69:44.3 1.94:48.8 4.26:67.0 2.69:77.1 2.57:43.2 2.55:79.9 1.79:44.9 1.12:54.2; do
	functions=24
	[ $id != 4 ] || functions=19
	workload trace$id mqfq --functions $functions --rate "${trace%:*}" --utilization "$(awk "BEGIN { print ${trace#*:} / 100 }")"
	compare trace$id trace$id --concurrency 2 --pool 32 --policy fcfs,mqfq-sticky $options
	result trace$id "$(mean trace$id fcfs mean_ms) / $(mean trace$id mqfq-sticky mean_ms)"
	id=$((id + 1))
done
finish
