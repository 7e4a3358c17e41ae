#!/bin/sh
# run.sh [--sim] [SECTION...]: checks gfaas on this machine's NVIDIA GPU. It prints one table,
# and the failures below it. It needs only the files of its folder, which `make gpu-check`
# creates: no Go, compiler, Docker or network. All sections together take about eight minutes:
#
#   doctor   what gfaas doctor finds, and the mechanisms that gfaas chooses
#   driver   the conformance programs of the simulated driver, on the real one
#   routes   each way to call the driver is gated and returns the right result
#   life     captures, graphs, contexts, threads and forks under the preload library
#   cost     the time that the preload library adds to a launch under a lease
#   memory   the memory limit
#   shares   two and three programs that saturate the GPU
#   kernels  kernel graphs: the built-in product, and the cost of a request
#   models   weights shared read-only by several processes; how fast they load
#   mps      SM shares: throughput by percentage, and of instances that run together
#   torch    PyTorch: eager, CUDA graphs, torch.compile; its loss of speed, and quotas
#   headline loads like FaST-GShare's: eight instances with SM shares against eight with time
#            quotas, and the paper's table of slices; seven minutes, not in the default set
#
# It changes no setting of the GPU. Its token daemon and its MPS daemon are its own and end
# with it. GPU_CHECK_SECONDS (540) bounds its time; it reports the checks that it had to skip.
# PyTorch is imported by $GPU_CHECK_PYTHON, or else by any Python that has it. If $OUT is a
# folder, the output also goes to gpu-check.md in it, line by line.
#
# --sim runs it on the simulated GPU, to check this script; the figures are then not those of
# a GPU. Exit status: 1 a check failed, 4 no NVIDIA driver, 7 no check failed but the time
# ended early.
set -u

here=$(cd "$(dirname "$0")" && pwd)
gpu=0
if [ "${1-}" = --sim ]; then
	gpu=sim
	shift
fi
all='doctor driver routes cost shares memory life kernels models mps torch'
sections=${*:-$all}
for section in $sections; do
	case " $all headline " in
	*" $section "*) ;;
	*)
		echo "gpu-check: no section $section; there are $all headline" >&2
		exit 2
		;;
	esac
done

# Variables of other work in the same shell must not affect the checks.
unset LD_PRELOAD CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_INJECTION64_PATH PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
for name in $(env | sed -n 's/^\(GFAAS_[A-Z0-9_]*\)=.*/\1/p'); do
	case $name in GFAAS_SIM_*) [ $gpu = sim ] || unset "$name" ;; *) unset "$name" ;; esac
done

none() {
	echo "gpu-check: $1: nothing was checked" >&2
	echo "gpu-check: copy $here to a machine that has an NVIDIA GPU and start run.sh there" >&2
	exit 4
}

# Find NVIDIA's driver, and select one GPU for all programs, with and without gfaas.
if [ $gpu = sim ]; then
	export LD_LIBRARY_PATH="$here/lib/sim"
else
	[ -e /dev/nvidiactl ] || none "no NVIDIA driver here (/dev/nvidiactl is missing)"
	case ${CUDA_VISIBLE_DEVICES-} in
	[0-9]* | MIG-*) gpu=${CUDA_VISIBLE_DEVICES%%,*} ;;
	GPU-*)
		gpu=$(timeout 20 nvidia-smi --query-gpu=index,uuid --format=csv,noheader 2>/dev/null |
			awk -F ', ' -v u="${CUDA_VISIBLE_DEVICES%%,*}" 'index($2, u) == 1 {print $1; exit}')
		[ -n "$gpu" ] || none "nvidia-smi does not say which GPU CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES is"
		;;
	esac
	export CUDA_VISIBLE_DEVICES="$gpu" CUDA_DEVICE_ORDER=PCI_BUS_ID
	case $(ldd "$here/check/cost" 2>&1) in
	*GLIBC_*"not found"*) none "the C library here is older than the programs: $(ldd --version 2>&1 | head -n 1)" ;;
	esac
	found() { ldd "$here/check/cost" 2>/dev/null | sed -n 's/.*libcuda\.so\.1 => \(\/[^ ]*\).*/\1/p'; }
	for dir in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/lib/wsl/lib; do
		[ -z "$(found)" ] || break
		[ ! -e $dir/libcuda.so.1 ] || export LD_LIBRARY_PATH="$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
	done
	driver=$(found)
	[ -n "$driver" ] || none "the loader does not find libcuda.so.1"
	! grep -q 'gfaas simulated GPU' "$driver" || none "$driver is the simulated driver; look at LD_LIBRARY_PATH"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/gfaas-check.XXXXXX")
export GFAAS_RUN_DIR=$work/run GFAAS_LIB_DIR=$here/lib GFAAS_STATE=$work/state.db
export TMPDIR=$work/tmp TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton
export CUDA_CACHE_PATH=$work/nv PYTHONDONTWRITEBYTECODE=1
ulimit -c 0 # no core files of crashed checks
mkdir -m 700 "$work/run" "$work/tmp"
tokend= kerneld= modeld= children=

