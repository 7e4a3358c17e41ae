package token

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/procfs/procfstest"
)

// runScript starts a shell that prints PIDs, first its own, and then waits forever. It returns the PIDs.
func runScript(t *testing.T, script string, env ...string) (pids []int) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "echo $$; "+script+"\necho end; wait")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range pids {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "end" {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func alive(pids []int) (n int) {
	for _, pid := range pids {
		if procfs.Alive(pid) {
			n++
		}
	}
	return n
}

// TestOwnerIsKilled checks that the death of an owner ends its instance's processes and no others,
// also not those of another instance with the same name.
func TestOwnerIsKilled(t *testing.T) {
	const two = `sleep 600 & echo $!
env -u GFAAS_INSTANCE sleep 600 & echo $!`
	for name, c := range map[string]struct {
		ends, leaves bool
		late         bool // the daemon starts after the owner has ended
		secret       string
		want         int // number of surviving processes, of three
	}{
		"killed":                             {true, false, false, "secret of a", 0},
		"killed, of another of that name":    {true, false, false, "secret", 3},
		"killed, to be detached":             {false, false, false, "secret of a", 3},
		"left":                               {true, true, false, "secret of a", 3},
		"killed while there was no daemon":   {true, false, true, "secret of a", 3},
		"killed, with a masked secret":       {true, false, false, "***********", 0},
		"killed, and a new one by that name": {true, false, false, "secret of a", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, Config{})
			owner := exec.Command("sleep", "600")
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			r := reg("a", share{sm: 60, request: 1, limit: 1})
			r.OwnerPID, r.EndWithOwner = owner.Process.Pid, c.ends
			s.register(r)
			pids := runScript(t, two, "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET="+c.secret)
			other := runScript(t, two, "GFAAS_INSTANCE=b", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET="+c.secret)
			last, err := procfs.Read(pids[2])
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the clock has ticked since the last process started", func() bool { return procfs.TicksSinceBoot() > last.Start })
			if c.leaves {
				if code, text := s.do(http.MethodDelete, "/v1/instances/a/owner", ""); code != http.StatusNoContent {
					t.Fatalf("owner leaves instance a: got %d %s, want 204", code, text)
				}
			}
			if c.late {
				if err := s.stop(); err != nil {
					t.Fatal(err)
				}
			}
			_ = owner.Process.Kill()
			_ = owner.Wait()
			if c.late {
				s = serve(t, Config{Socket: s.socket})
			}
			if strings.Contains(name, "a new one") {
				successor := reg("a", share{sm: 60, request: 1, limit: 1})
				successor.Secret = "another"
				s.register(successor)
			}
			if err := s.d.locked(func() { s.d.registry.opened = s.d.registry.opened.Add(-reconnectTime) }); err != nil {
				t.Fatal(err)
			}
			s.d.tidy()
			eventually(t, "the processes of instance a have ended", func() bool { return alive(pids) <= c.want })
			if alive(pids) != c.want || alive(other) != 3 {
				t.Errorf("running processes: got %d of the instance and %d of the other one, want %d and 3", alive(pids), alive(other), c.want)
			}
		})
	}
}

// TestBeforeKill checks that BeforeKill is called with an instance's processes before they are killed.
func TestBeforeKill(t *testing.T) {
	lib := files(t, "libcuda.so.1")
	for name, kills := range map[string]func(t *testing.T, s *server) []int{
		"its owner is killed": func(t *testing.T, s *server) []int {
			owner := exec.Command("sleep", "600")
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			r := reg("a", share{sm: 60, request: 1, limit: 1})
			r.OwnerPID, r.EndWithOwner = owner.Process.Pid, true
			s.register(r)
			pids := runScript(t, "sleep 600 & echo $!", "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET=secret of a")
			_ = owner.Process.Kill()
			_ = owner.Wait()
			if err := s.d.locked(func() { s.d.registry.opened = s.d.registry.opened.Add(-reconnectTime) }); err != nil {
				t.Fatal(err)
			}
			s.d.tidy()
			return pids
		},
		"it is unmanaged": func(t *testing.T, s *server) []int {
			r := reg("a", share{sm: 60, request: 1, limit: 1})
			r.StopUnmanaged = true
			s.register(r)
			pid := s.puppet(t, roleLauncher, "plain "+lib[0], s.inSlice("a")...).readPID()
			for range 3 {
				s.d.unmanaged.takeCensus()
			}
			return []int{pid}
		},
		"it does not come back": func(t *testing.T, s *server) []int {
			s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
			idler := role(t, roleIdler, s.clientSocket(), "idles")
			if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != http.StatusNoContent {
				t.Fatalf("park instance a: got %d %s, want 204", code, body)
			}
			s.do("DELETE", "/v1/instances/a/parked", "")
			return []int{idler.Process.Pid}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			doomed := map[int]bool{}
			s := serve(t, Config{
				Mover: &fakeMover{free: gpu.GiB, fails: map[string]error{"back": errors.New("out of memory")}},
				BeforeKill: func(_ context.Context, pids []int) {
					mu.Lock()
					defer mu.Unlock()
					for _, pid := range pids {
						doomed[pid] = doomed[pid] || procfs.Alive(pid) // a process may be announced again after its end
					}
				},
			})
			pids := kills(t, s)
			eventually(t, "the processes of instance a have ended", func() bool { return alive(pids) == 0 })
			mu.Lock()
			defer mu.Unlock()
			for _, pid := range pids {
				if !doomed[pid] {
					t.Errorf("process %d was killed without BeforeKill: got %v announced as running, want it among them", pid, doomed)
				}
			}
		})
	}
}

