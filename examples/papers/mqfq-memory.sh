#!/usr/bin/env bash
# MQFQ-Sticky, section 5.2: management of memory that exceeds that of the GPU (figure 4). 16 copies of
# FFT with 1.5 GB each run 20 times, in turns, on a GPU of 16 GiB. A move of 1.5 GB takes 125 ms.
. "$(dirname "$0")/lib.sh"

(echo function,warm_ms,load_ms,cold_ms,mem_mib && for i in $(seq -w 0 15); do echo "f$i,897,125,897,1536"; done) >"$work/fft"
(echo invoke_time_ms,function && for n in $(seq 0 319); do printf '%d,f%02d\n' $((n * 890)) $((n % 16)); done) >"$work/turns"
for memory in uvm madvise prefetch prefetch-swap; do
	result $memory "$(gfaas-sim queue -q --functions "$work/fft" --trace "$work/turns" --policy mqfq-sticky --gpu-mem 16GiB --set t=0s --set ttl=0s \
		--set memory=$memory -o csv | awk -F, 'NR > 1 { n += $2; service += $6 } END { printf "%.9g / 897", service / n }')"
done
finish
