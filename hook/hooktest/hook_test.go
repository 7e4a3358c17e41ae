// Package hooktest runs programs of the CUDA driver API under the preload
// library and a real token daemon, on the simulated driver.
package hooktest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// patience bounds every wait: it is generous, since nothing here is decided by
// how long something took.
const patience = 60 * time.Second

// build is the folder that make builds into.
var build = func() string {
	dir, err := filepath.Abs("../../build")
	if err != nil {
		panic(err)
	}
	return dir
}()

// host is a token daemon with a run directory and a simulated device of its own.
type host struct {
	t      testing.TB
	runDir string
	client *tokend.Client
	daemon *exec.Cmd
}

func newHost(t testing.TB) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "gf") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, runDir: dir, client: tokend.Dial(dir)}
	t.Cleanup(func() { h.kill(); os.RemoveAll(dir) })
	return h
}

func (h *host) start() {
	h.t.Helper()
	h.daemon = exec.Command(filepath.Join(build, "bin/gfaas-tokend"))
	h.daemon.Env = append(os.Environ(), "GFAAS_RUN_DIR="+h.runDir)
	if _, benchmark := h.t.(*testing.B); !benchmark {
		h.daemon.Stderr = &logged{h.t, "tokend"}
	}
	if err := h.daemon.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.eventually("the daemon answers", func() bool {
		_, err := h.client.Status(context.Background())
		return err == nil
	})
}

// kill ends the daemon as a crash would.
func (h *host) kill() {
	if h.daemon != nil {
		h.daemon.Process.Kill()
		h.daemon.Wait()
		h.daemon = nil
	}
}

func (h *host) eventually(what string, ok func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	h.t.Fatalf("waited %v in vain: %s", patience, what)
}

// slice is a whole GPU.
var whole = gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1}

