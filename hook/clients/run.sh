#!/bin/sh
# run.sh BUILD: programs that others wrote, on the simulated GPU, bare and in slices.
#
# They are Debian's, of its main archive, fetched into BUILD/clients and not
# installed. Where apt does not give them, that is said, and the exit is 0: there is
# nothing to compare. So far it is GCC's OpenMP offload for NVIDIA GPUs, whose runtime
# library links PTX by cuLink and knows nothing of CUDA's own runtime.
#
# It fails when a client fails in a slice. The rates are printed and not judged: a
# client's own processor time, on a host that others use, is much of them.
set -eu
build=$(realpath "$1")
here=$(dirname "$0")
dir=$build/clients
seconds=${CLIENT_SECONDS:-4}
fail() { echo "clients: $*" >&2; exit 1; }
none() { echo "clients: LEFT OUT: $*" >&2; exit 0; }

command -v apt-get >/dev/null && command -v dpkg >/dev/null || none 'no apt-get here'
version=$(gcc -dumpversion | cut -d. -f1)
root=$dir/root
gcc=$root/usr/lib/gcc/$(gcc -dumpmachine)/$version
if [ ! -x "$gcc/accel/nvptx-none/mkoffload" ]; then
	mkdir -p "$dir/debs" "$root"
	fetch() { (cd "$dir/debs" && timeout 20 apt-get -q download "gcc-$version-offload-nvptx" libgomp-plugin-nvptx1 nvptx-tools) >"$dir/apt.log" 2>&1; }
	fetch || { timeout 20 apt-get -q update >/dev/null 2>&1 && fetch; } ||
		none "apt gives no gcc-$version-offload-nvptx: $(tail -n 1 "$dir/apt.log")"
	for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$root"; done
fi
PATH=$root/usr/bin:$PATH gcc -no-pie "-B$gcc/" "-B$root/usr/" -fopenmp -foffload=nvptx-none -O1 -o "$dir/offload" "$here/offload.c"

# A small device, so that it is what there is to share.
run=$(mktemp -d) # a socket's path must be short
trap 'rm -rf "$run"' EXIT
export GFAAS_RUN_DIR="$run" GFAAS_STATE="$run/state" GFAAS_SIM_DIR="$run/sim" GFAAS_SIM_GPU=sms=1 GFAAS_SIM_NOTED=1
export LD_LIBRARY_PATH="$build/lib/sim:$root/usr/lib/$(gcc -dumpmachine)"
slice() { "$build/bin/gfaas" run -q --gpu sim --quota "$1" -- "$dir/offload" "$seconds"; }

bare=$("$dir/offload" "$seconds") || fail 'offload fails bare'
gated=$(slice 1) || fail 'offload fails in a slice'
slice 0.3:0.3 >"$run/little" & little=$!
slice 0.7:0.7 >"$run/much" & much=$!
wait $little && wait $much || fail 'offload fails beside another'
awk -v bare="$bare" -v gated="$gated" -v little="$(cat "$run/little")" -v much="$(cat "$run/much")" 'BEGIN {
	printf "client   bare  slice of all  slices of 0.3 and 0.7, together\n"
	printf "offload  %-5d %-5d %.2f     %-5d %-5d %.2f and %.2f of bare\n", bare, gated, gated / bare, little, much, little / bare, much / bare
	if (!(bare > 0 && gated > 0 && little > 0)) { print "clients: one of them did nothing"; exit 1 }
}'
