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

// build returns the folder of make's output: GFAAS_BUILD, or build in the source tree.
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
		t.Fatalf("cannot find the simulated driver: %v; run make first", err)
	}
	return dir
}

// host is a node with simulated GPUs. Its processes share the state of the GPUs.
type host struct {
	t     testing.TB
	dir   string // of the shared state (GFAAS_SIM_DIR)
	build string
	shape string // the GPUs, as in GFAAS_SIM_GPU
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

// command returns the command that runs a program of hook/check or hook/sim/check on
// this host. share is the program's SM share in percent; "" sets no share.
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

// run runs a command to its end and returns its output. After 2*patience, run kills the
// command, and the error lists the system calls in which its threads were. If the
// command has ended, but another process keeps its standard output open for longer than
// patience, the error is exec.ErrWaitDelay.
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

// threads returns one line for each thread of a process and of its descendants, with the
// thread's current system call and the kernel function in which it waits.
func threads(pid int) string {
	var b strings.Builder
	dirs, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range dirs {
		read := func(name string) string {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			return strings.TrimSpace(string(text))
		}
		fmt.Fprintf(&b, "thread %s of process %d: %s, system call %s, in %s\n", filepath.Base(dir), pid, read("comm"), read("syscall"), read("wchan"))
		for child := range strings.FieldsSeq(read("children")) {
			if id, err := strconv.Atoi(child); err == nil {
				b.WriteString(threads(id))
			}
		}
	}
	return b.String()
}

// sharedFiles returns the names of the files in the host's directory.
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

// process is a running program. Usually it is hook/sim/check/several.c, which is
// written to run in several processes at once.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string // of its standard output; closed at the end of the output
}

// start starts the program several with the arguments. For share, see command.
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

// skip discards the lines that have been received but not yet returned by line.
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

// batch reads the next line of "several burn" or "several graphs". It returns the time
// that the batch of kernels took, and the free GPU memory.
func (p *process) batch() (ms float64, free uint64) {
	p.t.Helper()
	l := p.line()
	if _, err := fmt.Sscanf(l, "batch %f %d", &ms, &free); err != nil {
		p.t.Fatalf("line of the program: got %q, want a batch: %v", l, err)
	}
	return ms, free
}

// mean returns the mean time of n batches that are launched after the call. So it
// first skips those launched earlier: up to three are in flight, and the line of a
// fourth may be printed but not yet received.
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
			p.t.Fatalf("end of the program: got the error %v, want none", err)
		}
	case <-time.After(patience):
		p.t.Fatalf("the program still runs %v after its standard input was closed, want it to end", patience)
	}
}

// kill sends SIGKILL to the process, which then cannot clean up, and waits for its end.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	p.cmd.Wait()
}
