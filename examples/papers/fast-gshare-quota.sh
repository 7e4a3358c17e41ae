#!/usr/bin/env bash
# FaST-GShare, section 5.2: throughput by quota (figure 8), measured on the simulated GPU with the
# example saxpy, which fills all SMs. It needs the examples: make examples, or an installation.
. "$(dirname "$0")/lib.sh"

examples=$here/../../build/examples
[ -d "$examples" ] || examples=$(dirname "$(command -v gfaas-sim)")/../lib/gfaas/examples
export GFAAS_RUN_DIR=$work/run GFAAS_SIM_DIR=$work/sim
gfaas-profile run -q "$examples/saxpy/function.yaml" --gpu sim --sm 12,50 --quota 0.4,1 --duration 1s --warmup 500ms --load closed:4 \
	--goodput=false --out-file "$work/profile"
awk -F, 'NR == 1 { print "row,rps"; for (i = 1; i <= NF; i++) at[$i] = i; next } { print $at["sm_pct"] "/" $at["quota"] "," $at["throughput_rps"] }' \
	"$work/profile" >"$work/rates"
for sm in 12 50; do
	result quota-$sm "100 * $(mean rates $sm/0.4 rps) / $(mean rates $sm/1 rps)"
done
finish