# ends PID: waits until the process has exited, and kills it after 20 seconds.
ends() {
	tries=200
	while grep -qs ') [^Z]' "/proc/$1/stat"; do
		tries=$((tries - 1))
		if [ $tries -eq 0 ]; then
			kill -KILL "$1" 2>/dev/null
			return
		fi
		sleep 0.1
	done
}

# clean_up: ends all started programs and daemons and removes their files, also after a signal.
clean_up() {
	trap '' INT TERM HUP
	for pid in $children; do kill "$pid" 2>/dev/null; done
	for pid in $children; do wait "$pid" 2>/dev/null; done
	for pid in $kerneld $modeld $tokend; do
		kill "$pid" 2>/dev/null
		ends "$pid"
	done
	find "$work" -name nvidia-cuda-mps-control.pid 2>/dev/null >"$work/pids"
	while read -r file; do
		pid=$(cat "$file" 2>/dev/null)
		[ -n "$pid" ] || continue
		echo quit | CUDA_MPS_PIPE_DIRECTORY=$(dirname "$file") timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
		ends "$pid"
	done <"$work/pids"
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

began=$(date +%s)
failed=0 late=0
slice=$work/slice # a program and not a function, so that timeout can run it
printf '#!/bin/sh\nexec "%s/bin/gfaas" run -q --gpu %s "$@"\n' "$here" $gpu >"$slice"
chmod +x "$slice"
: >"$work/wrong" && : >"$work/failed" && : >"$work/differs"
report=/dev/null
if [ -n "${OUT-}" ] && [ -d "$OUT" ] && : 2>/dev/null >"$OUT/gpu-check.md"; then report=$OUT/gpu-check.md; fi

# told: prints its input, and appends it to the report, if there is one.
told() { tee -a "$report"; }

row() { printf '%-48s %s\n' "$1" "$2" | told; }

# room MOST: sets room to the time limit of the next command in seconds: MOST, or the
# remaining time if that is shorter, and then sets cut. Fails if less than 5 seconds remain.
room() {
	room=$((${GPU_CHECK_SECONDS:-540} - $(date +%s) + began))
	[ $room -ge 5 ] || return 1
	cut=1
	[ $room -le "$1" ] || { room=$1 && cut=; }
}

skip() {
	row "$1" "not run: no time left"
	late=1
}

# start OUT ERR COMMAND...: starts the command in the background, so that the script handles
# signals at once.
start() {
	out=$1
	err=$2
	shift 2
	timeout -k 10 $room "$@" >"$out" 2>"$err" </dev/null &
	children="$children $!"
}

# reap: waits for all started commands. Sets status to 0 if all succeeded.
reap() {
	status=0
	for pid in $children; do wait "$pid" 2>/dev/null || status=$?; done
	children=
}

# run COMMAND...: runs the command. Its output is in $work/out and $work/err, its exit
# status in status, which is 75 if no time remained to run it.
run() {
	status=75
	room 90 || return
	start "$work/out" "$work/err" "$@"
	reap
	return $status
}

# wrong NAME: prints a row for a failed check, and keeps the relevant output for the end of
# the report. If the check started again (a line "# again"), only the output of the last
# pass counts. A check that was cut short counts as skipped.
wrong() {
	if [ $status = 124 ] && [ -n "$cut" ]; then
		skip "$1"
		return
	fi
	failed=1
	cat "$work/err" >>"$work/out"
	grep '^# differs' "$work/out" | sed "s|^# differs|    $1|" >>"$work/differs"
	awk '/^# again/ {all = ""; next} {all = all $0 "\n"} END {printf "%s", all}' "$work/out" >"$work/last"
	mv "$work/last" "$work/out"
	grep -A 2 '^not ok' "$work/out" | grep '^not ok\|^#' >"$work/why"
	[ -s "$work/why" ] || tail -n 8 "$work/out" >"$work/why"
	case $status in
	124 | 137) why="took longer than $room s" ;;
	136 | 139) why="crashed" ;;
	*) why=$(sed -n '1s/^not ok //p;q' "$work/why") ;;
	esac
	row "$1" "FAILED: ${why:-$(tail -n 1 "$work/why")}"
	echo "$1" >>"$work/failed"
	{
		echo
		echo "$1 (status $status)"
		sed 's/^/    /' "$work/why"
	} >>"$work/wrong"
}

# verdict NAME: prints the row for the result of the last run.
verdict() {
	case $status in
	0)
		other=$(grep -c '^# differs' "$work/out")
		row "$1" "ok$([ "$other" -eq 0 ] || echo ", $other not as simulated")"
		[ "$other" -eq 0 ] || grep '^# differs' "$work/out" | sed "s|^# differs|    $1|" >>"$work/differs"
		;;
	75) skip "$1" ;;
	77) row "$1" "not in this driver" ;;
	*) wrong "$1" ;;
	esac
}

check() {
	name=$1
	shift
	run "$@"
	verdict "$name"
}

