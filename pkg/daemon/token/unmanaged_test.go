package token

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Roles of processes with or without the preload library.
const (
	// roleMapper maps the files of pathEnv and then executes the commands on its standard input,
	// one per line: "map FILE", "exec FILES".
	roleMapper = "mapper"
	// roleLauncher starts another process with a separate environment. The first word of pathEnv
	// is the method; the rest is the pathEnv of the other process.
	roleLauncher = "launcher"
)

func init() {
	roles[roleMapper], roles[roleLauncher] = playMapper, playLauncher
}

// mapFile maps a file for as long as the process lives.
func mapFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	return err
}

func playMapper(paths string) error {
	for path := range strings.FieldsSeq(paths) {
		if err := mapFile(path); err != nil {
			return err
		}
	}
	fmt.Println(os.Getpid())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "map":
			if err := mapFile(rest); err != nil {
				return err
			}
			fmt.Println(os.Getpid())
		case "exec":
			return syscall.Exec("/proc/self/exe", os.Args[:1], envOutside(roleMapper, rest))
		}
	}
	return nil
}

// envOutside returns an environment without variables of the instance.
func envOutside(role, path string) []string {
	return []string{roleEnv + "=" + role, pathEnv + "=" + path}
}

func playLauncher(how string) error {
	how, path, _ := strings.Cut(how, " ")
	attr := &syscall.ProcAttr{Env: envOutside(roleMapper, path), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{}}
	switch how {
	case "twice": // the intermediate process ends at once
		attr.Env, attr.Sys.Setsid = envOutside(roleLauncher, "leaves "+path), true
	case "setsid":
		attr.Sys.Setsid = true
	}
	pid, err := syscall.ForkExec("/proc/self/exe", os.Args[:1], attr)
	if err != nil || how == "leaves" {
		return err
	}
	_, err = syscall.Wait4(pid, nil, 0, nil)
	if how == "twice" {
		_, _ = io.Copy(io.Discard, os.Stdin) // discards the remaining input
	}
	return err
}

// puppet is a process under the control of a test, with the processes that it has started.
type puppet struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// puppet starts the test binary in a role with additional environment variables.
func (s *server) puppet(t *testing.T, role, path string, env ...string) *puppet {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args[:1]
	return puppetOf(t, cmd, append(append(os.Environ(), env...), envOutside(role, path)...))
}

func puppetOf(t *testing.T, cmd *exec.Cmd, env []string) *puppet {
	t.Helper()
	cmd.Env, cmd.Stderr = env, os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatalf("open pipes to the process: %v, %v", err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &puppet{t, cmd, in, bufio.NewReader(out)}
}

// readPID reads the PID of the process that has executed a command.
func (p *puppet) readPID() int {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	pid, failed := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || failed != nil {
		p.t.Fatalf("read the PID that the process prints: got %q, %v", line, err)
	}
	p.t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return pid
}

// kill kills the first process. The processes that it has started continue.
func (p *puppet) kill() {
	_ = p.cmd.Process.Kill()
	_, _ = p.cmd.Process.Wait() // Wait of the command would close its pipes
}

func (p *puppet) command(command string) int {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatal(err)
	}
	return p.readPID()
}

// inSlice returns the environment of a process of an instance.
func (s *server) inSlice(id string) []string {
	return []string{"GFAAS_INSTANCE=" + id, "GFAAS_SOCKET=" + s.clientSocket(), "GFAAS_SECRET=secret of " + id}
}

// unmanaged returns the instances of the unmanaged processes in the status, by PID.
func (s *server) unmanaged() map[int]string {
	out := map[int]string{}
	for _, g := range s.status().GPUs {
		for _, c := range g.Clients {
			if c.State == wire.StateUnmanaged {
				out[c.PID] = c.Instance
			}
		}
	}
	return out
}

