#!/bin/sh
# run.sh BUILD [fetch]: programs that others wrote, on the simulated GPU, bare and in
# slices; or only fetches them.
#
# They are Debian's, of its main archive but for one, fetched into BUILD/clients and not
# installed. One that apt does not give, or that does not start here, is left out,
# which is said: there is nothing to compare.
#
#   offload  GCC's OpenMP offload for NVIDIA GPUs, whose runtime library links PTX by
#            cuLink and knows nothing of CUDA's own runtime
#   halide   Halide, which makes its kernels itself and brings a runtime of its own
#   ffmpeg   FFmpeg's upload to the GPU and its scale_cuda; counts frames
#   numba    numba's layer over the driver, by Python's ctypes
#   pycuda   PyCUDA, of contrib, with PTX that it is given; has a file of its own made
#            for cuRAND, with which it is linked
#
# hashcat and the compilers of numba and PyCUDA want NVRTC, NVVM or nvcc, which are
# not free.
#
# It fails when a client fails in a slice. The rates are printed and not judged: a
# client's own processor time, on a host that others use, is much of them.
set -eu
build=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
dir=$build/clients
seconds=${CLIENT_SECONDS:-2}
fetched=$(($(date +%s) + 45)) # by then all is fetched, or left out
late=$(($(date +%s) + 95))    # from then on none is begun
fail() { echo "clients: $*" >&2; exit 1; }
left_out() { echo "clients: LEFT OUT: $*" >&2; }

command -v apt-get >/dev/null && command -v dpkg >/dev/null || { left_out 'all of them: no apt-get here'; exit 0; }
version=$(gcc -dumpversion | cut -d. -f1)
root=$dir/root
libs=$root/usr/lib/$(gcc -dumpmachine)
python=/usr/bin/python3 # for which the packages are
mkdir -p "$root" "$dir/debs"

