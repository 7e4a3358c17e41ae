#!/bin/sh
# demo.sh BUILD: the main job from beginning to end. A function is profiled,
# planned, started under its slice of a GPU, invoked, and held to its quota.
# Everything it makes lives in a folder of its own and is gone at the end.
set -eu

build=$(cd "$1" && pwd)
PATH=$build/bin:$PATH
work=$(mktemp -d /tmp/gfaas-demo.XXXXXX)
export GFAAS_RUN_DIR=$work/run GFAAS_STATE=$work/state.db GFAAS_SIM_DIR=$work/sim GFAAS_LIB_DIR=$build/lib

finish() {
	status=$?
	trap - EXIT INT TERM
	[ -z "${gateway-}" ] || kill "$gateway" 2>/dev/null || true
	gfaas down -q >/dev/null 2>&1 || true
	rm -rf "$work"
	exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR-}" ] || say() { printf '\n== %s\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }

say "What this machine offers"
show gfaas doctor

say "A function: an HTTP server that computes y = a*x + y with the CUDA driver API"
example=$build/examples/saxpy
function=$example/function.yaml
if docker info >/dev/null 2>&1 && "$example/image.sh" >"$work/image.log" 2>&1; then
	echo "A Docker engine answers: instances run as containers."
	instances=$example/function-docker.yaml
else
	echo "No Docker engine answers: instances run as processes."
	instances=$function
fi
show cat "$instances"

say "Profile: throughput over SM share x time quota"
show gfaas-profile run "$function" --sm 12,24,50 --quota 0.2,0.6,1 --duration 3s --warmup 1s \
	--load closed:4 --out-file "$work/profile.csv"
show gfaas-profile run "$function" --sm 12,24,50 --quota 0.2,0.6,1 --duration 3s --warmup 1s \
	--load closed:4 --resume "$work/profile.csv" -q -o table

say "Plan: how many GPUs, which configurations, what goes where"
column() { awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i; next } { print $at }' "$work/profile.csv"; }
# Less than the GPU can do however the planner divides it.
rate=$(column throughput_rps | sort -n | tail -n 1 | awk '{ printf "%d", $1 * 0.9 }')
printf 'function,rps,slo_ms\nsaxpy,%s,400\n' "$rate" >"$work/demand.csv"
show cat "$work/demand.csv"
show gfaas-place plan --profile "$work/profile.csv" --demand "$work/demand.csv" --gpus 1 --gpu-mem 16GiB -o json --out-file "$work/plan.json"
show gfaas-place plan --profile "$work/profile.csv" --demand "$work/demand.csv" --gpus 1 --gpu-mem 16GiB
show gfaas-place verify "$work/plan.json" --profile "$work/profile.csv" --demand "$work/demand.csv"
gfaas-place plan -q --profile "$work/profile.csv" --demand "$work/demand.csv" --gpus 1 --gpu-mem 16GiB -o svg --out-file "$build/demo-plan.svg"
echo "A picture of it: $build/demo-plan.svg"

say "Start the plan's instances and invoke the function"
show gfaas apply -f "$instances"
show gfaas up "$work/plan.json"
show gfaas ps
echo '{"n": 4096, "a": 2}' | show gfaas invoke saxpy
show "$example/check.sh" saxpy 50

say "Stop them"
show gfaas down
show gfaas ps

say "Any program under a slice: three that want the whole GPU, with quotas 0.2, 0.3 and 0.5"
for quota in 0.2 0.3 0.5; do
	gfaas run -q --quota $quota --name "quota-$quota" -- "$build/victim/saturate" 6 >"$work/$quota.json" &
done
sleep 4
show gfaas-tokend status
wait

say "Serve functions: one address each, started when they are called, fair to all"
sed -e 's/^name: saxpy/name: patient/' -e "s|\./saxpy|$example/saxpy|" "$function" >"$work/patient.yaml"
show gfaas apply -f "$work/patient.yaml"
echo '$ gfaas serve --policy mqfq-sticky &'
gfaas serve --policy mqfq-sticky --listen 127.0.0.1:0 2>"$work/serve.log" &
gateway=$!
for _ in $(seq 100); do
	gfaas scale -q >/dev/null 2>&1 && break
	sleep 0.1
done
now() { date +%s%3N; }
call() { echo '{"n": 1024, "a": 2}' | gfaas invoke "$1" >/dev/null; }
begun=$(now)
call patient
echo "patient, from zero: $(($(now) - begun)) ms"
echo "A flood of saxpy by 8 callers, and beside it patient, one call after the other:"
for _ in 1 2 3 4 5 6 7 8; do
	(for _ in 1 2 3 4 5 6 7 8 9 10; do call saxpy; done) &
	callers="${callers-} $!"
done
for _ in 1 2 3 4 5; do
	begun=$(now)
	call patient
	echo "patient, beside the flood: $(($(now) - begun)) ms"
done
show gfaas top -o table
wait $callers
echo "The page of all this was at http://$(sed -n 's/.*"listen":"\([^"]*\)".*/\1/p' "$work/serve.log" | head -n 1)/ui/"
kill $gateway
wait $gateway
gateway=

echo
echo "Done. (Nothing is left running: $(find "$work/sim" -type f 2>/dev/null | wc -l) files of the simulated GPU, $(pgrep -f "$build/victim/saturate" | wc -l) programs.)"