// register makes an instance known and returns the environment of its
// processes.
func (h *host) register(id string, s gpu.Slice) []string {
	h.t.Helper()
	secret := preload.NewSecret()
	err := h.client.Register(context.Background(), wire.Registration{
		Instance: id, Function: id, Secret: secret, GPU: "sim",
		SMPct: s.SMPct, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit, MemLimit: s.Mem,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.environ(id, secret, s)
}

func (h *host) environ(id, secret string, s gpu.Slice) []string {
	h.t.Helper()
	set, err := preload.Environ(preload.Grant{
		Socket: filepath.Join(tokend.ClientSocketDir(h.runDir), "token.sock"), Instance: id, Secret: secret,
		GPU: []string{"sim"}, SMPct: s.SMPct,
		Libs: preload.Libs{Hook: filepath.Join(build, "lib/libgfaas.so"), SimDir: filepath.Join(build, "lib/sim")},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	env := append(os.Environ(), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim"))
	for k, v := range set {
		env = append(env, k+"="+v)
	}
	return env
}

// client is the row of an instance's process in the daemon's status.
func (h *host) row(id string) (wire.ClientStatus, bool) {
	status, err := h.client.Status(context.Background())
	if err != nil {
		return wire.ClientStatus{}, false
	}
	for _, g := range status.GPUs {
		for _, c := range g.Clients {
			if c.Instance == id && c.PID != 0 {
				return c, true
			}
		}
	}
	return wire.ClientStatus{}, false
}

// program is a running check program.
type program struct {
	cmd         *exec.Cmd
	in          io.WriteCloser
	out, errout safeBuffer
}

func (h *host) run(env []string, name string, args ...string) *program {
	h.t.Helper()
	p := &program{cmd: exec.Command(filepath.Join(build, name), args...)}
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errout
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
	return p
}

func (p *program) wait() error {
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, p.errout.String())
	}
	return nil
}

// TestRoutes proves of every way to find a launch function and every launch
// function that the library is in between and the answer is still right.
func TestRoutes(t *testing.T) {
	const count = 7
	h := newHost(t)
	h.start()
	for _, way := range []string{"link", "dlsym", "default", "next", "proc", "proc2", "proc-of-proc"} {
		for _, call := range []string{
			"kernel", "kernel-thread", "extra", "ex", "ex-thread", "cooperative", "cooperative-thread", "grid", "grid-async", "launch",
		} {
			if call == "launch" {
				continue // one block: it cannot cover the array
			}
			t.Run(way+"/"+call, func(t *testing.T) {
				h := &host{t: t, runDir: h.runDir, client: h.client}
				id := way + "." + call
				p := h.run(h.register(id, whole), "check/route", way, call, fmt.Sprint(count))
				h.eventually("the program is done", func() bool { return strings.Contains(p.out.String(), "ok") || p.cmd.ProcessState != nil })
				h.eventually("every launch is counted", func() bool {
					row, ok := h.row(id)
					return ok && row.Launches == count
				})
				if err := p.wait(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestStall kills the daemon under a running program: the program stalls, says
// so once, and goes on when the daemon is back, which knows its instance still.
func TestStall(t *testing.T) {
	h := newHost(t)
	h.start()
	env := h.register("stall", whole)
	h.kill()
	p := h.run(env, "check/route", "link", "kernel", "3")
	h.eventually("it says that it waits", func() bool { return strings.Contains(p.errout.String(), "no gfaas-tokend") })
	if p.out.String() != "" {
		t.Errorf("without a daemon it went on: %s", p.out.String())
	}
	h.start()
	h.eventually("it goes on", func() bool { return strings.Contains(p.out.String(), "ok") })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(p.errout.String(), "\n"); n != 1 {
		t.Errorf("it said %d lines, not one:\n%s", n, p.errout.String())
	}
}

// TestRefused shows a wrong secret to the daemon.
func TestRefused(t *testing.T) {
	h := newHost(t)
	h.start()
	h.register("refused", whole)
	p := h.run(h.environ("refused", preload.NewSecret(), whole), "check/route", "link", "kernel", "1")
	h.eventually("it says that it is refused", func() bool { return strings.Contains(p.errout.String(), "refuses") })
	if _, ok := h.row("refused"); ok || p.out.String() != "" {
		t.Errorf("it was let in: %s", p.out.String())
	}
}

// TestMemoryLimit fills an instance's memory from one process and from four at
// once.
func TestMemoryLimit(t *testing.T) {
	h := newHost(t)
	h.start()
	for _, processes := range []int{1, 4} {
		id := fmt.Sprintf("memory%d", processes)
		slice := whole
		slice.Mem = 256 * gpu.MiB
		p := h.run(h.register(id, slice), "check/memory", "16", fmt.Sprint(processes))
		if err := p.wait(); err != nil {
			t.Fatal(err)
		}
		sum, lines := 0, strings.Split(strings.TrimSpace(p.out.String()), "\n")
		for _, line := range lines {
			var got, total int
			if _, err := fmt.Sscanf(line, "%d of %d MiB", &got, &total); err != nil || total != 256 {
				t.Errorf("%q: %v; want a total of 256 MiB", line, err)
			}
			sum += got
		}
		// Two that race for the last bytes may both be refused: never more than
		// the limit, and at most a piece a process less.
		if sum > 256 || sum < 256-16*(processes-1) || len(lines) != processes {
			t.Errorf("%d processes got %d MiB together, of 256:\n%s", processes, sum, p.out.String())
		}
	}
}

// BenchmarkLaunch compares a launch with and without the library while a lease
// is held. The least of many bursts is what the library itself costs; runs with
// and without it take turns.
func BenchmarkLaunch(b *testing.B) {
	h := newHost(b)
	h.start()
	with := h.register("cost", whole)
	without := append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim"))
	least := map[bool]float64{true: 1e9, false: 1e9}
	for range b.N {
		for _, hooked := range []bool{true, false} {
			env := without
			if hooked {
				env = with
			}
			p := h.run(env, "check/cost", "500")
			if err := p.wait(); err != nil {
				b.Fatal(err)
			}
			var ns float64
			if _, err := fmt.Sscan(p.out.String(), &ns); err != nil {
				b.Fatal(err)
			}
			least[hooked] = min(least[hooked], ns)
		}
	}
	b.ReportMetric(least[false], "ns/launch-bare")
	b.ReportMetric(least[true]-least[false], "ns/launch-added")
}

// logged passes lines to the test's log.
type logged struct {
	t    testing.TB
	name string
}

func (l *logged) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l.t.Logf("%s: %s", l.name, strings.TrimSpace(line))
	}
	return len(p), nil
}

// safeBuffer is a buffer that one goroutine fills while another looks.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