# figure COMMAND...: runs the command and sets figure to the last line of its output. If the
# command fails, figure is empty and the function fails.
figure() {
	figure=
	run "$@"
	[ $status -ne 0 ] || figure=$(tail -n 1 "$work/out")
	[ -n "$figure" ]
}

# show NAME FILTER COMMAND...: prints a row with the command's figure, filtered with FILTER.
# The check fails if FILTER fails or prints nothing.
show() {
	name=$1
	filter=$2
	shift 2
	if figure "$@" && figure=$(echo "$figure" | $filter) && [ -n "$figure" ]; then
		row "$name" "$figure"
	elif [ $status = 75 ]; then
		skip "$name"
	else
		wrong "$name"
	fi
}

# field NAME: prints a number from the JSON object on standard input.
field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p"; }

# up PID SOCKET LOG NAME: waits until the daemon's socket exists. If the daemon exits, or
# after 30 seconds, the check NAME fails.
up() {
	tries=300
	until [ -S "$2" ]; do
		tries=$((tries - 1))
		if [ $tries -eq 0 ] || ! kill -0 "$1" 2>/dev/null; then
			cp "$3" "$work/err" && : >"$work/out"
			status=1 cut=
			wrong "$4"
			return 1
		fi
		sleep 0.1
	done
}

# models: a client maps weights that are in GPU memory of another process, the daemon,
# through a file descriptor that it receives over a socket.
models() {
	mkdir -p "$work/w"
	header='{"w":{"dtype":"U8","shape":[67108864],"data_offsets":[0,67108864]}}     '
	{
		printf '\110\0\0\0\0\0\0\0%s' "$header" # 72 bytes
		head -c 67108864 /dev/urandom
	} >"$work/w/m.safetensors"
	"$here/bin/gfaas-modeld" -q --gpu $gpu --capacity 1GiB >"$work/modeld.log" 2>&1 &
	modeld=$!
	up $modeld "$GFAAS_RUN_DIR/model.sock" "$work/modeld.log" "models: the daemon starts" || return
	check "models: 64 MiB to the GPU" "$here/bin/gfaas-modeld" put m "$work/w/m.safetensors"
	same='"$1/bin/gfaas-modeld" get m - | cmp - "$2/m.safetensors"'
	check "models: and back, byte for byte" sh -c "$same" sh "$here" "$work/w"
	check "models: mapped by 4 processes at once" sh -c 'first=$(tail -c 67108864 "$2/m.safetensors" | head -c 32 | od -An -v -tx1 | tr -d " \n")
		for i in 1 2 3 4; do "$1/check/model_client" show m </dev/null >"$2/$i" 2>&1 & done
		wait
		for i in 1 2 3 4; do
			grep -q "^w U8 .* $first\$" "$2/$i" || { cat "$2/$i"; exit 1; }
		done' sh "$here" "$work/w"
	show "models: a write to them" "grep error" "$here/check/model_client" writes m
	check "models: which changed nothing" sh -c "$same" sh "$here" "$work/w"
	printf '%s\n' 'store s w U8 4 g U8 4' 'put w 01020304' 'gpu g 05060708' commit sealed >"$work/w/lines"
	check "models: stored by a process" sh -c '[ "$("$1/check/model_store" <"$2/lines" | sort | uniq -c | tr -d " ")" = 50 ] &&
		"$1/check/model_client" show s </dev/null >"$2/s" && grep -q "^w U8 .* 01020304" "$2/s" && grep -q "^g U8 .* 05060708" "$2/s"' sh "$here" "$work/w"
	check "models: beside --mem 16MiB" "$slice" --mem 16MiB -- sh -c '"$1/check/model_client" show m </dev/null | grep -q "^w U8"' sh "$here"
	check "models: mapped when the daemon is killed" sh -c 'mkfifo "$2/in" && exec 3<>"$2/in"
		"$1/check/model_client" holds m <&3 >"$2/held" 2>&1 &
		client=$! tries=600
		until grep -q held "$2/held"; do
			tries=$((tries - 1))
			[ $tries -gt 0 ] && kill -0 $client 2>/dev/null || { cat "$2/held"; exit 1; }
			sleep 0.1
		done
		kill -KILL "$3"
		echo >&3
		wait $client || { cat "$2/held"; exit 1; }' sh "$here" "$work/w" $modeld
	ends $modeld
	modeld=
	mib=512
	[ $gpu != sim ] || mib=16
	if [ ! -x "$here/check/model.test" ]; then
		row "models: speed" "check/model.test is not here"
	elif run env GFAAS_MODEL_MIB=$mib GFAAS_MODEL_GPU=$gpu "$here/check/model.test" -test.run '^$' -test.bench '^BenchmarkSpeed$' -test.benchtime 1x -test.v &&
		speed=$(grep -o 'bare-GB/s=.*' "$work/out" | head -n 1) && [ -n "$speed" ]; then
		for name in bare-GB/s put/bare load/bare get-us; do
			compare "models: $name" "$(echo "$speed" | tr ' ' '\n' | sed -n "s,^$name=,,p")"
		done
	else
		[ $status -ne 0 ] || status=1
		verdict "models: speed"
	fi
	rm -rf "$work/w"
}

