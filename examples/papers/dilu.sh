#!/usr/bin/env bash
# Dilu: searches for a configuration (table 2), GPUs and fragmentation in a large cluster (section
# 5.5, figure 20), the limit γ, the ablation of its principles, and horizontal scaling (table 3).
. "$(dirname "$0")/lib.sh"

# Table 2. The paper's four models are not published. These have the form of most kernels: a fixed
# part, and a part that is proportional to the batch and falls with the SM share up to a limit.
# Columns: fixed part in ms, ms for each item of a batch on the whole GPU, SM share from which more
# SMs do not help.
model() {
	awk -v fixed="$2" -v item="$3" -v most="$4" -v name="$1" 'BEGIN {
		print "function,sm_pct,quota,batch,throughput_rps,p95_ms"
		for (sm = 10; sm <= 100; sm += 10)
			for (batch = 1; batch <= 32; batch *= 2) {
				ms = fixed + batch * item * 100 / (sm < most ? sm : most)
				printf "%s,%d,1,%d,%.6g,%.6g\n", name, sm, batch, batch / ms * 1000, ms
			}
	}' >"$work/$1.profile"
}
model a 4 1.2 50
model b 8 4 70
model c 3 6 80
model d 10 2 40
for name in a b c d; do
	for search in grid gpulet hybrid fast; do
		trials=$(gfaas-profile search --table "$work/$name.profile" --search $search --slo 100ms -o json | awk -F'[:,]' '/"trials"/ { print $2 }')
		result $search-$name "$trials"
	done
done

# Figure 20 and the ablation. cluster ROW OPTION...: simulates the cluster for each seed.
for seed in $seeds; do
	gfaas-sim generate cluster --seed "$seed" --out-file "$work/$seed.events"
done
cluster() {
	local seed table=$1
	shift
	for seed in $seeds; do
		gfaas-sim cluster --events "$work/$seed.events" --nodes 1000 --gpus-per-node 4 --gpu-mem 40GiB "$@" -o csv >>"$work/$table"
	done
}
cluster all --scheduler dilu,exclusive,infless,infless-requests,fast
dilu=$(mean all dilu gpus_peak)
result peak "$dilu"
for other in exclusive infless infless-requests fast; do
	result $other "100 * ($dilu / $(mean all $other gpus_peak) - 1)"
done
for scheduler in dilu exclusive infless; do
	result sm-$scheduler "100 * $(mean all $scheduler sm_fragmentation)"
	result mem-$scheduler "100 * $(mean all $scheduler mem_fragmentation)"
done
for gamma in 1 1.25 2 3; do
	cluster gamma$gamma --gamma $gamma
	result gamma$gamma "100 * ($(mean gamma$gamma dilu gpus_peak) / $dilu - 1)"
done
for without in wa rc; do
	cluster $without --without $without
	result without-$without "100 * ($(mean $without dilu gpus_peak) / $dilu - 1)"
done

# Table 3. An instance serves 10, 20 or 30 requests per second, depending on its quota. Without
# vertical scaling, it has no quota above the request.
printf '%s\n' function,sm_pct,quota,throughput_rps,p95_ms,cold_ms f,24,0.2,10,50,5000 f,24,0.4,20,50,5000 f,24,0.6,30,50,5000 >"$work/profile"
head -n 2 "$work/profile" >"$work/fixed"
scale() {
	local seed table=$1 pattern=$2
	shift 2
	for seed in $seeds; do
		gfaas-sim scale --rps "$work/$pattern-$seed.rps" --function f "$@" -o csv
	done >"$work/$table"
}
for pattern in bursty periodic sporadic; do
	for seed in $seeds; do
		gfaas-sim generate rps --pattern $pattern --rate 30 --seed "$seed" --out-file "$work/$pattern-$seed.rps"
	done
	scale lazy $pattern --profile "$work/profile" --scaler lazy --set surge=0
	scale surge $pattern --profile "$work/profile" --scaler lazy
	scale fixed-lazy $pattern --profile "$work/fixed" --scaler lazy --set surge=0
	scale eager $pattern --profile "$work/profile" --scaler eager
	scale infless $pattern --profile "$work/profile" --scaler infless
	for table in lazy surge eager infless; do
		result $pattern-cold-$table "$(mean $table ${table/surge/lazy} cold_starts)"
		result $pattern-late-$table "100 * $(mean $table ${table/surge/lazy} slo_violation_ratio)"
	done
	result $pattern-late-fixed "100 * $(mean fixed-lazy lazy slo_violation_ratio)"
	for scaler in eager infless; do
		result $pattern-saved-$scaler "$(mean $scaler $scaler instance_seconds) - $(mean lazy lazy instance_seconds)"
	done
done
finish
