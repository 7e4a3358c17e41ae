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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/procfs/procfstest"
)

// starts starts a shell that prints numbers of processes, the first its own, and
// waits without end.
func starts(t *testing.T, script string, env ...string) (pids []int) {
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

// An owner that is killed takes its instance's processes with it, and no others: not
// those of another instance of that name.
func TestOwnerIsKilled(t *testing.T) {
	const two = `sleep 600 & echo $!
env -u GFAAS_INSTANCE sleep 600 & echo $!`
	for name, c := range map[string]struct {
		ends, leaves bool
		late         bool // the daemon is started when the owner has ended
		secret       string
		want         int // of three
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
			pids := starts(t, two, "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET="+c.secret)
			other := starts(t, two, "GFAAS_INSTANCE=b", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET="+c.secret)
			last, err := procfs.Read(pids[2])
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the clock ticks", func() bool { return procfs.Now() > last.Start })
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
			if err := s.d.locked(func() { s.d.epoch = s.d.epoch.Add(-rejoin); s.d.reap() }); err != nil {
				t.Fatal(err)
			}
			s.d.endOrphans()
			eventually(t, "they end", func() bool { return alive(pids) <= c.want })
			if alive(pids) != c.want || alive(other) != 3 {
				t.Errorf("%d of the instance's processes live, want %d, and %d of the other's", alive(pids), c.want, alive(other))
			}
		})
	}
}

// Doomed has the processes of an instance that are to be killed, while they live.
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
			pids := starts(t, "sleep 600 & echo $!", "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET=secret of a")
			_ = owner.Process.Kill()
			_ = owner.Wait()
			if err := s.d.locked(func() { s.d.epoch = s.d.epoch.Add(-rejoin); s.d.reap() }); err != nil {
				t.Fatal(err)
			}
			s.d.endOrphans()
			return pids
		},
		"it is unmanaged": func(t *testing.T, s *server) []int {
			r := reg("a", 60, 1, 1)
			r.StopUnmanaged = true
			s.register(r)
			pid := s.puppet(t, roleLauncher, "plain "+lib[0], s.inSlice("a")...).awaits()
			for range 3 {
				s.d.takeCensus()
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
				Mover: &moved{free: gpu.GiB, fails: map[string]error{"back": errors.New("out of memory")}},
				Doomed: func(_ context.Context, pids []int) {
					mu.Lock()
					defer mu.Unlock()
					for _, pid := range pids {
						doomed[pid] = doomed[pid] || procfs.Alive(pid) // it may be announced again when it has ended
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

// Who has the number of a process that was connected is none of its instance's, whoever
// holds that connection open.
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
	above, err := s.d.ancestors(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.d.locked(func() {
		if id := s.d.inside(above, ""); id != "a" {
			t.Errorf("it is in %q", id)
		}
		for _, c := range s.d.clients {
			c.start-- // as if it were an earlier process's
		}
		if id := s.d.inside(above, ""); id != "" || s.d.instances["a"].alive() {
			t.Errorf("another is in %q", id)
		}
	}); err != nil {
		t.Fatal(err)
	}
	_ = owner.Process.Kill()
	_ = owner.Wait()
	if err := s.d.locked(s.d.reap); err != nil {
		t.Fatal(err)
	}
	s.d.endOrphans()
	s.d.hangUpGone()
	eventually(t, "the connection is dropped", func() (dropped bool) {
		_ = s.d.locked(func() { dropped = len(s.d.clients) == 0 })
		return dropped
	})
	if !procfs.Alive(other.Process.Pid) {
		t.Error("it was killed")
	}
}

// An owner that cannot be looked at for want of a descriptor is not dead: its
// instances stay, and what runs in them.
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
			s.d.epoch = s.d.epoch.Add(-rejoin)
			s.d.reap()
			orphans, instances = len(s.d.orphans), len(s.d.instances)
		}); err != nil {
			t.Fatal(err)
		}
	})
	if orphans > 0 || instances != 2 || !procfs.Alive(idler.Process.Pid) {
		t.Errorf("%d of %d instances lost their owner", orphans, instances)
	}
}

// warned is a log that says that it has a line with that text.
type warned struct {
	text string
	once *sync.Once
	is   chan bool // closed then
}

func (w warned) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(w.text)) {
		w.once.Do(func() { close(w.is) })
	}
	return len(line), nil
}

// An instance's processes end though for a while they cannot be looked for.
func TestOwnerIsKilledWithoutFiles(t *testing.T) {
	tried := warned{"cannot look for an instance's processes", new(sync.Once), make(chan bool)}
	s := serve(t, Config{Log: slog.New(slog.NewTextHandler(tried, nil))})
	s.register(reg("a", 60, 1, 1))
	pids := starts(t, "sleep 600 & echo $!", "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SECRET=secret of a")
	var all tree
	if err := s.d.locked(func() { all = s.d.instances["a"].tree() }); err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool)
	procfstest.WithoutFiles(t, func() {
		if found, err := s.d.members(all); err == nil {
			t.Errorf("found %v", found)
		}
		go func() { s.d.end(all, "test"); close(ended) }()
		select {
		case <-tried.is:
		case <-time.After(patience):
			t.Error("they are not looked for")
		}
	})
	<-ended
	if alive(pids) > 0 {
		t.Error("they live on")
	}
}

// Who leaves while a process of the instance is connected leaves the instance to it.
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
	text, err := os.ReadFile(s.d.recordPath("a"))
	if err != nil || strings.Contains(string(text), "end_with_owner") {
		t.Errorf("the registration is %s, %v", text, err)
	}
	a.Close()
	eventually(t, "the instance goes", func() bool { return leave() == http.StatusNotFound })
	if _, err := os.Stat(s.d.recordPath("a")); err == nil {
		t.Error("its file is still there")
	}
}