# rate: converts the output of saturate to kernels per second.
rate() { sed 's/[{}"]//g; s/[:,]/ /g' | awk '{print $2 / $4}'; }

median() { sort -g "$1" | awk '{v[NR] = $1} END {print NR ? v[int((NR + 1) / 2)] : "none"}'; }

ratio() { awk -v a="$1" -v b="$2" 'BEGIN {if (a + 0 > 0 && b + 0 > 0) printf "%.4f", a / b; else print "none"}'; }

# collect FILE FILTER COMMAND...: appends the command's figure, filtered with FILTER, to a file.
collect() {
	file=$1
	filter=$2
	shift 2
	if figure "$@"; then echo "$figure" | $filter >>"$file"; fi
}

# compare NAME TEXT: prints a row. A figure "none" in TEXT means that the check failed.
compare() {
	case $2 in
	*none*) if room 5; then wrong "$1"; else skip "$1"; fi ;;
	*) row "$1" "$2" ;;
	esac
}

# doctor: prints the output of gfaas doctor, which fails if a required check fails.
doctor() {
	run "$here/bin/gfaas" doctor
	[ ! -s "$work/out" ] || sed 's/^/    /' "$work/out" | told
	verdict "doctor"
}

driver() {
	for program in "$here"/check/sim_*; do
		check "driver: $(basename "$program")" env TAP_PATIENCE=20 "$program"
	done
}

# route WAY: makes each call of the driver once. If a call ends the program, another run of
# the program continues with the next call.
route() {
	: >"$work/calls" && : >"$work/calls.err"
	from=all
	while :; do
		run "$slice" -- "$here/check/route" "$1" "$from" 5
		cat "$work/out" >>"$work/calls"
		cat "$work/err" >>"$work/calls.err"
		last=$(sed -n 's/^call //p' "$work/out" | tail -n 1)
		if [ $status -eq 75 ] || [ -z "$last" ] || grep -qx done "$work/out"; then break; fi
		echo "not ok $last: ended the program (status $status): $(tail -n 1 "$work/err")" >>"$work/calls"
		from=after:$last
	done
	mv "$work/calls" "$work/out"
	mv "$work/calls.err" "$work/err"
	[ $status -ne 0 ] || ! grep -q '^not ok' "$work/out" || status=1
}

routes() {
	for way in link dlsym default next plugin-default plugin-next plugin-deep namespace plugin-namespace proc proc2 proc-of-proc; do
		route $way
		absent=$(sed -n 's/^absent//p' "$work/out" | tr -d '\n')
		if [ $status -eq 0 ]; then
			row "routes: $way" "$(grep -c '^ok' "$work/out") ok${absent:+; not in this driver:$absent}"
		else
			verdict "routes: $way"
		fi
	done
}

# lines NAME COMMAND...: checks a command that waits for lines of input.
lines() {
	name=$1
	shift
	check "$name" sh -c 'yes "" | head -n 1000 | "$@"' sh "$@"
}

life() {
	for how in global local relaxed graph thread early; do
		lines "life: capture $how" "$slice" -- "$here/check/capture" $how
	done
	lines "life: graphs that change" "$slice" -- "$here/check/graph"
	check "life: 6 threads, contexts, streams" "$slice" -- "$here/check/stress" 6 3
	for how in detach release retained reset foreign ahead beside capture; do
		check "life: contexts, $how" "$slice" --mem 1GiB -- "$here/check/ends" $how
	done
	for how in before exec; do
		check "life: fork, $how" "$slice" -- "$here/check/fork" $how
	done
}

cost() {
	show "cost: ns a launch, and ns that the library adds" cat "$slice" -- "$here/check/cost" 1000
	for us in 10 1000; do
		: >"$work/bare" && : >"$work/hooked"
		for i in 1 2 3; do
			collect "$work/bare" rate "$here/victim/saturate" 2 $us 80 0
			collect "$work/hooked" rate "$slice" -- "$here/victim/saturate" 2 $us 80 0
		done
		compare "cost: throughput kept, kernels of $us us" "$(ratio "$(median "$work/hooked")" "$(median "$work/bare")")"
	done
}

