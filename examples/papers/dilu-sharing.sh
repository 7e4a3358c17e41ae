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

# simulate TABLE INSTANCES F G OPTION...: simulates F and G requests/s for the functions f and g, for
# three seeds. The rows of the table are named by the function.
simulate() {
	local table=$1 seed demand='{"function":"f","rps":'$3',"served_rps":'$3'}'
	[ "$4" = 0 ] || demand+=',{"function":"g","rps":'$4',"served_rps":'$4'}'
	printf '{"version":1,"algorithm":"dilu","model":"rect","gpus_used":1,"bound":1,"bound_method":"area","gpus":[{"node":"node0","index":0,"mem_mib":0,"instances":[%s]}],"demand":[%s],"unplaced":[]}' \
		"$2" "$demand" >"$work/plan"
	for seed in 1 2 3; do
		gfaas-sim plan -q "$work/plan" --profile "$work/profile" --policy introspective --seed $seed "${@:5}" -o csv >>"$work/$table" || [ $? = 3 ]
	done
}

alone=$(instance f 100 100 0)
dilu=$(instance f 30 60 0),$(instance g 30 60 30)
limits=$(instance f 60 60 0),$(instance g 60 60 40)
requests=$(instance f 30 30 0),$(instance g 30 30 30)
whole=$(instance f 100 100 0),$(instance g 100 100 0)
for cv in 1 2 4 6; do
	options="--pattern gamma --cv $cv --slo 100ms --duration 5m"
	simulate exclusive$cv "$alone" 30 0 $options
	simulate dilu$cv "$dilu" 30 30 $options
	simulate limits$cv "$limits" 30 30 $options
	simulate requests$cv "$requests" 30 30 $options
	own=$(mean dilu$cv f p95_ms)
	result dilu-cv$cv "$own / $(mean exclusive$cv f p95_ms)"
	result limits-cv$cv "$(mean limits$cv f p95_ms) / $own"
	result requests-cv$cv "$(mean requests$cv f p95_ms) / $own"
done

# Next to g as a training function, which has work at all times.
options="--slo 100ms --duration 1m"
simulate exclusive "$alone" 30 0 $options
simulate training "$(instance f 30 60 0),$(instance g 30 100 30)" 30 120 $options
simulate training-tgs "$whole" 30 120 $options --policy tgs
for column in p50_ms p95_ms; do
	result training-$column "$(mean training f $column) / $(mean exclusive f $column)"
	result training-tgs-$column "$(mean training-tgs f $column) / $(mean exclusive f $column)"
done
result training-throughput "$(mean training g served_rps)"
result training-tgs-throughput "$(mean training-tgs g served_rps)"

# TGS with two inference functions, of which the first is productive.
simulate tgs "$whole" 30 30 $options --policy tgs
simulate dilu "$dilu" 30 30 $options
for column in p50_ms p95_ms; do
	result tgs-$column "($(mean tgs f $column) + $(mean tgs g $column)) / ($(mean dilu f $column) + $(mean dilu g $column))"
done

# Figure 13: two training functions. Each has 100 iterations/s alone on the GPU.
simulate two "$dilu" 120 120 --duration 1m
simulate two-limits "$limits" 120 120 --duration 1m
simulate two-requests "$requests" 120 120 --duration 1m
simulate two-tgs "$whole" 120 120 --duration 1m --policy tgs
sum() { echo "($(mean "$1" f served_rps) + $(mean "$1" g served_rps))"; }
result two "$(sum two)"
for other in limits requests tgs; do
	result two-$other "$(sum two) / $(sum two-$other)"
done
finish
