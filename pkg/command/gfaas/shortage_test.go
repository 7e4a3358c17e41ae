package gfaas

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// processorTime returns the processor time that a process has used.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var user, system int64
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * (time.Second / 100) // Linux reports ticks of 10 ms
}

// TestDaemonsOutOfDescriptors checks that a daemon without free descriptors for new connections neither spins nor ends.
// It logs the shortage once, lets clients wait, and answers when descriptors are free again. Package daemon/token has
// its own test.
func TestDaemonsOutOfDescriptors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		network, socket string
		program         string
		args, ask       []string // ask: a command that the daemon answers; nil: it speaks HTTP
	}{
		"gateway": {"unix", "gateway.sock", "gfaas", []string{"serve", "--listen", "", "--gpu", "sim"}, nil},
		"modeld":  {"unixpacket", "model.sock", "gfaas-modeld", []string{"--gpu", "sim"}, []string{"gfaas-modeld", "ls"}},
		"kerneld": {"unix", "kernel.sock", "gfaas-kerneld", []string{"--gpu", "sim"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "few") // a short path, for sockets
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			socket := filepath.Join(dir, "run", c.socket)
			cmd := exec.Command(built("bin", c.program), c.args...)
			cmd.Env = append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Dir(socket), "GFAAS_STATE="+filepath.Join(dir, "state.db"), "GFAAS_SIM_DIR="+filepath.Join(dir, "sim"),
				"GFAAS_SIM_GPU=sms=8,mem=1GiB", "XDG_CONFIG_HOME="+dir, "GFAAS_LIB_DIR="+built("lib"), "DOCKER_HOST=unix://"+filepath.Join(dir, "none.sock"))
			stderr, err := os.Create(filepath.Join(dir, "said"))
			if err != nil {
				t.Fatal(err)
			}
			defer stderr.Close()
			cmd.Stderr = stderr
			if err := os.Mkdir(filepath.Join(dir, "sim"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatalf("run make: %v", err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			messages := func() string {
				text, err := os.ReadFile(stderr.Name())
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Signal(unix.SIGTERM)
				select {
				case <-ended:
				case <-time.After(patience):
					_ = cmd.Process.Kill()
					t.Errorf("the daemon has not ended after %v", patience)
				}
				if t.Failed() {
					t.Logf("messages of the daemon:\n%s", messages())
				}
			})
			answers := func() bool {
				if len(ended) > 0 {
					t.Fatalf("the daemon has ended: %s", messages())
				}
				if c.ask != nil {
					ask := exec.Command(built("bin", c.ask[0]), c.ask[1:]...)
					ask.Env = cmd.Env
					return ask.Run() == nil
				}
				client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, c.network, socket)
				}}}
				answer, err := client.Get("http://daemon/healthz")
				if err != nil {
					return false
				}
				_ = answer.Body.Close()
				return answer.StatusCode == http.StatusOK
			}
			eventually(t, "the daemon answers", answers)

			open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			few := unix.Rlimit{Cur: uint64(len(open)) + 4, Max: uint64(len(open)) + 4}
			if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
				t.Fatal(err)
			}
			var callers []net.Conn
			defer func() {
				for _, caller := range callers {
					_ = caller.Close()
				}
			}()
			for range 16 {
				caller, err := net.Dial(c.network, socket)
				if err != nil {
					t.Fatal(err)
				}
				callers = append(callers, caller)
			}
			eventually(t, "the daemon reports a shortage of descriptors", func() bool { return strings.Contains(messages(), "cannot accept") })
			used, began := processorTime(t, cmd.Process.Pid), time.Now()
			for time.Since(began) < 2*time.Second {
				if stat, err := procfs.Read(cmd.Process.Pid); err != nil || stat.Exited() {
					t.Fatalf("the daemon has ended: %s", messages())
				}
				time.Sleep(50 * time.Millisecond)
			}
			if used, elapsed := processorTime(t, cmd.Process.Pid)-used, time.Since(began); used > elapsed/2 {
				t.Errorf("processor time without descriptors: got %v in %v, want at most half", used, elapsed)
			}
			if n := strings.Count(messages(), "cannot accept") + strings.Count(messages(), "Accept error"); n != 1 {
				t.Errorf("messages about the shortage: got %d, want 1", n)
			}
			for _, caller := range callers {
				_ = caller.Close()
			}
			callers = nil
			eventually(t, "the daemon answers with free descriptors", answers)
		})
	}
}