// files creates files with these names that processes can map, and returns their paths.
func files(t *testing.T, names ...string) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, os.Getpagesize()), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// TestUnmanaged checks that a process of an instance that has mapped the driver but not the library
// is found, in whatever way it has lost the library, and that no other process is found.
func TestUnmanaged(t *testing.T) {
	lib := files(t, "libcuda.so.1", "libgfaas.so", "libnvidia-ml.so.1", "libcuda.so.550.54.15", "libcudart.so.12")
	driver, hook, nvml, versioned, runtime := lib[0], lib[1], lib[2], lib[3], lib[4]
	for name, c := range map[string]struct {
		role, path string
		outside    bool // it does not start in the instance
		then       string
		want       bool
	}{
		"with an environment of its own":              {roleLauncher, "plain " + driver, false, "", true},
		"with a session of its own":                   {roleLauncher, "setsid " + driver, false, "", true},
		"a driver with a version in its name":         {roleMapper, versioned, false, "", true},
		"begins in the instance, without the library": {roleMapper, driver, false, "", true},
		"with the library":                            {roleMapper, hook + " " + driver, false, "", false},
		"the driver after the library":                {roleMapper, hook, false, "map " + driver, false},
		"maps the driver later":                       {roleLauncher, "plain", false, "map " + driver, true},
		"executes another program":                    {roleMapper, hook + " " + driver, false, "exec " + driver, true},
		"executes another program without the driver": {roleMapper, hook + " " + driver, false, "exec " + nvml, false},
		"NVML alone":               {roleLauncher, "plain " + nvml, false, "", false},
		"the runtime alone":        {roleLauncher, "plain " + runtime, false, "", false},
		"outside of all instances": {roleLauncher, "plain " + driver, true, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, Config{})
			s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
			s.register(reg("b", share{sm: 40, request: 1, limit: 1}))
			env := s.inSlice("a")
			if c.outside {
				env = nil
			}
			p := s.puppet(t, c.role, c.path, env...)
			pid := p.readPID()
			s.d.unmanaged.takeCensus()
			if c.then != "" {
				if got := s.unmanaged(); len(got) != 0 {
					t.Errorf("unmanaged processes before: got %v, want none", got)
				}
				pid = p.command(c.then)
				s.d.unmanaged.takeCensus()
			}
			got := s.unmanaged()
			if want := map[int]string{pid: "a"}; c.want && fmt.Sprint(got) != fmt.Sprint(want) || !c.want && len(got) != 0 {
				t.Errorf("unmanaged processes: got %v, want process %d of a among them: %v", got, pid, c.want)
			}
			_ = unix.Kill(pid, unix.SIGKILL)
			eventually(t, "the status shows no unmanaged process", func() bool { s.d.unmanaged.takeCensus(); return len(s.unmanaged()) == 0 })
			if strays := s.row("a").UnmanagedPrograms; c.want != strings.HasPrefix(strays, "1 outside the slice, without the preload library (last: /") {
				t.Errorf("unmanaged programs in the status of a: got %q, want one: %v", strays, c.want)
			}
		})
	}
}

// TestUnmanagedOrphans checks that a member of an instance remains a member when its parent, or all
// of its ancestors, end. Processes of an owner are members from their start.
func TestUnmanagedOrphans(t *testing.T) {
	driver := files(t, "libcuda.so.1")[0]
	for name, c := range map[string]struct {
		path  string
		owner bool // this process is the instance's owner
	}{
		"its parent ends":         {"setsid " + driver, false},
		"of an owner":             {"plain " + driver, true},
		"twice away, of an owner": {"twice " + driver, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // as gfaas run does
				t.Fatal(err)
			}
			defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
			daemon, _ := serveApart(t, filepath.Join(runDir(t), "token.sock"))
			r := reg("a", share{sm: 60, request: 1, limit: 1})
			env := daemon.inSlice("a")
			if c.owner {
				r.OwnerPID, env = os.Getpid(), nil
			}
			daemon.register(r)
			p := daemon.puppet(t, roleLauncher, c.path, env...)
			pid := p.readPID()
			eventually(t, "the process is found as one of a", func() bool { return daemon.unmanaged()[pid] == "a" })
			p.kill()
			if code, text := daemon.do(http.MethodGet, "/v1/instances/a/unmanaged?wait=0", ""); code != http.StatusOK { // wait=0 takes a census
				t.Errorf("GET unmanaged of a: got %d %s, want 200", code, text)
			}
			if got := daemon.unmanaged(); got[pid] != "a" || !procfs.Alive(pid) {
				t.Errorf("unmanaged processes after the parent has ended: got %v, want process %d of a, running", got, pid)
			}
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, 0, nil) // this process is its parent by now
			eventually(t, "the status shows no unmanaged process", func() bool { return len(daemon.unmanaged()) == 0 })
		})
	}
}

