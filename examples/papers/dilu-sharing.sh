#!/usr/bin/env bash
# Dilu, section 5.2: latency of a function that shares a GPU with another one, for bursts of different
# strength (the sweep of the coefficient of variation, CV) and next to a training function.
. "$(dirname "$0")/lib.sh"

# The paper prints neither the durations of its models nor the rates. Here, both functions serve 100
# requests/s alone on the GPU, 98 with 60% of the SMs, and 60 with 30%, and get 30 requests/s each.
# The paper states that RoBERTa-large gains 2% from 50% to 100% of the SMs.
printf '%s\n' function,sm_pct,quota,batch,throughput_rps,p95_ms f,30,1,1,60,100 f,60,1,1,98,100 f,100,1,1,100,100 \
	g,30,1,1,60,100 g,60,1,1,98,100 g,100,1,1,100,100 >"$work/profile"

# instance FUNCTION REQUEST LIMIT Y: prints an instance of a plan, with SM shares in percent.
instance() {
	printf '{"id":"%s-0","function":"%s","sm_pct":%s,"sm_limit_pct":%s,"quota_request":1,"quota_limit":1,"batch":1,"rps":30,"mem_mib":0,"x":0,"y":%s}' "$1" "$1" "$2" "$3" "$4"
}

# latency COLUMN INSTANCES OTHER OPTION...: prints a latency of f, with OTHER requests/s for g. It is
# the mean for three seeds.
latency() {
	local column=$1 seed demand='{"function":"f","rps":30,"served_rps":30}'
	[ "$3" = 0 ] || demand+=',{"function":"g","rps":'$3',"served_rps":'$3'}'
	printf '{"version":1,"algorithm":"dilu","model":"rect","gpus_used":1,"bound":1,"bound_method":"area","gpus":[{"node":"node0","index":0,"mem_mib":0,"instances":[%s]}],"demand":[%s],"unplaced":[]}' \
		"$2" "$demand" >"$work/plan"
	for seed in 1 2 3; do
		gfaas-sim plan -q "$work/plan" --profile "$work/profile" --policy introspective --seed $seed "${@:4}" -o csv >>"$work/latencies" || [ $? = 3 ]
	done
	mean latencies f "$column"
	rm "$work/latencies"
}

alone=$(instance f 100 100 0)
dilu=$(instance f 30 60 0),$(instance g 30 60 30)
limits=$(instance f 60 60 0),$(instance g 60 60 40)
requests=$(instance f 30 30 0),$(instance g 30 30 30)
for cv in 1 2 4 6; do
	options="--pattern gamma --cv $cv --slo 100ms --duration 5m"
	exclusive=$(latency p95_ms "$alone" 0 $options)
	own=$(latency p95_ms "$dilu" 30 $options)
	result dilu-cv$cv "$own / $exclusive"
	result limits-cv$cv "$(latency p95_ms "$limits" 30 $options) / $own"
	result requests-cv$cv "$(latency p95_ms "$requests" 30 $options) / $own"
done

# Next to g as a training function: it has work at all times.
options="--slo 100ms --duration 1m"
training=$(instance f 30 60 0),$(instance g 30 100 30)
for column in p50_ms p95_ms; do
	result training-$column "$(latency $column "$training" 120 $options) / $(latency $column "$alone" 0 $options)"
done
finish
