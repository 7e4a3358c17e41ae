package gfaas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/rollout"
)

// newServed returns a gateway that serves one function, f, built from testdata/function.c.
func newServed(t *testing.T, rest string) *served {
	t.Helper()
	p := newEnvironment(t)
	p.write("f.yaml", "{name: f, command: ["+p.getenv("FUNCTION")+"]"+rest+"}\n")
	s := p.serve()
	s.applied("f.yaml", "f")
	return s
}

// stopCleanly stops the gateway and checks that it leaves nothing behind.
func (s *served) stopCleanly() {
	s.t.Helper()
	if code := s.end(syscall.SIGTERM); code != 0 {
		s.t.Errorf("exit status of the gateway: got %d, want 0", code)
	}
	s.checkNothingRemains()
}

// TestInstanceDiesDuringAnswer checks that, if an instance dies while it answers, the answer is truncated and does not
// look complete. The next call uses another instance.
func TestInstanceDiesDuringAnswer(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	first := s.must("f", "x")
	for range 3 {
		r, err := s.call("f", strings.Repeat("half", 1000), "X-Cut: 9")
		if !errors.Is(err, io.ErrUnexpectedEOF) || r.status != 200 || len(r.body) > 2000 {
			t.Errorf("answer of an instance that dies: got status %d, %d bytes and %v; want 200, at most 2000 bytes and %v", r.status, len(r.body), err, io.ErrUnexpectedEOF)
		}
		if r := s.must("f", "x"); r.status != 200 || r.instance == first.instance {
			t.Errorf("next call: got %+v, want status 200 from another instance than %s", r, first.instance)
		}
	}
	s.stopCleanly()
}

// TestInstanceIgnoresSIGTERM checks that an instance that ignores SIGTERM is killed when its function is removed and
// when the gateway ends. Calls of other functions continue meanwhile.
func TestInstanceIgnoresSIGTERM(t *testing.T) {
	t.Parallel()
	s := newServed(t, `, env: {STUBBORN: "1"}`)
	s.write("g.yaml", "{name: g, command: ["+s.getenv("FUNCTION")+"]}\n")
	s.applied("g.yaml", "g")
	s.must("f", "x")
	s.output("rm", "f")
	for range 10 {
		if r := s.must("g", "x"); r.status != 200 {
			t.Errorf("call of another function: got %+v, want status 200", r)
		}
	}
	eventually(t, "the instance that ignores SIGTERM has ended", func() bool { return s.functions() == 1 })
	s.applied("f.yaml", "f")
	s.must("f", "x")
	s.stopCleanly()
}