// TestUnmanagedIsStopped checks that unmanaged processes are killed only in an instance whose
// registration asks for it, and that each is reported once.
func TestUnmanagedIsStopped(t *testing.T) {
	lib := files(t, "libcuda.so.1", "libgfaas.so")
	var log syncBuffer
	s := serve(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	r := reg("a", share{sm: 60, request: 1, limit: 1})
	r.StopUnmanaged = true
	s.register(r)
	s.register(reg("b", share{sm: 40, request: 1, limit: 1}))
	managed := s.puppet(t, roleMapper, strings.Join(lib, " "), s.inSlice("a")...)
	managed.readPID()
	other := s.puppet(t, roleLauncher, "plain "+lib[0], s.inSlice("b")...)
	otherPID := other.readPID()
	pid := s.puppet(t, roleLauncher, "plain "+lib[0], s.inSlice("a")...).readPID()
	for range 3 {
		s.d.unmanaged.takeCensus()
	}
	eventually(t, "the unmanaged process of a has ended", func() bool { return !procfs.Alive(pid) })
	s.d.unmanaged.takeCensus()
	if !procfs.Alive(managed.cmd.Process.Pid) || !procfs.Alive(otherPID) {
		t.Error("other processes: got one of them stopped, want both running")
	}
	for id, want := range map[string]wire.Unmanaged{
		"a": {PID: pid, Stopped: true}, "b": {PID: otherPID},
	} {
		list := s.watch(id, 0)
		if len(list.Found) != 1 || list.Next != 1 || list.Found[0].PID != want.PID || list.Found[0].Stopped != want.Stopped || !filepath.IsAbs(list.Found[0].Program) {
			t.Errorf("unmanaged processes of %s: got %+v, want process %d, stopped %v, with its path", id, list, want.PID, want.Stopped)
		}
		if n := strings.Count(log.String(), fmt.Sprintf("instance=%s pid=%d", id, want.PID)); n != 1 {
			t.Errorf("log lines about %s: got %d, want 1:\n%s", id, n, log.String())
		}
	}
	if code, text := s.do(http.MethodGet, "/v1/instances/a/unmanaged?after=1&wait=0", ""); code != http.StatusOK || text != `{"found":[],"next":1}`+"\n" {
		t.Errorf("further unmanaged processes of a: got %d %s, want 200 and an empty list", code, text)
	}
	if code, _ := s.do(http.MethodGet, "/v1/instances/none/unmanaged", ""); code != http.StatusNotFound {
		t.Errorf("unmanaged processes of an unknown instance: got %d, want %v", code, http.StatusNotFound)
	}
	if code, _ := s.do(http.MethodGet, "/v1/instances/a/unmanaged?after=-1", ""); code != http.StatusBadRequest {
		t.Errorf("unmanaged processes after -1: got %d, want %v", code, http.StatusBadRequest)
	}
}

// watch requests the unmanaged processes found after the first n.
func (s *server) watch(id string, n int) (list wire.UnmanagedList) {
	s.t.Helper()
	code, text := s.do(http.MethodGet, fmt.Sprintf("/v1/instances/%s/unmanaged?after=%d", id, n), "")
	if err := json.Unmarshal([]byte(text), &list); code != http.StatusOK || err != nil {
		s.t.Errorf("GET unmanaged of %s: got %d %s, %v; want 200 and a list", id, code, text, err)
	}
	return list
}

// TestWatchUnmanaged checks that a waiting request is answered when a process is found, and at once
// when the daemon shuts down.
func TestWatchUnmanaged(t *testing.T) {
	driver := files(t, "libcuda.so.1")[0]
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	answers := make(chan wire.UnmanagedList, 1)
	go func() {
		list := wire.UnmanagedList{}
		for len(list.Found) == 0 {
			list = s.watch("a", 7) // a count of an earlier daemon
		}
		answers <- list
	}()
	pid := s.puppet(t, roleLauncher, "plain "+driver, s.inSlice("a")...).readPID()
	if list := <-answers; len(list.Found) != 1 || list.Found[0].PID != pid {
		t.Errorf("answer to the waiting request: got %+v, want process %d", list, pid)
	}
	answer := make(chan int, 1)
	go func() {
		code, _ := s.do(http.MethodGet, "/v1/instances/a/unmanaged?after=1", "")
		answer <- code
	}()
	eventually(t, "the request waits at the daemon", func() (waits bool) {
		_ = s.d.locked(func() { waits = s.d.registry.instances["a"].unmanagedFound != nil })
		return waits
	})
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if code := <-answer; code != http.StatusServiceUnavailable {
		t.Errorf("waiting request at the daemon's end: got %d, want %v", code, http.StatusServiceUnavailable)
	}
}

// TestUnmanagedIsLogged checks that an instance without an owner has the line in its own log: on the
// standard error of its first process, if that is the pipe of a log.
func TestUnmanagedIsLogged(t *testing.T) {
	driver := files(t, "libcuda.so.1")[0]
	for name, c := range map[string]struct{ same, leads bool }{
		"a log":           {true, true},
		"two pipes":       {false, true},
		"not a session's": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, Config{})
			s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			cmd := exec.Command("/proc/self/exe")
			cmd.Args = os.Args[:1]
			cmd.Env = append(append(os.Environ(), s.inSlice("a")...), envOutside(roleLauncher, "plain "+driver)...)
			cmd.Stdout, cmd.Stderr = w, w
			if !c.same {
				cmd.Stderr = os.Stderr
			}
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: c.leads}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = w.Close()
			log := bufio.NewReader(r)
			p := &puppet{t, cmd, in, log}
			pid := p.readPID()
			s.d.unmanaged.takeCensus()
			if s.unmanaged()[pid] != "a" {
				t.Fatalf("unmanaged processes: got %v, want process %d of a", s.unmanaged(), pid)
			}
			_, _ = unix.Kill(pid, unix.SIGKILL), in.Close()
			_ = cmd.Wait()
			rest, err := io.ReadAll(log)
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("gfaas: process %d (", pid)
			if !c.same || !c.leads {
				if len(rest) != 0 {
					t.Errorf("log of the instance: got %q, want nothing", rest)
				}
				return
			}
			if !bytes.HasPrefix(rest, []byte(want)) || bytes.Count(rest, []byte("\n")) != 1 {
				t.Errorf("log of the instance: got %q, want one line that begins with %q", rest, want)
			}
		})
	}
}

