// Package mpstest has a stand-in for nvidia-cuda-mps-control and the suite
// that both it and the real one pass.
package mpstest

import (
	"os"
	"path/filepath"
	"testing"
)

// script answers the commands that pkg/adapter/mps sends. A server is a
// process that sleeps; the file server.PID holds its state, clients.PID its
// clients; the file terminated has the server and the client of each terminate_client, one
// a line. With a file slow, each answer takes as many seconds as that says. As with the
// real one, it takes a while until a server is there, and until the daemon has ended. What
// it was started with is in the file environ.
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
[ -e "$dir/slow" ] && touch "$dir/asked" && sleep "$(cat "$dir/slow")" 2>&-
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

// Install writes the stand-in and puts it on PATH before all others. It
// returns its path.
func Install(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "nvidia-cuda-mps-control")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return path
}
