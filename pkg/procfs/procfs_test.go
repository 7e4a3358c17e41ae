package procfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs/procfstest"
)

func TestParse(t *testing.T) {
	const tail = " S 1 7 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 2453504 178\n"
	for _, c := range []struct {
		text string
		want Stat
		ok   bool
	}{
		{"42 (sh)" + tail, Stat{42, "sh", 'S', 1, 42, 987654, 0, 0}, true},
		{"42 (a) Z (b)" + tail, Stat{42, "a) Z (b", 'S', 1, 42, 987654, 0, 0}, true},
		{"42 (a\nb)" + tail, Stat{42, "a\nb", 'S', 1, 42, 987654, 0, 0}, true},
		{"42 (sh) S 1 7 42 0 -1 0 1 0 0 0 0 0 0 0 20 0 1 0 987654 2453504 178 1 2 3 140722 5\n", Stat{42, "sh", 'S', 1, 42, 987654, 2453504, 140722}, true},
		{"42 (sh) S 1 7 42", Stat{}, false},
		{"42 sh S", Stat{}, false},
		{"x (sh)" + tail, Stat{}, false},
		{"", Stat{}, false},
		{")(", Stat{}, false},
	} {
		got, err := parse([]byte(c.text))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("parse(%q) = %+v, %v, want %+v", c.text, got, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("1 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := parse(text); err != nil && s != (Stat{}) {
			t.Errorf("parse(%q): got %+v with the error %v, want no result", text, s, err)
		}
	})
}

func TestSelf(t *testing.T) {
	own, err := Read(os.Getpid())
	if err != nil || own.PID != os.Getpid() || own.Exited() || own.Stopped() || own.Start == 0 || !Alive(own.PID) {
		t.Errorf("this process: got %+v, %v; want PID %d, neither exited nor stopped, with a start time, and alive", own, err, os.Getpid())
	}
	if young, _ := child(t); young != nil {
		s, err := Read(young.Process.Pid)
		if now := TicksSinceBoot(); err != nil || s.Start > now || now-s.Start > 6000 {
			t.Errorf("start of a child: got %d ticks after boot, %v; want at most 6000 before %d", s.Start, err, now)
		}
	}
	all, err := Stats()
	if err != nil || !slices.ContainsFunc(all, func(s Stat) bool { return s.PID == own.PID && s.Start == own.Start }) {
		t.Errorf("all processes: got %v, %v; want this one (%d) among them", all, err, own.PID)
	}
	if _, err := Read(1 << 30); !errors.Is(err, fs.ErrNotExist) || !IsNotExist(err) || Alive(1<<30) {
		t.Errorf("Read of a PID without a process: got the error %v, want %v, and not alive", err, fs.ErrNotExist)
	}
	if lives, err := Lives(1<<30, own.Start); lives || err != nil {
		t.Errorf("Lives of a PID without a process: got %v, %v; want false", lives, err)
	}
	if env, err := Environ(1 << 30); len(env) > 0 || err != nil {
		t.Errorf("Environ of a PID without a process: got %v, %v; want none", env, err)
	}
	files, err := OpenFiles()
	if err != nil || !slices.Contains(files, 1) {
		t.Errorf("open files of this process: got %v, %v; want 1 among them", files, err)
	}
	if low, high, err := LocalPorts(); err != nil || low < 1 || high <= low {
		t.Errorf("local ports: got %d to %d, %v; want an ascending range above 0", low, high, err)
	}
}