# answered FIELD: prints a number from the last answer in the output of gfaas-kerneld run.
answered() { sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" "$work/out" | tail -n 1; }

# requests FILE TIMES: prints how many seconds a request takes, measured by the client over
# one connection: the difference between runs of 1 and of TIMES + 1 requests, divided by
# TIMES.
requests() {
	for times in 1 $(($2 + 1)); do
		from=$(date +%s%N)
		run "$here/bin/gfaas-kerneld" run "$1" --repeat $times || return
		took=$(($(date +%s%N) - from))
		[ $times -ne 1 ] || first=$took
	done
	awk -v ns=$((took - first)) -v n="$2" 'BEGIN {printf "%.9f\n", ns / n / 1e9}'
}

kernels() {
	mkdir -p "$work/m"
	"$here/bin/gfaas-kerneld" -q --gpu $gpu --gpu-mem 1GiB --host-mem 2GiB >"$work/kerneld.log" 2>&1 &
	kerneld=$!
	tries=300
	until [ -S "$GFAAS_RUN_DIR/kernel.sock" ]; do
		tries=$((tries - 1))
		if [ $tries -eq 0 ] || ! kill -0 $kerneld 2>/dev/null; then
			cp "$work/kerneld.log" "$work/err" && : >"$work/out"
			status=1 cut=
			wrong "kernels: the daemon starts"
			return
		fi
		sleep 0.1
	done
	check "kernels: sgemm 517 x 389 x 259 is right" sh -c 'set -e; cd "$2"; "$1/check/matrix" make 517 389 259 1 .
		"$1/bin/gfaas-kerneld" run request.json --in A=A.bin --in B=B.bin --out C=C.bin >/dev/null
		exec "$1/check/matrix" right 517 389 259 .' sh "$here" "$work/m"
	n=4096
	[ $gpu != sim ] || n=128
	speed=none
	if run "$here/check/matrix" make $n $n $n 20 "$work/m" &&
		run "$here/bin/gfaas-kerneld" run "$work/m/request.json" --in "A=$work/m/A.bin" --in "B=$work/m/B.bin" --repeat 2; then
		speed=$(awk -v n=$n -v ms="$(answered gpu_ms)" 'BEGIN {if (ms + 0 > 0) printf "%.1f", 20 * 2 * n * n * n / ms / 1e6; else print "none"}')
	fi
	compare "kernels: sgemm of $n, Gflop/s" "$speed"
	if figure "$here/check/matrix" peak; then compare "kernels: of all that the card could do" "$(ratio "$speed" "$figure")"; fi
	tiny='// gfaas-sim: tiny block_us=10\n.version 7.0\n.target sm_50\n.address_size 64\n.visible .entry tiny()\n{\nret;\n}\n'
	for many in 1 100; do
		# Enough requests that they take far longer than the variation between program starts.
		[ $many -eq 1 ] && requests=2000 || requests=400
		printf '{"version":1,"iterations":%s,"modules":{"m":{"ptx":"%s"}},"kernels":[{"module":"m","name":"tiny","grid":[1,1,1],"block":[32,1,1],"args":[]}]}' \
			$many "$tiny" >"$work/m/tiny.json"
		: >"$work/bare" && : >"$work/ours"
		for i in 1 2 3; do
			collect "$work/bare" cat "$here/victim/loop" 2000 $many
			requests "$work/m/tiny.json" $requests >>"$work/ours"
		done
		compare "kernels: $many a request, of a bare loop" \
			"$(awk -v a="$(median "$work/bare")" -v b="$(median "$work/ours")" -v n=$((2000 / many)) 'BEGIN {if (a + 0 > 0 && b + 0 > 0) printf "%.3f", a / n / b; else print "none"}')"
	done
	mib=256
	[ $gpu != sim ] || mib=16
	head -c $((mib << 20)) /dev/zero >"$work/m/large"
	printf '{"version":1,"modules":{"m":{"ptx":"%s"}},"buffers":{"x":{"kind":"input","key":"large"}},"kernels":[{"module":"m","name":"tiny","grid":[1,1,1],"block":[32,1,1],"args":[]}]}' \
		"$tiny" >"$work/m/large.json"
	first=none second=none
	if run "$here/bin/gfaas-kerneld" run "$work/m/large.json" --in "large=$work/m/large"; then
		first=$(answered total_ms)
		! run "$here/bin/gfaas-kerneld" run "$work/m/large.json" || second=$(answered total_ms)
	fi
	compare "kernels: second request of $mib MiB, of the first" "$(ratio "$second" "$first")"
	kill $kerneld 2>/dev/null
	ends $kerneld
	kerneld=
	rm -rf "$work/m"
}

memory() {
	show "memory: of --mem 1GiB, 64 MiB at a time" "grep 1024.of.1024" "$slice" --mem 1GiB -- "$here/check/memory" 64 1
	for kind in plain pitch managed async async-thread async-free plain-free-async pool vmm array array3d mipmap graph mixed; do
		check "memory: to the limit, $kind" "$slice" --mem 1GiB -- "$here/check/kinds" fill $kind
	done
	check "memory: all kinds at once, 2 processes" "$slice" --mem 1GiB -- "$here/check/kinds" race 2 4
	for case in mapped-twice mapped-in-part mapped-in-a-row mapped-with-holes levels formats imported kept grows-too-much lets-go \
		destroyed elsewhere captured beside-a-capture graphs-in-turn graphs-destroyed siblings; do
		check "memory: how long it counts, $case" "$slice" --mem 1GiB -- "$here/check/lifetimes" $case
	done
	check "memory: oversubscribed, out and in again" "$slice" --oversubscribe --mem 1GiB -- "$here/check/swap" 64 2
}

# parts: prints each number as a fraction of their sum.
parts() {
	awk '{v[NR] = $1; sum += $1} END {for (i = 1; i <= NR; i++) printf("%.4f\n", sum ? v[i] / sum : 0)}'
}

# one_line: joins numbers with commas.
one_line() { awk '{printf("%s%s", (NR > 1 ? ", " : ""), $1)}'; }

# together NAME FIELD ROUNDS WHAT SECONDS EACH...: runs one program with --WHAT EACH for
# each EACH, all at the same time, and prints each program's median of the rounds. FIELD is
# the field of its output to print, or "parts" for its fraction of all launched kernels.
together() {
	name=$1
	field=$2
	rounds=$3
	what=$4
	seconds=$5
	shift 5
	rm -f "$work"/part.*
	while [ "$rounds" -gt 0 ]; do
		rounds=$((rounds - 1))
		room 60 || break
		n=0
		for each in "$@"; do
			n=$((n + 1))
			start "$work/part.$n" "$work/part.$n.err" "$slice" --$what "$each" -- "$here/victim/saturate" "$seconds" 100 80 0
		done
		reap
		cat "$work"/part.[0-9] >"$work/out"
		cat "$work"/part.[0-9].err >"$work/err"
		[ $status -eq 0 ] || break
		case $field in
		parts) field launches <"$work/out" | parts ;;
		*) field "$field" <"$work/out" ;;
		esac | awk -v at="$work/part.of." '{print >>(at NR)}'
	done
	if [ -n "${n-}" ] && [ "$status" -ne 0 ]; then
		wrong "$name"
	elif [ -s "$work/part.of.1" ]; then
		row "$name" "$(for i in $(seq $#); do median "$work/part.of.$i"; done | one_line)"
	else
		skip "$name"
	fi
	n=
}

