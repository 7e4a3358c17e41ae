#!/bin/sh
# run.sh BUILD [fetch]: runs CUDA programs of other projects (clients) on the simulated GPU,
# without and with slices. With "fetch", it only fetches them.
#
# The clients are packages of Debian's main archive, except PyCUDA (contrib). They are
# unpacked into BUILD/clients and not installed. A client that apt cannot fetch, or that does
# not start, is skipped with a message.
#
#   offload  GCC's OpenMP offload for NVIDIA GPUs. Its runtime library links PTX with cuLink
#            and does not use CUDA's runtime.
#   halide   Halide, which generates its kernels and has its own runtime.
#   ffmpeg   FFmpeg's upload to the GPU and scale_cuda; counts frames.
#   numba    numba's driver layer, which calls the driver through Python's ctypes.
#   pycuda   PyCUDA with ready-made PTX. It links cuRAND, which is not free, so an empty
#            library is built in its place.
#
# hashcat and the compilers of numba and PyCUDA need NVRTC, NVVM or nvcc, which are not free.
#
# It fails if a client fails in a slice. It only prints the rates, because much of them is a
# client's own CPU time on a shared host.
set -eu
build=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
dir=$build/clients
seconds=${CLIENT_SECONDS:-2}
fetched=$(($(date +%s) + 45)) # end of the time for fetching
late=$(($(date +%s) + 95))    # no client starts after this time
fail() { echo "clients: $*" >&2; exit 1; }
skipped() { echo "clients: SKIPPED: $*" >&2; }

command -v apt-get >/dev/null && command -v dpkg >/dev/null || { skipped 'all clients: apt-get is not installed'; exit 0; }
version=$(gcc -dumpversion | cut -d. -f1)
root=$dir/root
libs=$root/usr/lib/$(gcc -dumpmachine)
python=/usr/bin/python3 # the version that the packages are built for
mkdir -p "$root" "$dir/debs"

# download PACKAGE...: downloads them and their missing dependencies, without -dev packages.
apt() { timeout $((fetched > $(date +%s) ? fetched - $(date +%s) : 1)) apt-get -q "$@" 2>"$dir/apt.log"; }
download() {
	plan=$(apt -s install --no-install-recommends "$@") || return 1
	needed=$(echo "$plan" | awk '$1 == "Inst" && $2 !~ /-dev$/ && $3 !~ /^\[/ {print $2}')
	(cd "$dir/debs" && rm -f ./*.deb && apt download ${needed:-"$@"} >/dev/null)
}

no_package() { why=$(tail -n 1 "$dir/apt.log"); skipped "$1: apt cannot fetch $2: ${why:-out of time}"; }

# fetch CLIENT PACKAGE...: downloads and unpacks the packages, once, or skips the client.
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

# fetch_pycuda: as fetch. The package also depends on the CUDA toolkit, which apt cannot fetch
# here, so the other dependencies are listed below or read from the package.
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
	# shellcheck disable=SC2046 # word splitting is intended
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

# starts CLIENT COMMAND...: reports whether the client was fetched and the command succeeds.
starts() {
	client=$1
	shift
	[ -e "$dir/has-$client" ] || return 1
	[ "$(date +%s)" -lt $late ] || { skipped "$client: out of time"; return 1; }
	inside "$@" >/dev/null 2>"$dir/why" || { skipped "$client does not start: $(tail -n 1 "$dir/why")"; return 1; }
}

# One SM, so that the GPU and not the CPU is the bottleneck.
run=$(mktemp -d) # the path of a socket must be short
trap 'rm -rf "$run"' EXIT
export GFAAS_RUN_DIR="$run" GFAAS_STATE="$run/state" GFAAS_SIM_DIR="$run/sim" GFAAS_SIM_GPU=sms=1 GFAAS_SIM_NOTED=1
inside() { LD_LIBRARY_PATH="$build/lib/sim:$libs:$libs/blas:$libs/lapack:$libs/pulseaudio" PYTHONPATH=$root/usr/lib/python3/dist-packages "$@"; }

printf 'client   bare  slice of all  slices of 0.3 and 0.7, together\n'

# compare CLIENT COMMAND...: runs the command without a slice, in one slice, and in two slices
# at once. The command's last argument is the time in seconds; it prints its units of work.
compare() {
	client=$1
	shift
	slice() { quota=$1; shift; inside "$build/bin/gfaas" run -q --gpu sim --quota "$quota" -- "$@" "$seconds"; }
	bare=$(inside "$@" "$seconds") || fail "$client fails without a slice"
	gated=$(slice 1 "$@") || fail "$client fails in a slice"
	slice 0.3:0.3 "$@" >"$run/little" & little=$!
	slice 0.7:0.7 "$@" >"$run/much" & much=$!
	wait $little && wait $much || fail "$client fails in two slices at once"
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
exit 0 # skipped clients are no failure