// TestLogIsBounded checks that the log of an instance with much output is bounded, and the instance still receives
// calls.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	line := strings.Repeat("x", 1<<10-1) + "\n"
	text := strings.Repeat(line, 2<<10) // 2 MiB
	for range 3 * logs.MaxFile / len(text) {
		if r := s.must("f", text, "X-Print: 1"); r.status != 200 {
			t.Fatalf("call of f: got status %d and the code %q, want 200", r.status, r.code)
		}
	}
	var kept int64
	folders, err := filepath.Glob(filepath.Join(s.dir, "logs-*", "*"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("folders of logs: got %v, %v; want at least one", folders, err)
	}
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
			if info, gone := d.Info(); err == nil && gone == nil && info.Mode().IsRegular() {
				kept += info.Size()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if kept > 2*logs.MaxFile+1<<20 {
		t.Errorf("size of the log files: got %d bytes, want at most %d", kept, 2*logs.MaxFile+1<<20)
	}
	if text := s.output("logs", "f", "--tail", "1"); !strings.HasSuffix(text, line) {
		t.Errorf("last line of the log: got %.100q, want %.100q", text, line)
	}
	s.stopCleanly()
}

// TestLogsOfAFailedStart checks that the output of a failed start is in the gateway's logs and in gfaas logs. Its file
// is removed with the function.
func TestLogsOfAFailedStart(t *testing.T) {
	t.Parallel()
	p := newEnvironment(t)
	p.write("f.yaml", `{name: f, command: [sh, -c, "echo no such model >&2; exit 3"]}`+"\n")
	s := p.serve()
	s.applied("f.yaml", "f")
	if r := s.must("f", "x"); r.status != 502 || r.code != "start-failed" {
		t.Fatalf("call of f: got %+v, want status 502 and the code start-failed", r)
	}
	answer, err := s.Send(t.Context(), http.MethodGet, "/system/logs?name=f", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || strings.Count(string(text), `"text":"no such model"`) != 1 || !strings.Contains(string(text), `"instance":"f.`) {
		t.Errorf("the gateway's logs: got %v, %s; want one line \"no such model\" of an instance of f", err, text)
	}
	if remaining, err := filepath.Glob(filepath.Join(s.dir, "failed-*", ".*")); err != nil || len(remaining) > 0 {
		t.Errorf("files of failed starts after rm: got %v, %v; want none", remaining, err)
	}
	s.output("rm", "f")
	s.stopCleanly()
}

// TestTokenDaemonDies kills the token daemon under the gateway. New instances find another daemon.
func TestTokenDaemonDies(t *testing.T) {
	t.Parallel()
	s := newServed(t, ", scale: {max: 4}")
	s.must("f", "x")
	for range 3 {
		text, err := os.ReadFile(filepath.Join(s.dir, "run", "token.lock"))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if r := s.must("f", "x"); r.status != 200 || r.start != "gpu-warm" {
			t.Errorf("call of the running function: got %+v, want status 200 and start gpu-warm", r)
		}
		s.output("scale", "f=0", "--wait")
		if r := s.must("f", "x"); r.status != 200 || r.start != "cold" {
			t.Errorf("call that starts an instance: got %+v, want status 200 and start cold", r)
		}
	}
	s.stopCleanly()
}

// TestRunDirectoryRemoved removes the gateway's run directory, as a logout does. The gateway reports that and ends with
// its instances.
func TestRunDirectoryRemoved(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	s.must("f", "x")
	if err := os.RemoveAll(filepath.Join(s.dir, "run")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	var exited atomic.Bool
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := <-ended; err != nil {
			t.Errorf("end of the gateway: %v", err)
		}
		exited.Store(true)
	})
	eventually(t, "the gateway has ended", exited.Load)
	wait.Wait()
	if !strings.Contains(s.stderr.String(), "the run directory was removed") {
		t.Errorf("messages of the gateway: got %s, want \"the run directory was removed\"", s.stderr)
	}
	if n := s.functions(); n != 0 {
		t.Errorf("processes of functions after the end: got %d, want 0", n)
	}
}

// TestStateLocked checks that, while another process locks the state file, running instances still receive calls,
// changes fail with 503 and a reason, and failed starts report the lock. After that, everything works again.
func TestStateLocked(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	s.write("g.yaml", "{name: g, command: ["+s.getenv("FUNCTION")+"]}\n")
	s.applied("g.yaml", "g")
	s.must("f", "x")
	var lock *lockfile.Lock
	eventually(t, "the state file is locked", func() (locked bool) { // unless the gateway is writing
		var err error
		lock, err = lockfile.AcquireExisting(filepath.Join(s.dir, "state.db"))
		return err == nil
	})
	defer lock.Close()
	if r := s.must("f", "x"); r.status != 200 || r.start != "gpu-warm" {
		t.Errorf("call of the running function f: got %+v, want status 200 and start gpu-warm", r)
	}
	if r := s.must("g", "x"); r.status != 502 || r.code != "start-failed" || !strings.Contains(r.body, "is locked by another process") {
		t.Errorf(`call of g, which needs a start: got %+v; want status 502, code start-failed, body with "is locked by another process"`, r)
	}
	answer, err := s.Send(context.Background(), http.MethodPost, "/system/scale-function/f", nil, strings.NewReader(`{"replicas":1}`))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if answer.StatusCode != 503 || !strings.Contains(string(text), `"code":"state"`) || answer.Header.Get("Retry-After") == "" {
		t.Errorf("change with a locked state file: got %d %s, want 503 with the code state and Retry-After", answer.StatusCode, text)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a call starts g again", func() bool { return s.must("g", "x").status == 200 })
	s.stopCleanly()
}

// TestApplyAndRmUnderLoad applies, changes and removes functions under concurrent calls. No call of an applied function
// fails, and nothing remains at the end.
func TestApplyAndRmUnderLoad(t *testing.T) {
	t.Parallel()
	s := newServed(t, "")
	var stop atomic.Bool
	var calls sync.WaitGroup
	var answered atomic.Int64
	for range 4 {
		calls.Go(func() {
			for !stop.Load() {
				if r, err := s.call("f", "x"); err != nil || r.status != 200 || r.body != "x" {
					t.Errorf("call of f: got %+v, %v; want status 200 and body x", r, err)
					return
				}
				answered.Add(1)
			}
		})
		calls.Go(func() {
			for !stop.Load() {
				if r, err := s.call("comes", "x"); err != nil || r.status != 200 && (r.status != 404 || r.code != "no-function") {
					t.Errorf("call of comes, which is applied and removed: got %+v, %v; want status 200, or 404 with the code no-function", r, err)
					return
				}
			}
		})
	}
	for n := range 4 {
		s.write("f.yaml", fmt.Sprintf("{name: f, command: [%s], env: {VERSION: \"%d\"}}\n", s.getenv("FUNCTION"), n))
		s.write("comes.yaml", fmt.Sprintf("{name: comes, command: [%s], env: {VERSION: \"%d\"}}\n", s.getenv("FUNCTION"), n))
		s.applied("f.yaml", "f")
		s.applied("comes.yaml", "comes")
		before := answered.Load()
		eventually(t, "ten more calls of f are answered", func() bool { return answered.Load() > before+10 || t.Failed() })
		s.output("rm", "comes")
	}
	stop.Store(true)
	calls.Wait()
	eventually(t, "the removed function has no instances", func() bool { return !strings.Contains(s.output("ps", "-o", "csv"), "comes") })
	s.stopCleanly()
}

// TestRestartsInstancesOfUp kills an instance of gfaas up. The gateway restarts it with the same ID and log, as gfaas ps
// shows. gfaas down ends it for good.
func TestRestartsInstancesOfUp(t *testing.T) {
	t.Parallel()
	p := newEnvironment(t)
	p.write("f.yaml", "{name: f, command: ["+p.getenv("FUNCTION")+"], restart: always}\n")
	p.write("plan.json", planOf("f-0"))
	p.output("apply", "-f", "f.yaml")
	p.output("up", "plan.json")
	s := p.serve()
	eventually(t, "the instance f-0 answers a call", func() bool { return s.must("f", "before\n", "X-Print: 1").instance == "f-0" })
	ps := func() (e rollout.Entry) {
		var list []rollout.Entry
		if err := json.Unmarshal([]byte(p.output("ps", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.ID == "f-0" {
				return e
			}
		}
		return e
	}
	first := ps()
	for n := range 2 {
		if err := syscall.Kill(ps().PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the killed instance is ready again", func() bool { e := ps(); return e.State == "ready" && e.Restarts == n+1 })
		eventually(t, "the restarted instance answers a call", func() bool { return s.must("f", "after\n", "X-Print: 1").instance == "f-0" })
	}
	if last := ps(); last.PID == first.PID || last.SMPct != first.SMPct || last.QuotaLimit != first.QuotaLimit || last.QuotaLimit == 0 {
		t.Errorf("restarted instance: got %+v, want another PID and the slice of %+v", last, first)
	}
	eventually(t, "the log has the output from before and after the restarts", func() bool {
		text := p.output("logs", "f-0")
		return strings.Contains(text, "before\n") && strings.Contains(text, "after\n")
	})
	p.output("down", "f-0")
	if r := s.must("f", "x"); r.status != 200 || r.instance == "f-0" {
		t.Errorf("call after down: got %+v, want status 200 from another instance than f-0", r)
	}
	if e := ps(); e.ID != "" {
		t.Errorf("instances of up after down: got %+v, want none", e)
	}
	s.stopCleanly()
}
