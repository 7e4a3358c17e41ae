#!/usr/bin/env bash
# LALB, section V: latency and misses (figures 4a and 4b) with three popularities of the functions
# (docs/papers.md).
. "$(dirname "$0")/lib.sh"

options="--gpus 12 --gpu-mem 8GiB --set patient=true"

# generator POPULARITY: prints the generator with its options.
generator() {
	case $1 in
	rank) echo lalb ;;
	equal) echo lalb --zipf 0 ;;
	azure) echo azure ;;
	esac
}

# saved ID TABLE COLUMN POLICY: records the difference of a policy's mean from that of lb, in percent.
saved() { result "$1" "100 * ($(mean "$2" "$4" "$3") / $(mean "$2" lb "$3") - 1)"; }

for popularity in rank equal azure; do
	for set in 15 25 35; do
		of=$popularity$set
		workload $of $(generator $popularity) --working-set $set
		compare $of $of --policy lb,lalb,lalb-o3 $options
		saved $of-latency $of mean_ms lalb
		saved $of-latency-o3 $of mean_ms lalb-o3
		saved $of-misses $of miss_ratio lalb
		saved $of-misses-o3 $of miss_ratio lalb-o3
	done
	result $popularity-speedup "$(mean ${popularity}15 lb mean_ms) / $(mean ${popularity}15 lalb-o3 mean_ms)"
done
finish
