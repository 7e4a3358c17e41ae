// Package mpstest provides a stand-in for nvidia-cuda-mps-control, and a conformance suite
// for both the stand-in and the real program.
package mpstest

import (
	"os"
	"path/filepath"
	"testing"
)

// script is the stand-in: a shell script that answers the commands that pkg/adapter/mps
// sends. A server is a process that sleeps. As with the real program, a server appears, and
// the daemon ends, with some delay. The script uses these files in CUDA_MPS_PIPE_DIRECTORY:
//
//	server.PID   the state of a server; a test may change it
//	clients.PID  the clients of a server; a test creates it
//	terminated   the server and the client of each terminate_client command, one per line
//	environ      the environment of the daemon at its start
//	broken       if a test creates it, the daemon does not start
//	slow         if a test creates it, each command takes this number of tenths of a second
//	asked        created when a command arrives while slow exists
const script = `#!/bin/sh
dir=$CUDA_MPS_PIPE_DIRECTORY
pidfile=$dir/nvidia-cuda-mps-control.pid
alive() { [ -s "$pidfile" ] && grep -q '^State:[^ZX]*$' "/proc/$(cat "$pidfile")/status" 2>/dev/null; }
if [ "$1" = -d ]; then
	alive && { echo "An instance of this daemon is already running"; exit 1; }
	[ -e "$dir/broken" ] && { echo "Cannot bind"; exit 1; }
	setsid sleep 600 </dev/null >/dev/null 2>&1 &
	env >"$dir/environ"
	echo $! >"$pidfile"
	exit 0
fi
alive || { echo "Cannot find MPS control daemon process"; exit 1; }
[ -e "$dir/slow" ] && touch "$dir/asked"
n=$(cat "$dir/slow" 2>/dev/null)
while [ -e "$dir/slow" ] && [ "$n" -gt 0 ]; do sleep 0.1 2>&-; n=$((n - 1)); done
while read -r command arg more; do
	case $command in
	get_server_list) for f in "$dir"/server.*; do [ -e "$f" ] && echo "${f##*.}"; done ;;
	get_server_status) cat "$dir/server.$arg" ;;
	terminate_client) echo "$arg $more" >>"$dir/terminated" ;;
	get_client_list) cat "$dir/clients.$arg" 2>/dev/null ;;
	start_server)
		setsid sleep 600 </dev/null >/dev/null 2>&1 &
		(sleep 0.2; echo ACTIVE >"$dir/server.$!") </dev/null >/dev/null 2>&1 & ;;
	quit)
		for f in "$dir"/server.*; do [ -e "$f" ] && kill "${f##*.}" && rm "$f"; done
		rm -f "$dir"/clients.*
		(sleep 0.2; kill "$(cat "$pidfile")"; rm "$pidfile") </dev/null >/dev/null 2>&1 & ;;
	*) echo "unknown command $command" ;;
	esac
done
exit 0
`

// Install writes the stand-in, puts its folder first on PATH for the test and returns its path.
func Install(t testing.TB) string {
	t.Helper()
	path, pathVariable := Write(t)
	t.Setenv("PATH", pathVariable)
	return path
}

// Write writes the stand-in. It returns its path, and a value of PATH with its folder first,
// for the environment of a command.
func Write(t testing.TB) (path, pathVariable string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "nvidia-cuda-mps-control")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, dir + ":" + os.Getenv("PATH")
}