// TestUnmanagedByTheDriver checks that a process that cannot be examined is found if the driver
// reports it, and that its memory is shown.
func TestUnmanagedByTheDriver(t *testing.T) {
	for name, c := range map[string]struct {
		seen sighting
		on   bool
		want usage
	}{
		"ended, not on the GPU": {sighting{}, false, unknown},
		"ended, on the GPU":     {sighting{}, true, driverOnly},
		"has the library":       {sighting{usage: managed}, true, managed},
	} {
		if got := c.seen.updateUsage(procfs.Stat{PID: 1 << 30, Size: 1}, c.on); got != c.want {
			t.Errorf("usage when the process %s: got %v, want %v", name, got, c.want)
		}
	}
	driver := files(t, "libcuda.so.1")[0]
	pids := make(chan int, 1)
	s := serve(t, Config{Memory: func(string) (map[int]gpu.Bytes, error) {
		pid := <-pids
		pids <- pid
		return map[int]gpu.Bytes{pid: 300 * gpu.MiB}, nil
	}})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	pid := s.puppet(t, roleLauncher, "plain "+driver, s.inSlice("a")...).readPID()
	pids <- pid
	eventually(t, "the status shows 300 MiB of the unmanaged process", func() bool {
		for _, c := range s.status().GPUs[0].Clients {
			if c.PID == pid && c.State == wire.StateUnmanaged && c.ContextMiB == 300 {
				return true
			}
		}
		return false
	})
}

