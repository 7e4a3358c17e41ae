package modeltest

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// realDaemon starts gfaas-modeld and puts the example's weights.
func realDaemon(t *testing.T) (env []string, daemon *exec.Cmd) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "linear.safetensors")
	output(t, "python3", filepath.Join(build, "examples/linear/make_weights.py"), file)
	env, daemon = emptyDaemon(t)
	tool(t, env, "gfaas-modeld", "put", "linear", file, "-q")
	return env, daemon
}

// tool runs one of the project's programs, and returns its standard output.
func tool(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(build, "bin", name), args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run %s %s: %v: %s", name, args, err, out)
	}
	return string(out)
}

// emptyDaemon starts gfaas-modeld in its own run directory, on the GPU of the other tests. It
// returns the environment of its clients.
func emptyDaemon(t *testing.T, args ...string) (env []string, daemon *exec.Cmd) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	env = append(environ(""), "GFAAS_RUN_DIR="+dir, "GFAAS_STATE="+filepath.Join(dir, "state.db"), "NO_COLOR=1")
	daemon = exec.Command(filepath.Join(build, "bin/gfaas-modeld"), append([]string{"--gpu", "sim", "--capacity", "64MiB", "-q"}, args...)...)
	daemon.Env = env
	var log locked
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
		if t.Failed() {
			t.Logf("gfaas-modeld: %s", log.String())
		}
	})
	awaitSocket(t, filepath.Join(dir, "model.sock"))
	return env, daemon
}

// awaitSocket waits until gfaas-modeld listens at a socket, which exists a moment before.
func awaitSocket(t *testing.T, path string) {
	t.Helper()
	eventually(t, "gfaas-modeld listens", func() bool {
		conn, err := net.Dial("unixpacket", path)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// TestRealDaemon checks the clients with gfaas-modeld itself: alone, all at once, and
// in a slice whose memory is smaller than the weights.
func TestRealDaemon(t *testing.T) {
	env, _ := realDaemon(t)
	const weight = "weight F32 [1000,2048] 0 8192000 000000000000803f"
	both(t, func(t *testing.T, language string) {
		if got := client(t, language, env, "show", "linear"); !strings.HasPrefix(got, "0 ") || !strings.Contains(got, weight) {
			t.Errorf(`client: got %s, want a text with "0 " and a text with %q`, got, weight)
		}
		if got := client(t, language, env, "show", "other"); !strings.HasPrefix(got, "1 ") {
			t.Errorf("model that does not exist: got %s, want error 1", got)
		}
		client(t, language, env, "leaks", "linear")
		cmd := command(language, env, "show", "linear")
		run := exec.Command(filepath.Join(build, "bin/gfaas"), append([]string{"run", "-q", "--gpu", "sim", "--mem", "4MiB", "--"}, cmd.Args...)...)
		run.Env = cmd.Env
		if out, err := run.Output(); err != nil || !strings.Contains(string(out), weight) {
			t.Errorf("client in a slice: got %v with %s, want %q", err, out, weight)
		}
	})
	client(t, c, env, "threads", "linear", "8", "10")
}

// TestModelOutlivesDaemon checks that a client keeps its model after the daemon has died.
func TestModelOutlivesDaemon(t *testing.T) {
	env, daemon := realDaemon(t)
	r := start(t, command(python, env, "keep", "linear"))
	r.awaitOutput(t, "held\n")
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	if _, err := io.WriteString(r.in, "\n"); err != nil {
		t.Fatal(err)
	}
	r.awaitOutput(t, "the same\n")
	r.ends(t)
}