shares() {
	show "shares: alone, quota 0.3:0.8" "field share" "$slice" --quota 0.3:0.8 -- "$here/victim/saturate" 5 100 80 0
	together "shares: 0.1 and 0.9" parts 3 quota 5 0.1 0.9
	together "shares: 0.2, 0.3 and 0.5" parts 3 quota 5 0.2 0.3 0.5
	show "shares: graphs of 50 kernels, quota 0.3" "field share" "$slice" --quota 0.3 -- "$here/victim/saturate" 5 100 80 0 50
}

mps() {
	if ! command -v nvidia-cuda-mps-control >/dev/null; then
		row "mps" "nvidia-cuda-mps-control is not installed"
		return
	fi
	[ ! -x "$here/check/mps.test" ] || check "mps: control daemon suite" "$here/check/mps.test" -test.run Real
	# An SM runs two blocks of 1024 threads at a time. The kernel has many times that
	# number of blocks, so that its time is inversely proportional to the number of SMs.
	whole=
	for sm in 100 50 24 12; do
		if figure "$slice" --sm $sm -- "$here/victim/saturate" 3 100 5280 8 0 1024; then
			ms=$(echo "$figure" | field kernel_ms)
			: "${whole:=$ms}"
			row "mps: blocks that fill SMs at $sm%" "$ms ms, $(ratio "$whole" "$ms") of the throughput at 100%"
		else
			verdict "mps: blocks that fill SMs at $sm%"
		fi
	done
	show "mps: of --mem 1GiB at 50%, 64 MiB at a time" "grep 1024.of.1024" "$slice" --sm 50 --mem 1GiB -- "$here/check/memory" 64 1
	for sm in 24 60; do
		together "mps: two at $sm%, time of kernels per time" share 1 sm 5 $sm $sm
	done
}

# find_python: sets python to a Python that has PyTorch. Fails if there is none.
find_python() {
	for python in ${GPU_CHECK_PYTHON:-python3 python /opt/*/bin/python3 /opt/*/*/bin/python3 /usr/local/bin/python3 \
		/venv/bin/python3 /root/*/bin/python3 /root/.*/bin/python3 /root/*/envs/*/bin/python3 /home/*/*/bin/python3}; do
		command -v "$python" >/dev/null || continue
		run "$python" -c 'import torch; print(torch.__version__, "for CUDA", torch.version.cuda, "in", __import__("sys").executable)'
		[ $status -ne 75 ] || return 0
		[ $status -ne 0 ] || { row "torch" "$(tail -n 1 "$work/out")" && return 0; }
	done
	return 1
}

# loop FILE COMMAND...: appends the command's output to the file: a line with the products
# per second of each mode. Modes measured before a failure count.
loop() {
	file=$1
	shift
	run "$@"
	[ $status -eq 75 ] || cat "$work/out" >>"$file"
	if [ $status -ne 0 ] || grep -q ' none$' "$work/out"; then cp "$work/err" "$file.err"; fi
}

