package job

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance"
)

// supervise is the first argument of the test binary as a supervisor.
const supervise = "__supervise"

// TestMain runs the tests, or a supervisor that pauses for a millisecond before each restart: DIR
// DEADLINE COMMAND…, with two restarts.
func TestMain(m *testing.M) {
	if len(os.Args) < 5 || os.Args[1] != supervise {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	deadline, err := time.ParseDuration(os.Args[3])
	if err != nil {
		panic(err)
	}
	restartPause = func(int) time.Duration { return time.Millisecond }
	os.Exit(Supervise(instance.Job{MaxRestarts: 2, Deadline: deadline}, os.Args[2], os.Args[2], os.Args[4:], os.Stderr))
}

// supervisorOf returns a supervisor of a shell's script, in its own session. Its output goes to log.
func supervisorOf(t *testing.T, dir, deadline, script string, log *bytes.Buffer) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, supervise, dir, deadline, "sh", "-c", script)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func TestSupervise(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script, deadline string
		want             Result
		log              string // a part of the output
	}{
		"success": {script: "echo done", want: Result{State: instance.Succeeded, Detail: "ended"}, log: "done\n"},
		"success after a failure": {script: "test -f again || { touch again; exit 3; }", want: Result{State: instance.Succeeded, Detail: "ended", Restarts: 1},
			log: "gfaas: the job exited with status 3; restart 1 of 2 in 1ms\n"},
		"failure":                          {script: "exit 4", want: Result{State: instance.Failed, ExitCode: 4, Detail: "exited with status 4", Restarts: 2}, log: "the job has failed after 2 restarts"},
		"signal":                           {script: "kill -SEGV $$", want: Result{State: instance.Failed, ExitCode: 139, Detail: "ended by signal: segmentation fault", Restarts: 2}},
		"a fork that outlives the command": {script: "(sleep 0.2; touch child) & exit 0", want: Result{State: instance.Succeeded, Detail: "ended"}},
		"a daemon in its own session":      {script: "setsid sh -c 'sleep 0.2; touch child' & exit 0", want: Result{State: instance.Succeeded, Detail: "ended"}},
		"a fork that fails later": {script: "(sleep 0.1; exit 5) & exit 0", want: Result{State: instance.Failed, ExitCode: 5, Restarts: 2,
			Detail: "has left process N running, which exited with status 5"}},
		"a fork that a failed command leaves": {script: "sleep 1000 & exit 6", want: Result{State: instance.Failed, ExitCode: 6, Detail: "exited with status 6", Restarts: 2}},
		"no end":                              {script: "sleep 1000", deadline: "200ms", want: Result{State: instance.Failed, ExitCode: 143, Detail: "stopped: not complete within its deadline of 200ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var log bytes.Buffer
			cmd := supervisorOf(t, dir, max(c.deadline, "0s"), c.script, &log)
			err := cmd.Run()
			got, e := Read(dir)
			if e != nil || got.Ended.IsZero() {
				t.Fatalf("result: got %+v, %v; output %s", got, e, log.String())
			}
			got.Ended = time.Time{}
			if head, tail, ok := strings.Cut(got.Detail, "process "); ok {
				_, tail, _ = strings.Cut(tail, " ")
				got.Detail = head + "process N " + tail
			}
			if got != c.want {
				t.Errorf("result: got %+v, want %+v", got, c.want)
			}
			if code := cmd.ProcessState.ExitCode(); code != c.want.ExitCode {
				t.Errorf("exit status of the supervisor: got %d (%v), want %d", code, err, c.want.ExitCode)
			}
			if !strings.Contains(log.String(), c.log) {
				t.Errorf("output: got %q, want %q in it", log.String(), c.log)
			}
			if strings.Contains(c.script, "child") {
				if _, err := os.Stat(filepath.Join(dir, "child")); err != nil {
					t.Errorf("the job ended before a process that the command had started: %v", err)
				}
			}
		})
	}
}

// started starts a supervisor and waits until its command has created the file started.
func started(t *testing.T, dir, script string) (cmd *exec.Cmd, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	cmd = supervisorOf(t, dir, "0s", script, log)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "started")); err == nil {
			return cmd, log
		}
		if time.Now().After(end) {
			t.Fatal("the command did not start")
		}
	}
}

// A stopped job passes the signal on once, and is not complete even if its command ends without an error.
func TestStop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, log := started(t, dir, `trap 'echo checkpoint; exit 0' TERM; touch started; while :; do sleep 0.01; done`)
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	got, err := Read(dir)
	if err != nil || got.State != instance.Failed || got.Restarts != 0 || got.ExitCode != 1 || got.Detail != "stopped by signal: terminated" {
		t.Errorf("result: got %+v, %v; want a job that was stopped", got, err)
	}
	if n := strings.Count(log.String(), "checkpoint"); n != 1 {
		t.Errorf("the command was asked to end %d times, want once: %s", n, log.String())
	}
}

// If its supervisor is killed, the command ends too, and the job does not count as running or complete.
func TestKilledSupervisor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, _ := started(t, dir, `echo $$ > pid; touch started; exec sleep 1000`)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // returns when the command has closed its output
	got, err := Read(dir)
	if err != nil || got.State != instance.Running {
		t.Fatalf("result: got %+v, %v", got, err)
	}
	want := instance.State{ExitCode: -1, Detail: lostSupervisor}
	if s := got.StateOf(false); s != want {
		t.Errorf("state: got %+v, want %+v", s, want)
	}
}

// A job goes on if nothing reads its output any more, because the keeper of its log was killed.
func TestBrokenLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := supervisorOf(t, dir, "0s", "test -f again || { touch again; exit 3; }", nil)
	cmd.Stdout, cmd.Stderr = write, write
	_ = read.Close()
	err = cmd.Run()
	_ = write.Close()
	if got, e := Read(dir); err != nil || e != nil || got.State != instance.Succeeded || got.Restarts != 1 {
		t.Errorf("supervisor: %v; result %+v, %v; want success after one restart", err, got, e)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read without a result: got the error %v, want fs.ErrNotExist", err)
	}
	if err := os.WriteFile(path(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("Read of half a result: got the error %v, want one with the folder", err)
	}
}
