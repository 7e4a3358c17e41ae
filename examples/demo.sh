#!/bin/sh
# demo.sh BUILD: shows the main job. It profiles a function, plans for it, starts it under its
# slice of a GPU, invokes it, shows that its quota is enforced, and serves it together with
# another function. It writes pages to BUILD/demo and removes everything else at the end,
# including a Docker image.
set -eu

build=$(cd "$1" && pwd)
pages=$1/demo
PATH=$build/bin:$PATH
work=$(mktemp -d /tmp/gfaas-demo.XXXXXX)
export GFAAS_RUN_DIR=$work/run GFAAS_STATE=$work/state.db GFAAS_SIM_DIR=$work/sim GFAAS_LIB_DIR=$build/lib
image=

finish() {
	status=$?
	trap - EXIT INT TERM
	[ -z "${gateway-}" ] || kill "$gateway" 2>/dev/null || true
	gfaas down -q >/dev/null 2>&1 || true
	[ -z "$image" ] || docker rmi "$image" >/dev/null 2>&1 || true
	rm -rf "$work"
	exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR-}" ] || say() { printf '\n== %s\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }

rm -rf "$pages"
mkdir -p "$pages"
pages=$(cd "$pages" && pwd)
cp -R "$build/examples/saxpy" "$work/saxpy"
cd "$work"
PATH=$PATH:$work/saxpy
grep -v '^#' saxpy/function.yaml >saxpy.yaml
sed -i 's|\./saxpy|saxpy/saxpy|' saxpy.yaml
kind=processes
if docker info >/dev/null 2>&1; then
	image=gfaas-demo:$$
	if saxpy/image.sh "$image" >image.log 2>&1; then
		grep -v '^#' saxpy/function-docker.yaml | sed "s|^image: .*|image: $image|" >saxpy.yaml
		kind=containers
	fi
fi

say "A function: a server that computes y = a*x + y. Its instances will be $kind"
gfaas doctor | sed -n 's/^NVIDIA driver  *[a-z]*  */NVIDIA driver: /p'
export GFAAS_SIM_NOTED=1 # doctor reports the simulated GPU
show cat saxpy.yaml

say "Profile: throughput and latency by share of the multiprocessors (SMs) and of the time"
show gfaas-profile run saxpy.yaml --sm 12,50 --quota 0.4,1 --duration 3s --warmup 1s --load closed:4 \
	--goodput=false --out-file profile.csv -o table -q

say "Plan: number of GPUs, configurations and placement"
# A demand that needs two instances, one on each half of the GPU.
rate=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "throughput_rps") at = i; next } $at > most { most = $at } END { printf "%d", most * 1.5 }' profile.csv)
plan() { gfaas-place plan -q --profile profile.csv --demand "saxpy=$rate" --slo 400ms --gpus 1 --gpu-mem 16GiB "$@"; }
plan -o json --out-file plan.json
plan -o svg --out-file "$pages/plan.svg"
show gfaas-place plan -q --profile profile.csv --demand "saxpy=$rate" --slo 400ms --gpus 1 --gpu-mem 16GiB |
	sed -n '1,/^$/p;$p' # without the tables of GPUs and functions

say "Start the planned instances, invoke the function, stop them"
gfaas apply -q -f saxpy.yaml
show gfaas up -q plan.json
show gfaas ps
echo '{"n": 4096, "a": 2}' | show gfaas invoke saxpy
show check.sh saxpy 50
gfaas down -q

say "Any program under a slice: three programs that saturate the GPU, with quotas 0.2, 0.3 and 0.5"
for quota in 0.2 0.3 0.5; do
	gfaas run -q --quota $quota --name "quota-$quota" -- "$build/victim/saturate" 6 >"$quota.json" &
done
sleep 4
show gfaas-tokend status
wait

say "Serve functions: instances start on demand, and queueing is fair"
sed 's/^name: saxpy/name: patient/' saxpy.yaml >patient.yaml
gfaas apply -q -f patient.yaml
echo '$ gfaas serve --policy mqfq-sticky &'
gfaas serve --policy mqfq-sticky --listen 127.0.0.1:0 2>serve.log &
gateway=$!
for _ in $(seq 100); do
	gfaas scale -q >/dev/null 2>&1 && break
	sleep 0.1
done
now() { date +%s%3N; }
call() { echo '{"n": 1024, "a": 2}' | gfaas invoke "$1" >/dev/null; }
begun=$(now)
call patient
echo "patient, cold start: $(($(now) - begun)) ms. Now 8 callers of saxpy, each with one call after another:"
for _ in 1 2 3 4 5 6 7 8; do
	(for _ in 1 2 3 4 5 6 7 8 9 10; do call saxpy; done) &
	callers="${callers-} $!"
done
took=
for _ in 1 2 3 4 5; do
	begun=$(now)
	call patient
	took="$took $(($(now) - begun)) ms"
done
echo "patient, while they call:$took"
wait $callers
kill $gateway
wait $gateway
gateway=

say "The same policies on a virtual clock"
gfaas-sim generate mqfq -q --costs-out costs.csv --out-file trace.csv
show gfaas-sim compare -q --functions costs.csv --trace trace.csv --pool 8 --policy fcfs,gfaas
gfaas-sim compare -q --functions costs.csv --trace trace.csv --pool 8 --policy fcfs,mqfq,mqfq-sticky,gfaas -o html --out-file "$pages/compare.html"
gfaas-profile report -q profile.csv -o html --out-file "$pages/profile.html"

printf '\nPages to open in a browser: %s\n' "$(cd "$pages" && echo "$1/demo:" *)"