// TestOwnerIsKilledWithReusedPID checks that a process with the PID of an ended client does
// not belong to the instance, even if another process holds the client's connection open.
func TestOwnerIsKilledWithReusedPID(t *testing.T) {
	s := serve(t, Config{})
	owner := exec.Command("sleep", "600")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	r := reg("a", share{sm: 60, request: 1, limit: 1})
	r.OwnerPID, r.EndWithOwner = owner.Process.Pid, true
	s.register(r)
	other := role(t, roleIdler, s.clientSocket(), "idles")
	ancestors, err := s.d.lineage.ancestors(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.d.locked(func() {
		if id := s.d.registry.containing(ancestors, ""); id != "a" {
			t.Errorf("instance of the process: got %q, want a", id)
		}
		for c := range s.d.registry.sessions() {
			c.start-- // simulates an earlier process with the same PID
		}
		if id := s.d.registry.containing(ancestors, ""); id != "" || s.d.registry.instances["a"].alive() {
			t.Errorf("instance of a process with a reused PID: got %q, alive %v; want none, false", id, s.d.registry.instances["a"].alive())
		}
	}); err != nil {
		t.Fatal(err)
	}
	_ = owner.Process.Kill()
	_ = owner.Wait()
	s.d.tidy()
	eventually(t, "no client is connected", func() (dropped bool) {
		_ = s.d.locked(func() { dropped = len(slices.Collect(s.d.registry.sessions())) == 0 })
		return dropped
	})
	if !procfs.Alive(other.Process.Pid) {
		t.Error("process with the reused PID: got it killed, want it running")
	}
}

// TestOwnerWithoutFiles checks that an owner does not count as dead if the daemon has no descriptor
// to examine it. Its instances and their processes remain.
func TestOwnerWithoutFiles(t *testing.T) {
	s := serve(t, Config{})
	r := reg("a", share{sm: 60, request: 1, limit: 1})
	r.OwnerPID, r.EndWithOwner = os.Getpid(), true
	s.register(r)
	idler := role(t, roleIdler, s.clientSocket(), "idles")
	r = reg("b", share{sm: 30, request: 1, limit: 1}) // without a process
	r.OwnerPID = os.Getpid()
	s.register(r)
	var orphans, instances int
	procfstest.WithoutFiles(t, func() {
		if err := s.d.locked(func() {
			s.d.registry.opened = s.d.registry.opened.Add(-reconnectTime)
			orphans, instances = len(s.d.registry.reap()), len(s.d.registry.instances)
		}); err != nil {
			t.Fatal(err)
		}
	})
	if orphans > 0 || instances != 2 || !procfs.Alive(idler.Process.Pid) {
		t.Errorf("got %d of %d instances without an owner, process running %v; want 0 of 2, true", orphans, instances, procfs.Alive(idler.Process.Pid))
	}
}

// lineWatcher is a log that signals the first line with the given text.
type lineWatcher struct {
	text  string
	once  *sync.Once
	found chan bool // closed then
}

func (w lineWatcher) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(w.text)) {
		w.once.Do(func() { close(w.found) })
	}
	return len(line), nil
}

// TestOwnerIsKilledWithoutFiles checks that an instance's processes end even if the daemon cannot
// list processes for a while.
func TestOwnerIsKilledWithoutFiles(t *testing.T) {
	watcher := lineWatcher{"cannot find the processes of an instance", new(sync.Once), make(chan bool)}
	s := serve(t, Config{Log: slog.New(slog.NewTextHandler(watcher, nil))})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	pids := runScript(t, "sleep 600 & echo $!", "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET=secret of a")
	var all tree
	if err := s.d.locked(func() { all = s.d.registry.instances["a"].tree() }); err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool)
	procfstest.WithoutFiles(t, func() {
		if found, err := s.d.killer.members(all); err == nil {
			t.Errorf("members while no process can be listed: got %v, want an error", found)
		}
		go func() { s.d.killer.killAll("test", all); close(ended) }()
		select {
		case <-watcher.found:
		case <-time.After(patience):
			t.Errorf("the daemon did not look for the processes within %v", patience)
		}
	})
	<-ended
	if alive(pids) > 0 {
		t.Errorf("running processes of the instance: got %d, want 0", alive(pids))
	}
}

// TestOwnerLeaves checks that an instance outlives an owner that leaves while a process is connected.
func TestOwnerLeaves(t *testing.T) {
	s := serve(t, Config{})
	r := reg("a", share{sm: 60, request: 1, limit: 1})
	r.OwnerPID, r.EndWithOwner = os.Getpid(), true
	a := s.join(r)
	leave := func() int {
		code, _ := s.do(http.MethodDelete, "/v1/instances/a/owner", "")
		return code
	}
	if code := leave(); code != http.StatusNoContent || len(s.status().GPUs[0].Clients) != 1 {
		t.Errorf("owner leaves while a process is connected: got %d, %+v; want 204 and the instance registered", code, s.status())
	}
	text, err := os.ReadFile(s.d.registry.records.path("a"))
	if err != nil || strings.Contains(string(text), "end_with_owner") {
		t.Errorf("record after the owner has left: got %s, %v; want one without end_with_owner", text, err)
	}
	a.Close()
	eventually(t, "the instance without an owner is removed", func() bool { return leave() == http.StatusNotFound })
	if _, err := os.Stat(s.d.registry.records.path("a")); err == nil {
		t.Error("record of the removed instance: got one, want none")
	}
}