// TestUnmanagedMPS checks that the MPS daemon, which works for the instances, never counts as their
// process.
func TestUnmanagedMPS(t *testing.T) {
	driver := files(t, "libcuda.so.1")[0]
	program := filepath.Join(t.TempDir(), "nvidia-cuda-mps-server")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, self, 0o700); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	p := puppetOf(t, exec.Command(program), append(s.inSlice("a"), envOutside(roleMapper, driver)...))
	p.readPID()
	s.d.unmanaged.takeCensus()
	if got := s.unmanaged(); len(got) != 0 {
		t.Errorf("unmanaged processes: got %v, want none", got)
	}
}

// TestOwnerOfUnmanaged checks that an unmanaged process keeps its instance when the owner leaves,
// and is killed when the owner is killed, although its environment does not name the instance.
func TestOwnerOfUnmanaged(t *testing.T) {
	driver := files(t, "libcuda.so.1")[0]
	for name, leaves := range map[string]bool{"leaves": true, "is killed": false} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, Config{})
			owner := s.puppet(t, roleLauncher, "plain "+driver)
			pid := owner.readPID()
			r := reg("a", share{sm: 60, request: 1, limit: 1})
			r.OwnerPID, r.EndWithOwner = owner.cmd.Process.Pid, true
			s.register(r)
			s.d.unmanaged.takeCensus()
			if leaves {
				if code, text := s.do(http.MethodDelete, "/v1/instances/a/owner", ""); code != http.StatusNoContent {
					t.Fatalf("owner leaves instance a: got %d %s, want 204", code, text)
				}
			}
			owner.kill()
			if !leaves {
				eventually(t, "the unmanaged process has ended", func() bool { return !procfs.Alive(pid) })
				return
			}
			_ = s.d.locked(func() { s.d.registry.opened = s.d.registry.opened.Add(-reconnectTime) })
			for range 2 {
				s.d.unmanaged.takeCensus()
				s.d.tidy()
			}
			if got := s.unmanaged(); got[pid] != "a" || !procfs.Alive(pid) {
				t.Errorf("unmanaged processes after the owner has left: got %v, want process %d of a, running", got, pid)
			}
			_ = unix.Kill(pid, unix.SIGKILL)
			eventually(t, "the instance is removed after its last process has ended", func() bool { return !strings.Contains(fmt.Sprint(s.status()), "f-a") })
		})
	}
}

// TestReleaseAfterUnmanaged checks that an instance is removed as soon as its owner leaves, if all of
// its processes have ended since the last census.
func TestReleaseAfterUnmanaged(t *testing.T) {
	driver := files(t, "libcuda.so.1")[0]
	s := serve(t, Config{})
	r := reg("a", share{sm: 60, request: 1, limit: 1})
	r.OwnerPID = os.Getpid()
	s.register(r)
	p := s.puppet(t, roleMapper, driver, s.inSlice("a")...)
	pid := p.readPID()
	s.d.unmanaged.takeCensus()
	p.kill()
	code, text := s.do(http.MethodGet, "/v1/instances/a/unmanaged?wait=0&search=0", "")
	if code != http.StatusOK || !strings.Contains(text, fmt.Sprintf(`"pid":%d,`, pid)) {
		t.Errorf("unmanaged processes without another search: got %d %s, want process %d", code, text, pid)
	}
	if code, text := s.do(http.MethodDelete, "/v1/instances/a/owner", ""); code != http.StatusNoContent {
		t.Fatalf("owner leaves instance a: got %d %s, want 204", code, text)
	}
	if status := fmt.Sprint(s.status()); strings.Contains(status, "f-a") {
		t.Errorf("status after the owner has left: got %s, want no instance a", status)
	}
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
