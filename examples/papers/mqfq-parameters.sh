#!/usr/bin/env bash
# MQFQ-Sticky, sections 6.3 and 6.4: two GPUs (figure 7c), the parameters T (8a) and α (8b), the
# size of the pool (8c), and D that follows the utilization.
. "$(dirname "$0")/lib.sh"

# The paper does not state which traces figures 7c and 8 use, except that 7c has a high load. 7c
# runs here with the load of the trace with the highest utilization in table 3, the others with
# that of section 6.2.
options="--set correct=false"
workload base mqfq
workload high mqfq --functions 24 --rate 2.55 --utilization 0.799

for d in 1 2 4; do
	for gpus in 1 2; do
		compare gpus$gpus-d$d high --gpus $gpus --concurrency $d --pool 32 --policy mqfq-sticky $options
	done
	result gpus-d$d "$(mean gpus1-d$d mqfq-sticky mean_ms) / $(mean gpus2-d$d mqfq-sticky mean_ms)"
done

compare default base --pool 16 --policy mqfq-sticky $options
default=$(mean default mqfq-sticky mean_ms)
for t in 0 1 5 20 40; do
	compare t$t base --pool 16 --policy mqfq-sticky $options --set t=${t}s
	result t$t "$(mean t$t mqfq-sticky mean_ms) / $default"
done
for alpha in 0 1 3 8; do
	compare alpha$alpha base --pool 16 --policy mqfq-sticky $options --set alpha=$alpha
	result alpha$alpha "100 * ($(mean alpha$alpha mqfq-sticky mean_ms) / $default - 1)"
done

# A TTL that is the same for all functions, and a charge of 1 s for each invocation.
compare ttl base --pool 16 --policy mqfq-sticky $options --set ttl=4s
result ttl "100 * ($default / $(mean ttl mqfq-sticky mean_ms) - 1)"
compare short base --pool 16 --policy mqfq-sticky $options --set ttl=0.1s
result short "100 * ($(mean short mqfq-sticky mean_ms) / $(mean alpha0 mqfq-sticky mean_ms) - 1)"
compare charge base --pool 16 --policy mqfq-sticky $options --set charge=1s
result charge "$(mean charge mqfq-sticky mean_ms) / $default"

for pool in 4 8 16 32; do
	compare pool$pool base --pool $pool --policy fcfs,mqfq-sticky $options
	for policy in fcfs mqfq-sticky; do
		result $policy-pool$pool "100 * $(mean pool$pool $policy miss_ratio)"
	done
done

# D is at most 3, and falls while the GPU is busy for more than 90% of the time. An invocation
# keeps the GPU busy for 40% of the time that it runs, so D becomes 2.
for slow in 0 0.5; do
	compare fixed$slow base --pool 32 --concurrency 3 --policy mqfq-sticky $options --set interference=$slow
	compare dynamic$slow base --pool 32 --concurrency 3 --policy mqfq-sticky $options --set interference=$slow --set utilization=90 --set demand=40
	result dynamic$slow "$(mean dynamic$slow mqfq-sticky mean_ms) / $(mean fixed$slow mqfq-sticky mean_ms)"
done
finish