func TestParseCgroups(t *testing.T) {
	got := parseCgroups("12:cpu,cpuacct:/a\n3:freezer:/docker/x:y\n0::/user.slice\nnonsense\n")
	want := []Cgroup{{"cpu,cpuacct", "/a"}, {"freezer", "/docker/x:y"}, {"", "/user.slice"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func child(t *testing.T) (*exec.Cmd, Stat) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Env = []string{"PROCFS_TEST=here"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	s, err := Read(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, s
}

// Environ returns the variables with the given names, and no others.
func TestEnviron(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	cmd.Env = []string{"A=1", "AB=2", "B=x=y", "EMPTY="}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the kernel provides it a moment after the start
		if env, err := Environ(cmd.Process.Pid); err != nil || time.Now().After(deadline) {
			t.Fatalf("environment: got %v, %v, want one with A", env, err)
		} else if env["A"] != "" {
			break
		}
	}
	for _, c := range []struct {
		names []string
		want  map[string]string
	}{
		{[]string{"A", "B", "EMPTY"}, map[string]string{"A": "1", "B": "x=y", "EMPTY": ""}},
		{[]string{"C"}, nil},
		{nil, map[string]string{"A": "1", "AB": "2", "B": "x=y", "EMPTY": ""}},
	} {
		if got, err := Environ(cmd.Process.Pid, c.names...); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("variables %q: got %v, %v, want %v", c.names, got, err, c.want)
		}
	}
}

// Only a subreaper without children certainly has no descendants.
func TestMayHaveDescendants(t *testing.T) {
	expect := func(when string, want bool) {
		t.Helper()
		if got := MayHaveDescendants(); got != want {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	expect("not a subreaper", true)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	expect("no children", false)
	// The shell ends and leaves an orphan behind.
	text, err := exec.Command("sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	expect("an orphan", true)
	var orphan int
	if _, err := fmt.Sscan(string(text), &orphan); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(orphan, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	expect("an orphan that is not reaped", true)
	if _, err := unix.Wait4(orphan, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	expect("after the orphan was reaped", false)
}

// Both forms of a Process: with a descriptor, and with a PID and start time for old
// kernels.
func TestProcess(t *testing.T) {
	for name, open := range map[string]func(int, uint64) (*Process, error){
		"descriptor": Open,
		"number":     func(pid int, start uint64) (*Process, error) { return &Process{pid: pid, start: start}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			cmd, s := child(t)
			env, err := Environ(s.PID)
			for deadline := time.Now().Add(10 * time.Second); err == nil && env["PROCFS_TEST"] != "here"; env, err = Environ(s.PID) {
				if time.Now().After(deadline) { // the kernel provides it a moment after the start
					t.Fatalf("environment of process %d: got %v after 10s, want PROCFS_TEST=here", s.PID, env)
				}
				time.Sleep(time.Millisecond)
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := open(s.PID, s.Start)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := p.Wait(soon); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait while the process runs: got the error %v, want %v", err, context.DeadlineExceeded)
			}
			waited := make(chan error, 1)
			go func() { waited <- p.Wait(t.Context()) }()
			if err := p.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := <-waited; err != nil {
				t.Errorf("Wait: %v", err)
			}
			if Alive(s.PID) {
				t.Errorf("Alive of process %d, which has ended and was not reaped: got true, want false", s.PID)
			}
			_ = cmd.Wait()
			if err := p.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("Signal of a reaped process: got the error %v, want %v", err, os.ErrProcessDone)
			}
			if err := p.Wait(t.Context()); err != nil {
				t.Errorf("Wait once it is reaped: %v", err)
			}
		})
	}
}

// Own is true for a process that has only our rights, and gained none at its start.
func TestOwn(t *testing.T) {
	ours, s := child(t)
	own, err := Own(s.PID)
	for deadline := time.Now().Add(10 * time.Second); err == nil && !own && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		own, err = Own(s.PID) // the kernel provides it a moment after the start
	}
	if !own || err != nil {
		t.Errorf("Own of a child: got %v, %v; want true", own, err)
	}
	_ = ours.Process.Kill()
	_ = ours.Wait()
	if own, err := Own(s.PID); own || err != nil {
		t.Errorf("Own of a process that has ended: got %v, %v; want false", own, err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil || !ownUsers(status) {
		t.Errorf("ownUsers of this process: got false (%v), want true, for\n%s", err, status)
	}
	user := fmt.Sprint(os.Geteuid())
	for _, users := range []string{user + "1\t" + user + "\t" + user, user + "\t" + user + "1\t" + user, user + "\t" + user + "\t" + user + "1", user} {
		if ownUsers([]byte("Name:\tx\nUid:\t" + users + "\t" + user + "\nGid:\t0\t0\t0\t0\n")) {
			t.Errorf("ownUsers of the users %q: got true, want false", users)
		}
	}
	for secure, want := range map[uint64]bool{0: true, 1: false} {
		var auxv []byte
		for _, word := range []uint64{6, 4096, 23, secure, 0, 0} {
			auxv = binary.NativeEndian.AppendUint64(auxv, word)
		}
		if asItsStarter(auxv) != want || asItsStarter(auxv[:16]) {
			t.Errorf("AT_SECURE %d: got %v, want %v, and false for a cut vector", secure, asItsStarter(auxv), want)
		}
	}
}

// If a process cannot be read for lack of a descriptor, it does not count as ended.
func TestWithoutFiles(t *testing.T) {
	own, err := Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var errs [6]error
	procfstest.WithoutFiles(t, func() {
		_, errs[0] = Lives(own.PID, own.Start)
		_, errs[1] = Stats()
		_, errs[2] = Environ(own.PID)
		_, errs[3] = Open(own.PID, own.Start)
		_, errs[4] = Own(own.PID)
		errs[5] = (&Process{pid: own.PID, start: own.Start}).Signal(0)
	})
	for n, err := range errs {
		if !errors.Is(err, unix.EMFILE) || IsNotExist(err) {
			t.Errorf("operation %d without free descriptors: got the error %v, want %v", n, err, unix.EMFILE)
		}
	}
	if lives, err := Lives(own.PID, own.Start); !lives || err != nil {
		t.Errorf("Lives of this process: got %v, %v; want true", lives, err)
	}
}

// Open refuses a process that has reused the PID of an ended one.
func TestOpenAnother(t *testing.T) {
	_, s := child(t)
	if _, err := Open(s.PID, s.Start-1); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Open of an earlier process with the same PID: got the error %v, want %v", err, os.ErrProcessDone)
	}
	if _, err := Open(1<<30, 1); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Open of a PID without a process: got the error %v, want %v", err, os.ErrProcessDone)
	}
	stranger := Process{pid: s.PID, start: s.Start - 1}
	if err := stranger.Signal(unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) || !Alive(s.PID) {
		t.Errorf("Signal to an earlier process with the same PID: got the error %v, want %v, and the process alive", err, os.ErrProcessDone)
	}
}

func TestDeadly(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   bool
	}{
		"default": {`echo; read x`, true},
		"ignored": {`trap "" TERM; echo; read x`, false},
		"caught":  {`trap : TERM; echo; read x`, false},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.script)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if got := Deadly(cmd.Process.Pid, unix.SIGTERM); got != c.want {
				t.Errorf("SIGTERM ends it: %v, want %v", got, c.want)
			}
			_ = in.Close()
			_ = cmd.Wait()
			if Deadly(cmd.Process.Pid, unix.SIGTERM) {
				t.Error("Deadly(SIGTERM) of a process that has ended: got true, want false")
			}
		})
	}
}
