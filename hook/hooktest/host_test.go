// Package hooktest runs programs of the CUDA driver API under the preload library and a
// real token daemon, on the simulated driver.
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
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// patience bounds every wait. It is generous, because no test depends on how long an
// operation takes.
const patience = 60 * time.Second

// build is the folder that make builds into.
var build = func() string {
	dir, err := filepath.Abs("../../build")
	if err != nil {
		panic(err)
	}
	return dir
}()

// host is a token daemon with its own run directory and simulated device.
type host struct {
	t        testing.TB
	runDir   string
	flags    []string // of the daemon
	client   *tokend.Client
	daemon   *exec.Cmd
	ran      []*program
	priority bool // the daemon and programs get priority over all other processes

	settings []string // in the environment of the daemon and of programs
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
	h.daemon = exec.Command(filepath.Join(build, "bin/gfaas-tokend"), h.flags...)
	h.daemon.Env = h.daemonEnv()
	if _, benchmark := h.t.(*testing.B); !benchmark {
		h.daemon.Stderr = &logged{h.t, "tokend"}
	}
	if err := h.startCommand(h.daemon); err != nil {
		h.t.Fatal(err)
	}
	h.eventually("the daemon answers", func() bool {
		_, err := h.client.Status(context.Background())
		return err == nil
	})
}

// daemonEnv returns the environment of daemons. With simulated GPUs of its own, a daemon claims them whatever other
// tests run.
func (h *host) daemonEnv() []string {
	return append(append(os.Environ(), "GFAAS_RUN_DIR="+h.runDir, "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim")), h.settings...)
}

func (h *host) startCommand(cmd *exec.Cmd) error {
	if h.priority {
		return tokentest.StartWithPriority(cmd)
	}
	return cmd.Start()
}

// kill ends the daemon as a crash would.
func (h *host) kill() {
	if h.daemon != nil {
		h.daemon.Process.Kill()
		h.daemon.Wait()
		h.daemon = nil
	}
}

func (h *host) eventually(condition string, ok func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	h.t.Fatalf("timed out after %v waiting for: %s", patience, condition)
}

// whole is the slice of a whole GPU.
var whole = gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1}

// register registers an instance and returns the environment of its processes.
func (h *host) register(id string, s gpu.Slice) []string {
	h.t.Helper()
	secret := preload.NewSecret()
	_, err := h.client.Register(context.Background(), wire.Registration{
		Instance: id, Function: id, Secret: secret,
		Allocation: wire.Allocation{GPU: "sim", SMPct: s.SMPct, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit, MemLimit: s.Mem},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.environ(id, secret, s)
}

// registerTwo registers an instance that has the slice on each of two GPUs.
func (h *host) registerTwo(id string, s gpu.Slice) []string {
	h.t.Helper()
	first := wire.Allocation{GPU: "sim", SMPct: s.SMPct, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit, MemLimit: s.Mem}
	second := first
	second.GPU = "sim:1"
	r := wire.Registration{Instance: id, Function: id, Secret: preload.NewSecret(), Allocation: first, More: []wire.Allocation{second}}
	if _, err := h.client.Register(context.Background(), r); err != nil {
		h.t.Fatal(err)
	}
	return append(h.environ(id, r.Secret, s, "sim:1"), "GFAAS_SIM_GPU=count=2")
}

// environ returns the environment of an instance's processes. more lists its GPUs after
// the first.
func (h *host) environ(id, secret string, s gpu.Slice, more ...string) []string {
	h.t.Helper()
	set, err := preload.Environ(preload.Grant{
		Socket: filepath.Join(tokend.ClientSocketDir(h.runDir), "token.sock"), Instance: id, Secret: secret,
		GPU: append([]string{"sim"}, more...), SMPct: s.SMPct,
		Libs: preload.Libs{Hook: filepath.Join(build, "lib/libgfaas.so"), SimDir: filepath.Join(build, "lib/sim")},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	env := append(append(os.Environ(), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim")), h.settings...)
	for k, v := range set {
		env = append(env, k+"="+v)
	}
	return env
}

// status returns the daemon's status, or an empty one if the daemon does not answer.
func (h *host) status() wire.Status {
	status, err := h.client.Status(context.Background())
	if err != nil {
		return wire.Status{}
	}
	return status
}

// rows returns the connected processes in the daemon's status.
func (h *host) rows() []wire.ClientStatus {
	var out []wire.ClientStatus
	for _, g := range h.status().GPUs {
		for _, c := range g.Clients {
			if c.PID != 0 {
				out = append(out, c)
			}
		}
	}
	return out
}

// row returns the first of an instance's processes in the daemon's status.
func (h *host) row(id string) (wire.ClientStatus, bool) {
	for _, c := range h.rows() {
		if c.Instance == id {
			return c, true
		}
	}
	return wire.ClientStatus{}, false
}

// within returns the host for use in a subtest.
func (h *host) within(t *testing.T) *host {
	return &host{t: t, runDir: h.runDir, client: h.client, settings: h.settings}
}

// program is a running check program.
type program struct {
	cmd         *exec.Cmd
	in          io.WriteCloser
	ended       chan error // holds the exit error once the program has ended
	out, errout safeBuffer
}

func (h *host) run(env []string, name string, args ...string) *program {
	h.t.Helper()
	return h.launch(exec.Command(filepath.Join(build, name), args...), env)
}

// launch starts a command in a process group that ends with the test.
func (h *host) launch(cmd *exec.Cmd, env []string) *program {
	h.t.Helper()
	p := &program{cmd: cmd, ended: make(chan error, 1)}
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = &p.out, &p.errout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = patience
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	if err := h.startCommand(cmd); err != nil {
		h.t.Fatal(err)
	}
	go func() { p.ended <- cmd.Wait() }()
	h.ran = append(h.ran, p)
	h.t.Cleanup(p.kill)
	return p
}

// kill ends the program and its children at once, as kill -9 does. If the program has ended, another process may have
// its PID by now, and lead another process group: kill spares that group.
func (p *program) kill() {
	pid := p.cmd.Process.Pid
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil || !p.exited() {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	p.ended <- <-p.ended
}

// exited reports whether the program has ended.
func (p *program) exited() bool { return len(p.ended) > 0 }

// alive fails the test if the program has ended.
func (h *host) alive(p *program, id string) {
	h.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		h.t.Fatalf("program %s ended with %v, want it to run: %s", id, err, p.errout.String())
	default:
	}
}

func (p *program) wait() error {
	p.in.Close()
	err := <-p.ended
	p.ended <- err
	if err != nil {
		return fmt.Errorf("%w: %s", err, p.errout.String())
	}
	return nil
}

// logged writes lines to the test's log.
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

// safeBuffer is a buffer that one goroutine fills while another reads.
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