# rounds N MODE...: measures the modes N times, for one second without and one second with
# the library in turn. The last round also measures them for two seconds at quota 0.3,
# because a quota holds over many windows.
rounds() {
	times=$1
	shift
	while [ "$times" -gt 0 ]; do
		loop "$work/bare" "$python" "$here/torch_loop.py" 1 "$@"
		grep -q ' [0-9]' "$work/bare" || break
		loop "$work/hooked" "$slice" -- "$python" "$here/torch_loop.py" 1 "$@"
		[ "$times" -gt 1 ] || loop "$work/third" "$slice" --quota 0.3 -- "$python" "$here/torch_loop.py" 2 "$@"
		times=$((times - 1))
	done
}

# lost MODE: prints the mode's rows.
lost() {
	for file in bare hooked third; do
		awk -v m="$1" '$1 == m && $2 + 0 > 0 {print $2}' "$work/$file" >"$work/$file.one"
	done
	bare=$(median "$work/bare.one")
	if [ "$bare" = none ]; then
		if room 5; then
			why=$(grep -v '^ *$' "$work/bare.err" 2>/dev/null | grep 'Error\|error' | tail -n 1 | cut -c 1-120)
			row "torch: $1" "does not work here, gfaas or not${why:+: $why}"
		else
			skip "torch: $1"
		fi
		return
	fi
	row "torch: $1, products a second, bare" "$bare"
	cp "$work/hooked.err" "$work/err" 2>/dev/null || : >"$work/err"
	compare "torch: $1, kept under the library" "$(ratio "$(median "$work/hooked.one")" "$bare")"
	cp "$work/third.err" "$work/err" 2>/dev/null || : >"$work/err"
	compare "torch: $1, at quota 0.3" "$(ratio "$(median "$work/third.one")" "$bare")"
}

