package simtest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait. No result depends on how long a wait takes.
const patience = 60 * time.Second

// build returns the folder that make builds into.
func build(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("GFAAS_BUILD")
	if dir == "" {
		dir = "../../../build"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "lib/sim/libcuda.so.1")); err != nil {
		t.Fatalf("simulated driver: %v: run make first", err)
	}
	return dir
}

// host is a simulated machine: a directory that its processes share.
type host struct {
	t     testing.TB
	dir   string
	build string
	shape string
}

func newHost(t testing.TB, shape string) *host {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gfaas-simtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &host{t: t, dir: dir, build: build(t), shape: shape}
}

// command returns a conformance program on this host, with an SM share in percent or,
// with "", without one.
func (h *host) command(share, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(h.build, "check", program), args...)
	for _, kv := range os.Environ() {
		key, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(key, "GFAAS_") && !strings.HasPrefix(key, "CUDA_") && key != "LD_PRELOAD" {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Join(h.build, "lib/sim"),
		"GFAAS_SIM_DIR="+h.dir, "GFAAS_SIM_GPU="+h.shape, "GFAAS_SIM_NOTED=1")
	if share != "" {
		cmd.Env = append(cmd.Env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+share)
	}
	cmd.Stderr = os.Stderr
	return cmd
}

// run runs a command to its end and returns its output. A command that does not end is
// killed, and the error lists the system calls that its threads were in; likewise if
// its standard output stays open after its end.
func run(cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		return "", err
	}
	stuck := make(chan string, 1)
	timer := time.AfterFunc(2*patience, func() {
		stuck <- threads(cmd.Process.Pid)
		cmd.Process.Kill()
	})
	err := cmd.Wait()
	if !timer.Stop() {
		err = fmt.Errorf("%s did not end within %v:\n%s", cmd.Path, 2*patience, <-stuck)
	}
	return out.String(), err
}

// threads describes the current system call of each thread of a process and of its
// children.
func threads(pid int) string {
	var b strings.Builder
	dirs, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range dirs {
		read := func(name string) string {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			return strings.TrimSpace(string(text))
		}
		fmt.Fprintf(&b, "thread %s of %d: %s, system call %s, in %s\n", filepath.Base(dir), pid, read("comm"), read("syscall"), read("wchan"))
		for child := range strings.FieldsSeq(read("children")) {
			if id, err := strconv.Atoi(child); err == nil {
				b.WriteString(threads(id))
			}
		}
	}
	return b.String()
}

// sharedFiles lists the files in the shared directory.
func (h *host) sharedFiles() []string {
	h.t.Helper()
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// process is a running program, usually several.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string
}

func (h *host) start(share string, args ...string) *process {
	h.t.Helper()
	return startCommand(h.t, h.command(share, "several", args...))
}

func startCommand(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, stdin: stdin, lines: make(chan string, 1<<16)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return p
}

// line returns the next line that the process prints.
func (p *process) line() string {
	p.t.Helper()
	select {
	case l, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the program ended, want another line")
		}
		return l
	case <-time.After(patience):
		p.t.Fatalf("the program printed nothing for %v, want another line", patience)
	}
	return ""
}

func (p *process) expect(want string) {
	p.t.Helper()
	if got := p.line(); got != want {
		p.t.Fatalf("line of the program: got %q, want %q", got, want)
	}
}

// skip discards the lines printed until now.
func (p *process) skip() {
	for {
		select {
		case _, ok := <-p.lines:
			if !ok {
				return
			}
		default:
			return
		}
	}
}

// batch returns the time of one batch of a burning process, and the free memory after
// it.
func (p *process) batch() (ms float64, free uint64) {
	p.t.Helper()
	l := p.line()
	if _, err := fmt.Sscanf(l, "batch %f %d", &ms, &free); err != nil {
		p.t.Fatalf("parse the line %q of a burning process: %v", l, err)
	}
	return ms, free
}

// mean skips the batches that have already begun (three are in flight) and returns the
// mean time of the following n.
func (p *process) mean(n int) float64 {
	p.t.Helper()
	p.skip()
	for range 4 {
		p.batch()
	}
	var sum float64
	for range n {
		ms, _ := p.batch()
		sum += ms
	}
	return sum / float64(n)
}

// end closes the standard input of the process and checks that it ends successfully.
func (p *process) end() {
	p.t.Helper()
	p.stdin.Close()
	done := make(chan error, 1)
	go func() {
		for range p.lines {
		}
		done <- p.cmd.Wait()
	}()
	select {
	case err := <-done:
		if err != nil {
			p.t.Fatal(err)
		}
	case <-time.After(patience):
		p.t.Fatalf("the program runs %v after its standard input was closed, want its end", patience)
	}
}

// kill ends the process without giving it a chance to clean up.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	p.cmd.Wait()
}