# download PACKAGE...: with what they need beyond what is installed, except what is
# only for building with them.
apt() { timeout $((fetched > $(date +%s) ? fetched - $(date +%s) : 1)) apt-get -q "$@" 2>"$dir/apt.log"; }
download() {
	plan=$(apt -s install --no-install-recommends "$@") || return 1
	needed=$(echo "$plan" | awk '$1 == "Inst" && $2 !~ /-dev$/ && $3 !~ /^\[/ {print $2}')
	(cd "$dir/debs" && rm -f ./*.deb && apt download ${needed:-"$@"} >/dev/null)
}

no_package() { why=$(tail -n 1 "$dir/apt.log"); left_out "$1: apt gives no $2: ${why:-not in time}"; }

# fetch CLIENT PACKAGE...: unpacks them, once. Where apt does not give them, it is left out.
fetch() {
	[ ! -e "$dir/has-$1" ] || return 0
	client=$1
	shift
	download "$@" || { apt update >/dev/null && download "$@"; } || { no_package "$client" "$1"; return 0; }
	unpack "$client"
}
unpack() {
	for deb in "$dir/debs"/*.deb; do dpkg -x "$deb" "$root"; done
	touch "$dir/has-$1"
}

# fetch_pycuda: what its package depends on is CUDA's toolkit too, which apt cannot
# give, so what else it needs is named here, or read in the package.
fetch_pycuda() {
	[ ! -e "$dir/has-pycuda" ] || return 0
	download_pycuda || { no_package pycuda python3-pycuda; return 0; }
	unpack pycuda
	echo 'libcurand.so.10 { curand*; };' >"$dir/curand.map"
	gcc -shared -fPIC -Wl,-soname,libcurand.so.10 "-Wl,--version-script,$dir/curand.map" -o "$libs/libcurand.so.10" "$here/curand.c"
}
download_pycuda() {
	lists=$dir/contrib
	mkdir -p "$lists"
	archive=$(apt indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | grep -m 1 " $(. /etc/os-release && echo "${VERSION_CODENAME:-}")\$") || return 1
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive contrib" >"$dir/contrib.list"
	contrib() { apt -o "Dir::Etc::SourceList=$dir/contrib.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$lists" -o "Dir::Cache=$lists" "$@" >/dev/null; }
	contrib update && (cd "$lists" && contrib download python3-pycuda) || return 1
	# shellcheck disable=SC2046 # they are words
	download python3-pytools python3-appdirs python3-decorator python3-mako python3-numpy \
		$(dpkg-deb -f "$lists"/python3-pycuda_*.deb Depends | grep -o 'libboost-[a-z]*[0-9.]*[0-9]' | sort -u) &&
		mv "$lists"/python3-pycuda_*.deb "$dir/debs"
}

fetch offload "gcc-$version-offload-nvptx" libgomp-plugin-nvptx1 nvptx-tools
fetch halide python3-halide
fetch numba python3-numba
fetch ffmpeg ffmpeg
fetch_pycuda
[ "${2:-}" != fetch ] || exit 0

# starts CLIENT COMMAND...: whether it is here and the command succeeds.
starts() {
	client=$1
	shift
	[ -e "$dir/has-$client" ] || return 1
	[ "$(date +%s)" -lt $late ] || { left_out "$client: no time is left"; return 1; }
	inside "$@" >/dev/null 2>"$dir/why" || { left_out "$client does not start here: $(tail -n 1 "$dir/why")"; return 1; }
}

# A small device, so that it is what there is to share.
run=$(mktemp -d) # a socket's path must be short
trap 'rm -rf "$run"' EXIT
export GFAAS_RUN_DIR="$run" GFAAS_STATE="$run/state" GFAAS_SIM_DIR="$run/sim" GFAAS_SIM_GPU=sms=1 GFAAS_SIM_NOTED=1
inside() { LD_LIBRARY_PATH="$build/lib/sim:$libs:$libs/blas:$libs/lapack:$libs/pulseaudio" PYTHONPATH=$root/usr/lib/python3/dist-packages "$@"; }

printf 'client   bare  slice of all  slices of 0.3 and 0.7, together\n'

# compare CLIENT COMMAND...: bare, in a slice, and in two at once. The command takes
# its seconds last, and says how much it has done.
compare() {
	client=$1
	shift
	slice() { quota=$1; shift; inside "$build/bin/gfaas" run -q --gpu sim --quota "$quota" -- "$@" "$seconds"; }
	bare=$(inside "$@" "$seconds") || fail "$client fails bare"
	gated=$(slice 1 "$@") || fail "$client fails in a slice"
	slice 0.3:0.3 "$@" >"$run/little" & little=$!
	slice 0.7:0.7 "$@" >"$run/much" & much=$!
	wait $little && wait $much || fail "$client fails beside another"
	awk -v client="$client" -v bare="$bare" -v gated="$gated" -v little="$(cat "$run/little")" -v much="$(cat "$run/much")" 'BEGIN {
		if (!(bare > 0 && gated > 0 && little > 0 && much > 0)) { print "clients: " client " did nothing"; exit 1 }
		printf "%-8s %-5d %-5d %.2f     %-5d %-5d %.2f and %.2f of bare\n", client, bare, gated, gated / bare, little, much, little / bare, much / bare
	}'
}

if starts offload true; then
	gcc=$root/usr/lib/gcc/$(gcc -dumpmachine)/$version
	PATH=$root/usr/bin:$PATH gcc -no-pie "-B$gcc/" "-B$root/usr/" -fopenmp -foffload=nvptx-none -O1 -o "$dir/offload" "$here/offload.c"
	compare offload "$dir/offload"
fi
starts halide "$python" -c 'import halide' && compare halide "$python" "$here/halide_tiles.py"
starts numba "$python" -c 'import numba' && compare numba "$python" "$here/numba_launch.py"
starts ffmpeg "$root/usr/bin/ffmpeg" -h filter=scale_cuda && compare ffmpeg "$here/ffmpeg_frames.sh" "$root/usr/bin/ffmpeg"
starts pycuda "$python" -c 'import pycuda.driver' && compare pycuda "$python" "$here/pycuda_launch.py"
exit 0 # what was left out is no failure