torch() {
	if ! find_python; then
		row "torch" "PyTorch is not installed"
		return
	fi
	loop="$here/torch_loop.py"
	segments=PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True async=PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync
	: >"$work/bare" && : >"$work/hooked" && : >"$work/third"
	show "torch: MiB it sees of --mem 8GiB" "grep -x 8192" "$slice" --mem 8GiB -- "$python" "$loop" total
	for conf in PYTORCH_CUDA_ALLOC_CONF= $segments $async; do
		how=${conf#*=}
		show "torch: --mem 4GiB, MiB until OutOfMemoryError, ${how:-default}" "fits 4096" \
			env $conf "$slice" --mem 4GiB -- "$python" "$loop" fill
	done
	check "torch: streams, graphs, pools: right" "$slice" --quota 0.5 -- "$python" "$loop" right
	check "torch: the same, expandable segments" env $segments "$slice" --quota 0.5 -- "$python" "$loop" right
	rounds 3 eager:512 eager:4096 graph:512 graph:4096
	for mode in eager:512 eager:4096 graph:512 graph:4096; do lost $mode; done
	rm -f "$work"/*.err
	: >"$work/bare" && : >"$work/hooked" && : >"$work/third"
	if ! command -v cc >/dev/null && ! command -v gcc >/dev/null && ! command -v clang >/dev/null; then
		row "torch: compile" "not tried: Triton needs a C compiler, and there is none"
		return
	fi
	rounds 2 compile:512 compile:4096
	for mode in compile:512 compile:4096; do lost $mode; done
}

# scene INSTANCE...: runs all instances at the same time. An INSTANCE is "LOAD bare", or
# "LOAD" and options of gfaas run. When all instances are warm, their rates are measured
# over the same seconds. scene.rates then has a line "LOAD RATE" for each, in the order of
# the arguments.
scene() {
	status=75
	room 90 || return
	rm -rf "$work/gate" "$work"/scene.*
	mkdir "$work/gate"
	n=0
	for each in "$@"; do
		n=$((n + 1))
		load=${each%% *}
		options=${each#"$load"}
		case $options in
		" bare") start "$work/scene.$n.out" "$work/scene.$n.err" "$python" "$here/loads.py" "$load" 4 "$work/gate" ;;
		*) start "$work/scene.$n.out" "$work/scene.$n.err" "$slice" $options -- "$python" "$here/loads.py" "$load" 4 "$work/gate" ;;
		esac
	done
	tries=$((room * 10))
	until [ "$(find "$work/gate" -name 'warm.*' | wc -l)" -eq $n ] || [ $tries -eq 0 ]; do
		tries=$((tries - 1))
		for pid in $children; do kill -0 "$pid" 2>/dev/null || tries=0; done
		sleep 0.1
	done
	: >"$work/gate/go"
	reap
	for i in $(seq $n); do cat "$work/scene.$i.out"; done >"$work/scene.rates"
	cat "$work/scene.rates" >"$work/out"
	cat "$work"/scene.*.err >"$work/err"
	return $status
}

# eight INSTANCE: runs eight such instances and sets figure to the sum of their rates, or to
# none if one fails.
eight() {
	figure=none
	if scene "$1" "$1" "$1" "$1" "$1" "$1" "$1" "$1"; then
		figure=$(awk '{sum += $2} END {printf "%.1f", sum}' "$work/scene.rates")
	fi
}

# total FILE: prints the sum of the figures in the file, or none if one is missing.
total() { awk '/none/ {none = 1} {sum += $1} END {print none ? "none" : sum}' "$1"; }

# published LOAD: prints the ratio of sharing SMs to sharing time that FaST-GShare prints for a
# load on a V100 (section 5.3: 3.15, 2.45 and 0.52 times higher), or nothing.
published() {
	case $1 in
	resnet) echo 4.16 ;; # 296.8 and 71.37 requests/s
	rnnt) echo 3.46 ;;
	gnmt) echo 1.52 ;;
	esac
}

headline() {
	if ! find_python; then
		row "headline" "PyTorch is not installed"
		return
	fi
	: >"$work/alone" && : >"$work/by.time" && : >"$work/by.space"
	for load in resnet rnnt gnmt bert; do
		alone=none
		! scene "$load bare" || alone=$(awk '{print $2}' "$work/scene.rates")
		echo "$load $alone" >>"$work/alone"
		compare "headline: $load, one alone and bare, requests/s" "$alone"
		figure=none
		! scene "$load" || figure=$(awk '{print $2}' "$work/scene.rates")
		compare "headline: $load, kept under the library" "$(ratio "$figure" "$alone")"
		eight "$load --quota 0.125"
		time=$figure
		compare "headline: $load, eight at quota 0.125" "$time"
		eight "$load --sm 12"
		compare "headline: $load, eight at 12% of the SMs" "$figure"
		compare "headline: $load, space over time" "$(ratio "$figure" "$time")"
		paper=$(published "$load")
		[ -z "$paper" ] || compare "headline: $load, space over time, of the paper's $paper" "$(ratio "$(ratio "$figure" "$time")" "$paper")"
		echo "$time" >>"$work/by.time"
		echo "$figure" >>"$work/by.space"
	done
	compare "headline: sum of all, space over time" "$(ratio "$(total "$work/by.space")" "$(total "$work/by.time")")"
	parts=none
	if scene "resnet --sm 12 --quota 0.4:0.4" "resnet --sm 12 --quota 0.4:0.4" "resnet --sm 12 --quota 0.4:0.4" "resnet --sm 12 --quota 0.4:0.4" \
		"rnnt --sm 24 --quota 0.4:0.4" "rnnt --sm 24 --quota 0.4:0.4" "bert --sm 50 --quota 0.6:0.6" "bert --sm 50 --quota 0.6:0.6"; then
		parts=$(awk 'NR == FNR {alone[$1] = $2; next} {printf "%s%.3f", (FNR > 1 ? ", " : ""), (alone[$1] > 0 ? $2 / alone[$1] : 0)}' "$work/alone" "$work/scene.rates")
	fi
	compare "headline: its table on one GPU, of alone" "$parts"
}

# fits MOST: prints the number on standard input if it is above MOST/2 and at most MOST.
fits() { awk -v most="$1" '$1 <= most && $1 > most / 2'; }

[ "$report" = /dev/null ] || printf '# gpu-check\n\n```\n' >>"$report"
if [ $gpu = sim ]; then
	echo "on the simulated GPU: these are not a GPU's figures"
else
	echo "driver: $driver"
	timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode,persistence_mode --format=csv,noheader \
		--id="$gpu" 2>/dev/null || echo "nvidia-smi says nothing of GPU $gpu"
fi | told
date -u +'%Y-%m-%d, %H:%M UTC' | told
"$here/bin/gfaas-tokend" -q >"$work/tokend.log" 2>&1 &
tokend=$!
tries=100
until [ -S "$GFAAS_RUN_DIR/token.sock" ]; do
	tries=$((tries - 1))
	if [ $tries -eq 0 ] || ! kill -0 $tokend 2>/dev/null; then
		echo "gpu-check: the token daemon did not start:" >&2
		cat "$work/tokend.log" >&2
		exit 1
	fi
	sleep 0.1
done
for section in $sections; do $section; done
row "seconds" "$(($(date +%s) - began))"
{
	if [ -s "$work/differs" ]; then
		echo
		echo "What this driver does otherwise than the simulated one, and may:"
		cat "$work/differs"
	fi
	if [ -s "$work/wrong" ]; then
		echo
		echo "What was wrong:"
		cat "$work/wrong"
		if [ -s "$work/tokend.log" ]; then
			echo
			echo "The token daemon said last:"
			tail -n 20 "$work/tokend.log" | sed 's/^/    /'
		fi
	fi
	echo
	if [ $failed -ne 0 ]; then
		echo "gpu-check: $(wc -l <"$work/failed") FAILED: $(paste -s -d ';' "$work/failed" | sed 's/;/; /g')"
	elif [ $late -ne 0 ]; then
		echo "gpu-check: nothing failed, but there was no time for all of it"
	else
		echo "gpu-check: nothing failed"
	fi
} | told
[ "$report" = /dev/null ] || echo '```' >>"$report"
[ $failed -eq 0 ] || exit 1
[ $late -eq 0 ] || exit 7
