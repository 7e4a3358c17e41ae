#!/usr/bin/env bash
# LALB, section V: utilization (figure 4c), false misses (5), copies of the most popular model (6),
# and the parameter limit (7), with two popularities of the functions (docs/papers.md).
. "$(dirname "$0")/lib.sh"

options="--gpus 12 --gpu-mem 8GiB --set patient=true"

# generator POPULARITY: prints the generator with its options.
generator() {
	case $1 in
	rank) echo lalb ;;
	equal) echo lalb --zipf 0 ;;
	esac
}

# saved ID TABLE COLUMN POLICY: records the difference of a policy's mean from that of lb, in percent.
saved() { result "$1" "100 * ($(mean "$2" "$4" "$3") / $(mean "$2" lb "$3") - 1)"; }

# details WORKLOAD POLICY OPTION...: prints, for each seed, the mean number of GPUs that have the
# model of the first function, the fraction of the GPUs' time in which models run, and the variance
# of the latency in s².
details() {
	local of=$1 policy=$2 seed
	shift 2
	echo name,copies,busy,variance
	for seed in $seeds; do
		gfaas-sim queue -q --functions "$work/$of-$seed.costs" --trace "$work/$of-$seed.trace" --policy "$policy" $options "$@" \
			--trace-out "$work/decisions" -o csv >"$work/functions"
		awk -F, -v top="$(awk -F, 'NR == 2 { print $1 }' "$work/$of-$seed.costs")" '
			FILENAME ~ /costs$/ { warm[$1] = $2; next }
			FILENAME ~ /functions$/ && FNR > 1 { n += $2; work += $2 * warm[$1]; mean += $2 * $3; square += $2 * ($5 + $3 * $3) }
			FILENAME ~ /decisions$/ && /"action":"(run|remove)"/ {
				split($1, time, ":"); now = time[2]
				if (now > last) { area += copies * (now - last); last = now }
				if (index($0, "\"function\":\"" top "\"")) {
					if (/"start":"host-warm"/) copies++
					if (/"action":"remove"/) copies--
				}
				if (match($0, /"expected_ms":[0-9.]*/)) {
					end = now + substr($0, RSTART + 14, RLENGTH - 14)
					if (end > makespan) makespan = end
				}
			}
			END { printf "%s,%.9g,%.9g,%.9g\n", "x", area / last, work / (12 * makespan), (square / n - (mean / n) ^ 2) / 1e6 }' \
			"$work/$of-$seed.costs" "$work/functions" "$work/decisions"
	done
}

for popularity in rank equal; do
	for set in 15 35; do
		of=$popularity$set
		workload $of $(generator $popularity) --working-set $set
		compare $of $of --policy lb,lalb,lalb-o3 $options
		result $of-false "100 * $(mean $of lb false_miss_ratio)"
		saved $of-false-lalb $of false_miss_ratio lalb
		saved $of-false-o3 $of false_miss_ratio lalb-o3
		for policy in lb lalb lalb-o3; do
			details $of $policy >"$work/details-$policy"
		done
		if [ $popularity = rank ]; then
			lb=$(mean details-lb x copies)
			result $of-copies "100 * ($(mean details-lalb x copies) / $lb - 1)"
			result $of-copies-o3 "100 * ($(mean details-lalb-o3 x copies) / $lb - 1)"
		fi
		for policy in lb lalb lalb-o3; do
			result $of-busy-$policy "100 * $(mean details-$policy x busy)"
		done
	done
	of=${popularity}35
	for limit in 0 15 30 45; do
		compare $of-limit$limit $of --policy lalb-o3 $options --set limit=$limit
	done
	for limit in 15 30 45; do
		result $of-limit$limit "100 * ($(mean $of-limit$limit lalb-o3 mean_ms) / $(mean $of-limit0 lalb-o3 mean_ms) - 1)"
	done
	result $of-limit-misses "100 * ($(mean $of-limit45 lalb-o3 miss_ratio) / $(mean $of-limit0 lalb-o3 miss_ratio) - 1)"
	details $of lalb-o3 --set limit=0 >"$work/details-0"
	details $of lalb-o3 --set limit=45 >"$work/details-45"
	result $of-limit-variance "100 * ($(mean details-45 x variance) / $(mean details-0 x variance) - 1)"
done
finish
