#!/usr/bin/env bash
# FaST-GShare, sections 5.3 and 5.4: isolation of two functions (figure 9), packing (11) and
# automatic scaling (12).
. "$(dirname "$0")/lib.sh"

# Figure 9: p95 of ResNet (quota 0.5 to 0.8), next to RNNT (0.5 to 0.5), with all SMs or with 24%
# each. Throughputs with the whole GPU are 71.37 and 12.51 requests/s (section 5.3), and ResNet
# gains nothing from more than 24% of the SMs (section 5.2).
printf '%s\n' function,sm_pct,quota,batch,throughput_rps,p95_ms resnet,100,0.5,1,35.685,69 resnet,24,0.5,1,35.685,69 \
	rnnt,100,0.5,1,6.255,500 rnnt,24,0.5,1,6.255,500 >"$work/pair"
# instance FUNCTION SM LIMIT RPS X Y: prints an instance of a plan.
instance() {
	printf '{"id":"%s-0","function":"%s","sm_pct":%s,"quota_request":0.5,"quota_limit":%s,"batch":1,"rps":%s,"mem_mib":0,"x":%s,"y":%s}' "$1" "$1" "$2" "$3" "$4" "$5" "$6"
}
# p95 SM INSTANCES DEMAND: prints the p95 latency of ResNet.
p95() {
	printf '{"version":1,"algorithm":"fast","model":"rect","gpus_used":1,"bound":1,"bound_method":"area","gpus":[{"node":"node0","index":0,"mem_mib":0,"instances":[%s]}],"demand":[%s],"unplaced":[]}' \
		"$1" "$2" >"$work/plan.json"
	gfaas-sim plan -q "$work/plan.json" --profile "$work/pair" --duration 5m -o csv >"$work/plan"
	mean plan resnet p95_ms
}
resnet='{"function":"resnet","rps":30,"served_rps":30}'
both=$resnet',{"function":"rnnt","rps":6,"served_rps":6}'
for sm in 100 24; do
	x=0.5 y=0
	[ $sm = 100 ] || x=0 y=24
	alone=$(p95 "$(instance resnet $sm 0.8 30 0 0)" "$resnet")
	result beside-$sm "$(p95 "$(instance resnet $sm 0.8 30 0 0),$(instance rnnt $sm 0.5 6 $x $y)" "$both") / $alone"
done

# Figure 11: 4 ResNet, 2 RNNT and 2 BERT, with their SM shares, and with all SMs for a part of the
# time. A row of the profile serves the demand of one instance, so --algorithm fast, which is
# Algorithm 2 of the paper, has to pack these instances.
printf '%s\n' function,sm_pct,quota,batch,throughput_rps,p95_ms resnet,12,0.4,1,10,69 rnnt,24,0.4,1,10,69 bert,50,0.6,1,10,69 >"$work/space"
sed 's/,12,/,100,/; s/,24,/,100,/; s/,50,/,100,/' "$work/space" >"$work/time"
# busy PLAN: prints the part of the window in which instances run, on average over the GPUs of the
# plan, and the same weighted by the SMs that the instances need, which is the occupancy.
busy() {
	awk 'function value(name) { return match($0, "\"" name "\":[0-9.]*") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) : "" }
		BEGIN { need["resnet"] = 12; need["rnnt"] = 24; need["bert"] = 50 }
		/"node"/ { gpus++ }
		/"id"/ {
			split($0, text, "\""); sms += need[text[8]] * value("quota_request")
			for (t = 0; t < 100; t++) if (t + 0.5 > 100 * value("x") && t + 0.5 < 100 * (value("x") + value("quota_request"))) at[gpus, t]
		}
		END { for (i in at) n++; print "name,gpus,time,sms"; print "plan," gpus "," n / 100 / gpus "," sms / 100 / gpus }' "$1"
}
for sharing in space time; do
	gfaas-place plan -q --profile "$work/$sharing" --demand resnet=40,rnnt=20,bert=20 --algorithm fast -o json >"$work/plan-$sharing"
	busy "$work/plan-$sharing" >"$work/busy-$sharing"
	result gpus-$sharing "$(mean busy-$sharing plan gpus)"
done
result utilization "$(mean busy-space plan time) / $(mean busy-time plan time)"
result occupancy "$(mean busy-space plan sms) / $(mean busy-time plan sms)"
# Our packer with its proof that no packing needs fewer GPUs.
printf '%s\n' id,quota,sm_pct,count resnet,0.4,12,4 rnnt,0.4,24,2 bert,0.6,50,2 >"$work/items"
result gpus-pack "$(gfaas-place pack --items "$work/items" -o json | awk -F'[:,]' '/"bound"/ { print $2; exit }')"

# Figure 12: ResNet with an objective of 69 ms. Only the throughput of a pod with 12% of the SMs is
# known: an eighth of 296.8 requests/s. The other rows, the load, and the start of an instance are
# ours.
printf '%s\n' function,sm_pct,quota,throughput_rps,p95_ms,cold_ms resnet,12,0.4,14.84,69,2900 resnet,12,1,37.1,27,2900 resnet,24,1,71.37,14,2900 >"$work/scale"
for estimator in last window; do
	for seed in $seeds; do
		gfaas-sim generate rps --pattern periodic --rate 150 --seed "$seed" |
			gfaas-sim scale --rps - --profile "$work/scale" --function resnet --slo 69ms --scaler heuristic --estimator $estimator -o csv
	done >"$work/scaled-$estimator"
	result late-$estimator "100 * $(mean scaled-$estimator heuristic slo_violation_ratio)"
done
finish
