#!/usr/bin/env bash
# Dilu, section 5.4: GPUs in use, requests that miss their objective, and times of training in a
# cluster of 5 nodes with 4 GPUs (figure 18), and throughput per resource (figure 19). gfaas-sim
# cluster places the instances, and gfaas-sim plan simulates them on their GPUs.
. "$(dirname "$0")/lib.sh"

# Four training functions with 2, 2, 4 and 4 workers, and three inference functions with two instances
# each. Requests and limits of SMs, speeds and rates are ours. Training has 80% of its speed with its
# request (section 3.2), and 98% with its limit.
training='t1-0 t1-1 t2-0 t2-1 t3-0 t3-1 t3-2 t3-3 t4-0 t4-1 t4-2 t4-3'
{
	echo time_s,action,instance,function,kind,gpus,sm_request,sm_limit,mem_mib
	for instance in t1-0 t1-1 bursty-0 bursty-1 t2-0 t2-1 periodic-0 periodic-1 t3-0 t3-1 t3-2 t3-3 poisson-0 poisson-1 t4-0 t4-1 t4-2 t4-3; do
		case $instance in
		t*) echo "0,start,$instance,${instance%-*},training,1,0.4,0.8,8192" ;;
		*) echo "0,start,$instance,${instance%-*},inference,1,0.3,0.6,4096" ;;
		esac
	done
} >"$work/events"
{
	echo function,sm_pct,quota,batch,throughput_rps,p95_ms
	for name in $training; do printf '%s,%s,1,1,%s,1000\n' "$name" 40 16 "$name" 80 19.6 "$name" 100 20; done
	for name in bursty periodic poisson; do printf '%s,%s,1,1,%s,1000\n' $name 30 60 $name 60 98 $name 100 100; done
} >"$work/profile"
{
	echo function,rps,slo_ms
	for name in $training; do echo "$name,24,"; done
	printf '%s,40,100\n' bursty periodic poisson
} >"$work/demand"
# Two minutes of requests. Workers always have another iteration.
{
	echo function,invoke_time_ms
	for name in bursty periodic poisson; do
		gfaas-sim generate trace --functions 1 --pattern $name --rate 40 --duration 2m | awk -F, -v name=$name 'NR > 1 { print name "," $2 }'
	done
	for name in $training; do seq -f "$name,%.3f" 0 41.667 120000; done
} >"$work/trace"

# run NAME SCHEDULER SHARE OPTION...: places the instances and simulates them. SHARE names the SMs that
# an instance has: vertical (from its request to its limit), request, limit or all. It writes the row
# NAME: GPUs, requests that miss their objective (the mean of the functions and the largest, as
# fractions), the time of training relative to a worker with all SMs, and the throughput of inference
# and of training per GPU that the shares of the instances add up to.
run() {
	local name=$1 scheduler=$2 share=$3
	gfaas-sim cluster --events "$work/events" --nodes 5 --gpus-per-node 4 --gpu-mem 40GiB --scheduler "$scheduler" "${@:4}" \
		--trace-out "$work/placed" >"$work/cluster"
	awk -v share="$share" 'BEGIN { printf "{\"version\":1,\"algorithm\":\"dilu\",\"model\":\"rect\",\"bound\":1,\"bound_method\":\"area\",\"gpus\":[" }
		{
			split($0, text, "\""); split(text[9], node, "node"); match($0, /"gpus":\[[0-9]+/)
			instance = text[6]; gpu = text[10] "\",\"index\":" substr($0, RSTART + 8, RLENGTH - 8)
			function_ = instance; if (instance !~ /^t/) sub(/-.*/, "", function_)
			request = instance ~ /^t/ ? 40 : 30; limit = 2 * request
			if (share == "request") limit = request
			if (share == "limit") request = limit
			if (share == "all") request = limit = 100
			if (!on[gpu]) gpus[n++] = gpu
			on[gpu] = on[gpu] (on[gpu] ? "," : "") sprintf("{\"id\":\"%s\",\"function\":\"%s\",\"sm_pct\":%d,\"sm_limit_pct\":%d,\"quota_request\":1,\"quota_limit\":1,\"batch\":1,\"rps\":20,\"mem_mib\":0,\"x\":0,\"y\":0}", instance, function_, request, limit)
		}
		END {
			for (i = 0; i < n; i++) printf "%s{\"node\":\"%s,\"mem_mib\":0,\"instances\":[%s]}", i ? "," : "", gpus[i], on[gpus[i]]
			printf "],\"gpus_used\":%d,\"demand\":[],\"unplaced\":[]}\n", n
		}' "$work/placed" >"$work/plan"
	gfaas-sim plan -q "$work/plan" --profile "$work/profile" --demand "$work/demand" --trace "$work/trace" --policy introspective -o csv >"$work/simulated" || [ $? = 3 ]
	awk -F, -v name="$name" -v share="$share" -v gpus="$(grep -o '"node":' "$work/plan" | wc -l)" '
		NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
		/^t/ { job = $1; sub(/-.*/, "", job); workers[job]++; if (!slowest[job] || $at["served_rps"] < slowest[job]) slowest[job] = $at["served_rps"]; next }
		{ late = 1 - $at["within"]; sum += late; if (late > most) most = late; served += $at["served_rps"] }
		END {
			for (job in workers) { time += 20 / slowest[job] / 4; iterations += workers[job] * slowest[job] }
			size = share == "all" ? 1 : share == "limit" ? 0.8 : 0.4
			small = share == "all" ? 1 : share == "limit" ? 0.6 : 0.3
			print "name,gpus,late,most,time,inference,training"
			printf "%s,%d,%.9g,%.9g,%.9g,%.9g,%.9g\n", name, gpus, sum / 3, most, time, served / (6 * small), iterations / (12 * size)
		}' "$work/simulated" >>"$work/rows"
}
run dilu dilu vertical
run exclusive exclusive all
run infless-l infless limit
run infless-r infless-requests request
run wa dilu vertical --without wa
run rc dilu vertical --without rc
run vs dilu limit

# of NAME COLUMN: prints a number of a run.
of() { mean rows "$1" "$2"; }
result gpus "$(of dilu gpus)"
result gpus-exclusive "$(of exclusive gpus) / $(of dilu gpus)"
for other in infless-l infless-r wa rc; do
	result gpus-$other "$(of $other gpus) - $(of dilu gpus)"
done
for name in dilu exclusive infless-l infless-r wa; do
	result late-$name "100 * $(of $name late)"
	result time-$name "$(of $name time)"
done
result late-vs "$(of vs late) / $(of dilu late)"
result most-vs "$(of vs most) / $(of dilu most)"
result time-vs "$(of vs time) / $(of dilu time)"
for other in exclusive infless-l infless-r; do
	result inference-$other "$(of dilu inference) / $(of $other inference)"
	result training-$other "$(of dilu training) / $(of $other training)"
done
finish
