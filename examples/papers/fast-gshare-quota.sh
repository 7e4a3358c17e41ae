#!/usr/bin/env bash
# FaST-GShare, section 5.2: throughput by quota (figure 8), measured on the simulated GPU with the
# example saxpy, which fills all SMs. It needs the examples: make examples, or an installation.
. "$(dirname "$0")/lib.sh"

examples=$here/../../build/examples
[ -d "$examples" ] || examples=$(dirname "$(command -v gfaas-sim)")/../lib/gfaas/examples
export GFAAS_RUN_DIR=$work/run GFAAS_SIM_DIR=$work/sim

# The simulated GPU runs in real time. On a busy machine, a process notices late that it has its lease
# and that a request has ended. Windows of 1 s (the paper's example) and several requests on the GPU make
# these delays small against the time of a lease, so that the figure does not depend on them.
gfaas-tokend -q --window 1s 2>"$work/daemon.log" &
daemon=$!
trap 'kill $daemon; wait $daemon || true; rm -rf "$work"' EXIT
for _ in $(seq 300); do
	gfaas-tokend status >/dev/null 2>&1 && break || sleep 0.1
done
printf '%s\n' 'name: saxpy' "command: [\"$(realpath "$examples")/saxpy/saxpy\"]" 'contract: http' 'kind: inference' \
	'env: {SAXPY_STREAMS: "4"}' >"$work/saxpy.yaml"
gfaas-profile run -q "$work/saxpy.yaml" --gpu sim --sm 12,50 --quota 0.4,1 --duration 4s --warmup 1s --precision 0 --load closed:8 \
	--goodput=false --park=false --out-file "$work/profile"
awk -F, 'NR == 1 { print "row,rps"; for (i = 1; i <= NF; i++) at[$i] = i; next } { print $at["sm_pct"] "/" $at["quota"] "," $at["throughput_rps"] }' \
	"$work/profile" >"$work/rates"
for sm in 12 50; do
	result quota-$sm "100 * $(mean rates $sm/0.4 rps) / $(mean rates $sm/1 rps)"
done
finish
