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
			r := reg("a", 60, 1, 1)
			r.OwnerPID, r.EndWithOwner = owner.Process.Pid, c.ends
			s.register(r)
			pids := runScript(t, two, "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET="+c.secret)
			other := runScript(t, two, "GFAAS_INSTANCE=b", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET="+c.secret)
			last, err := procfs.Read(pids[2])
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the clock ticks", func() bool { return procfs.TicksSinceBoot() > last.Start })
			if c.leaves {
				if code, text := s.do(http.MethodDelete, "/v1/instances/a/owner", ""); code != http.StatusNoContent {
					t.Fatal(code, text)
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
				fresh := reg("a", 60, 1, 1)
				fresh.Secret = "another"
				s.register(fresh)
			}
			if err := s.d.locked(func() { s.d.registry.opened = s.d.registry.opened.Add(-reconnectTime) }); err != nil {
				t.Fatal(err)
			}
			s.d.tidy()
			eventually(t, "they end", func() bool { return alive(pids) <= c.want })
			if alive(pids) != c.want || alive(other) != 3 {
				t.Errorf("%d of the instance's processes live, want %d, and %d of the other's", alive(pids), c.want, alive(other))
			}
		})
	}
}

// TestDoomed checks that BeforeKill is called with an instance's processes before they are killed.
func TestDoomed(t *testing.T) {
	lib := files(t, "libcuda.so.1")
	for name, kills := range map[string]func(t *testing.T, s *server) []int{
		"its owner is killed": func(t *testing.T, s *server) []int {
			owner := exec.Command("sleep", "600")
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			r := reg("a", 60, 1, 1)
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
			r := reg("a", 60, 1, 1)
			r.StopUnmanaged = true
			s.register(r)
			pid := s.puppet(t, roleLauncher, "plain "+lib[0], s.inSlice("a")...).readPID()
			for range 3 {
				s.d.unmanaged.takeCensus()
			}
			return []int{pid}
		},
		"it does not come back": func(t *testing.T, s *server) []int {
			s.register(reg("a", 60, 1, 1))
			idler := role(t, roleIdler, s.clientSocket(), "idles")
			if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != http.StatusNoContent {
				t.Fatal(code, body)
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
			eventually(t, "they end", func() bool { return alive(pids) == 0 })
			mu.Lock()
			defer mu.Unlock()
			for _, pid := range pids {
				if !doomed[pid] {
					t.Errorf("process %d was killed unannounced: announced alive are %v", pid, doomed)
				}
			}
		})
	}
}

// TestOwnerIsKilledWhenNumberIsAnothers checks that a process with the PID of an ended client does
// not belong to the instance, even if another process holds the client's connection open.
func TestOwnerIsKilledWhenNumberIsAnothers(t *testing.T) {
	s := serve(t, Config{})
	owner := exec.Command("sleep", "600")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	r := reg("a", 60, 1, 1)
	r.OwnerPID, r.EndWithOwner = owner.Process.Pid, true
	s.register(r)
	other := role(t, roleIdler, s.clientSocket(), "idles")
	above, err := s.d.lineage.ancestors(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.d.locked(func() {
		if id := s.d.registry.containing(above, ""); id != "a" {
			t.Errorf("it is in %q", id)
		}
		for c := range s.d.registry.sessions() {
			c.start-- // simulates an earlier process with the same PID
		}
		if id := s.d.registry.containing(above, ""); id != "" || s.d.registry.instances["a"].alive() {
			t.Errorf("another is in %q", id)
		}
	}); err != nil {
		t.Fatal(err)
	}
	_ = owner.Process.Kill()
	_ = owner.Wait()
	s.d.tidy()
	eventually(t, "the connection is dropped", func() (dropped bool) {
		_ = s.d.locked(func() { dropped = len(slices.Collect(s.d.registry.sessions())) == 0 })
		return dropped
	})
	if !procfs.Alive(other.Process.Pid) {
		t.Error("it was killed")
	}
}

// TestOwnerWithoutFiles checks that an owner does not count as dead if the daemon has no descriptor
// to examine it. Its instances and their processes remain.
func TestOwnerWithoutFiles(t *testing.T) {
	s := serve(t, Config{})
	r := reg("a", 60, 1, 1)
	r.OwnerPID, r.EndWithOwner = os.Getpid(), true
	s.register(r)
	idler := role(t, roleIdler, s.clientSocket(), "idles")
	r = reg("b", 30, 1, 1) // without a process
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
		t.Errorf("%d of %d instances lost their owner", orphans, instances)
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
	tried := lineWatcher{"cannot find the processes of an instance", new(sync.Once), make(chan bool)}
	s := serve(t, Config{Log: slog.New(slog.NewTextHandler(tried, nil))})
	s.register(reg("a", 60, 1, 1))
	pids := runScript(t, "sleep 600 & echo $!", "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET=secret of a")
	var all tree
	if err := s.d.locked(func() { all = s.d.registry.instances["a"].tree() }); err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool)
	procfstest.WithoutFiles(t, func() {
		if found, err := s.d.killer.members(all); err == nil {
			t.Errorf("found %v", found)
		}
		go func() { s.d.killer.killAll("test", all); close(ended) }()
		select {
		case <-tried.found:
		case <-time.After(patience):
			t.Error("they are not looked for")
		}
	})
	<-ended
	if alive(pids) > 0 {
		t.Error("they live on")
	}
}

// TestOwnerLeaves checks that an instance outlives an owner that leaves while a process is connected.
func TestOwnerLeaves(t *testing.T) {
	s := serve(t, Config{})
	r := reg("a", 60, 1, 1)
	r.OwnerPID, r.EndWithOwner = os.Getpid(), true
	a := s.join(r)
	leave := func() int {
		code, _ := s.do(http.MethodDelete, "/v1/instances/a/owner", "")
		return code
	}
	if code := leave(); code != http.StatusNoContent || len(s.status().GPUs[0].Clients) != 1 {
		t.Errorf("with a process: %d, %+v", code, s.status())
	}
	text, err := os.ReadFile(s.d.registry.records.path("a"))
	if err != nil || strings.Contains(string(text), "end_with_owner") {
		t.Errorf("the registration is %s, %v", text, err)
	}
	a.Close()
	eventually(t, "the instance goes", func() bool { return leave() == http.StatusNotFound })
	if _, err := os.Stat(s.d.registry.records.path("a")); err == nil {
		t.Error("its file is still there")
	}
}
