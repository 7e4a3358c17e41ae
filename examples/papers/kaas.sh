#!/usr/bin/env bash
# KaaS, section 5.3: throughput of clients that send requests as fast as possible (figures 10 and
# 12), and latencies of random arrivals at 80% of the peak throughput (figures 11 and 13). Tasks in
# processes of their own (eTasks) run under the policy exclusive, and kernel tasks (kTasks) under
# cfs-affinity.
. "$(dirname "$0")/lib.sh"

seeds='1 2 3'
gpus="--gpus 4 --gpu-mem 16GiB"

# simulate TABLE WORKLOAD WORKER OPTION...: runs the policy of the kind of tasks.
simulate() {
	local policy=cfs-affinity
	[ "$3" = ktask ] || policy=exclusive
	compare "$1" "$2" $gpus --policy $policy "${@:4}"
}

# row TABLE COLUMN: prints the mean of a column over all rows.
row() { mean "$1" "$(awk -F, 'NR == 2 { print $1 }' "$work/$1")" "$2"; }

# peak APP WORKER CLIENTS: prints the requests per second of a closed loop of 30 s.
peak() {
	local of=loop-$1-$2-$3
	if [ ! -e "$work/$of" ]; then
		seeds=1 workload $of kaas --app "$1" --worker "$2" --clients "$3"
		seeds=1 simulate $of $of "$2" --repeat-until 30s
	fi
	awk "BEGIN { print ($(row $of cold_starts) + $(row $of host_warm_starts) + $(row $of gpu_warm_starts)) / $(row $of makespan_ms) * 1000 }"
}

# online TABLE APP WORKER CLIENTS RATE: simulates random arrivals for a minute.
online() {
	workload "$1" kaas --app "$2" --worker "$3" --clients "$4" --rate "$5"
	simulate "$1" "$1" "$3"
}

for app in resnet50 jacobi bert cgemm; do
	for clients in 16 32; do
		result $app-peak$clients "$(peak $app ktask $clients) / $(peak $app etask $clients)"
	done
	result $app-kept32 "100 * $(peak $app ktask 32) / $(peak $app ktask 4)"
	result $app-kept-etask "100 * $(peak $app etask 5) / $(peak $app etask 4)"
done
# 74 clients with 1.3 GB each need 1.5 times the memory of the GPUs.
result bert-peak74 "$(peak bert ktask 74) / $(peak bert etask 74)"

for run in jacobi:16 cgemm:32 bert:74; do
	app=${run%:*} clients=${run#*:}
	for worker in ktask etask; do
		online $app-$worker $app $worker $clients "$(awk "BEGIN { print 0.8 * $(peak $app $worker $clients) }")"
	done
	result $app-p50 "$(row $app-etask p50_ms) / $(row $app-ktask p50_ms)"
	result $app-p95 "$(row $app-etask p95_ms) / $(row $app-ktask p95_ms)"
done

# Figure 11: kTasks at 80% of the peak of eTasks.
for clients in 4 5 16; do
	rate=$(awk "BEGIN { print 0.8 * $(peak bert etask $clients) }")
	for worker in ktask etask; do
		online cdf-$worker$clients bert $worker $clients "$rate"
	done
	result cdf$clients-p50 "$(row cdf-etask$clients p50_ms) / $(row cdf-ktask$clients p50_ms)"
	result cdf$clients-p99 "$(row cdf-etask$clients p99_ms) / $(row cdf-ktask$clients p99_ms)"
done
finish
