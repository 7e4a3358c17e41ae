package hooktest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

const (
	soakClients = 50
	soakTime    = 5 * time.Second // or GFAAS_SOAK; make soak uses half an hour
	calm        = 400 * time.Millisecond
	resting     = 6 // polls without progress until waiting programs count as resting; a program that waits for a processor is not at rest
)

// soakProgram is a program of the soak.
type soakProgram struct {
	*program
	account
	id          string
	lastKernels uint64    // kernels done at the last poll
	stopped     time.Time // zero: running
}

// soak is a daemon and the changing set of programs under it.
type soak struct {
	*host
	rng   *rand.Rand
	live  []*soakProgram
	count int
	tally map[string]int
}

// TestSoak randomly starts, kills and stops programs, and the daemon under them. While
// the daemon is away, no program launches; when it is back, every program continues; at
// the end, no resources are leaked.
func TestSoak(t *testing.T) {
	t.Parallel()
	length := soakTime
	if text := os.Getenv("GFAAS_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %v", seed, length)
	s := &soak{host: newHost(t), rng: rand.New(rand.NewPCG(seed, 0)), tally: map[string]int{}}
	s.start()
	before := s.usage()
	for end := time.Now().Add(length); time.Now().Before(end); {
		s.step()
		if s.rng.IntN(40) == 0 {
			s.restart()
		}
	}
	s.restart()
	for len(s.live) > 0 {
		s.end(0, syscall.SIGKILL)
	}
	s.eventually("the daemon has no client", func() bool {
		status := s.status()
		return len(status.GPUs) == 0 || len(s.rows()) == 0 && len(status.GPUs[0].Clients) == 0
	})
	t.Logf("%v", s.tally)
	s.leaks(before)
}

// step makes one random change, most often the start of another program.
func (s *soak) step() {
	s.resume()
	description, n := s.rng.IntN(10), len(s.live)
	switch {
	case n < soakClients && (description < 6 || n < soakClients/2):
		s.spawn()
	case description < 8:
		s.end(s.rng.IntN(n), syscall.SIGKILL)
	case description == 8:
		s.end(s.rng.IntN(n), syscall.SIGTERM)
	default:
		if p := s.live[s.rng.IntN(n)]; p.stopped.IsZero() {
			s.signal(p, syscall.SIGSTOP)
			p.stopped = time.Now()
			s.tally["stops"]++
		}
	}
	time.Sleep(time.Duration(s.rng.IntN(50)) * time.Millisecond) // the pace of events; no result depends on it
}

// resume continues programs that have been stopped for a while. A program that is
// stopped inside the simulated driver may hold a lock that others need.
func (s *soak) resume() {
	for _, p := range s.live {
		if !p.stopped.IsZero() && time.Since(p.stopped) > time.Duration(s.rng.IntN(1000))*time.Millisecond {
			s.signal(p, syscall.SIGCONT)
			p.stopped = time.Time{}
		}
	}
}

func (s *soak) signal(p *soakProgram, sig syscall.Signal) {
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
		s.t.Fatalf("send %v to %s: %v", sig, p.id, err)
	}
}

func (s *soak) spawn() {
	s.count++
	id := fmt.Sprintf("soak-%d", s.count)
	shares := []float64{12, 24, 50, 100}
	slice := gpu.Slice{SMPct: shares[s.rng.IntN(len(shares))], QuotaRequest: 1.0 / soakClients, QuotaLimit: s.rng.Float64()*0.5 + 0.1, Mem: gpu.GiB}
	env := s.register(id, slice)
	a := account{s.t, filepath.Join(s.runDir, id+".account")}
	p := s.run(env, "check/soak", a.path, strconv.Itoa(s.rng.IntN(1<<30)))
	s.live = append(s.live, &soakProgram{program: p, account: a, id: id})
	s.tally["starts"]++
}

// end kills a program, which may be stopped, and removes its registration.
func (s *soak) end(i int, sig syscall.Signal) {
	p := s.live[i]
	s.live = append(s.live[:i], s.live[i+1:]...)
	s.checkRunning(p)
	s.signal(p, syscall.SIGCONT)
	s.signal(p, sig)
	p.ended <- <-p.ended
	if err := s.client.Unregister(context.Background(), p.id); err != nil {
		s.t.Fatal(err)
	}
	_ = os.Remove(p.path)
	s.tally[sig.String()]++
}

// checkRunning fails the test if a program has ended by itself, which means that a result was
// wrong or a call failed.
func (s *soak) checkRunning(p *soakProgram) {
	s.t.Helper()
	if p.exited() {
		s.t.Fatalf("program %s ended by itself, want it to run: %s", p.id, p.errout.String())
	}
}

// restart ends the daemon, half of the time gracefully, waits until the programs rest,
// and starts a new daemon, with which all of them continue.
func (s *soak) restart() {
	s.t.Helper()
	s.tally["restarts"]++
	if s.rng.IntN(2) == 0 {
		_ = s.daemon.Process.Signal(syscall.SIGTERM)
		_ = s.daemon.Wait()
		s.daemon = nil
	} else {
		s.kill()
	}
	still := 0
	s.eventually("all programs wait in the preload library", func() bool {
		s.resume() // programs that it held up then reach a gate
		if still++; s.progress() || !s.allWaiting() {
			still = 0
		}
		return still == resting
	})
	for since := time.Now(); time.Since(since) < calm; time.Sleep(10 * time.Millisecond) {
		if s.progress() {
			s.t.Fatal("kernels completed without a daemon: got some, want none")
		}
	}
	s.start()
	for _, p := range s.live {
		if p.stopped.IsZero() {
			at := p.completedKernels()
			s.eventually(p.id+" completes another kernel", func() bool { s.resume(); s.checkRunning(p); return p.completedKernels() > at })
		}
	}
}

// progress reports whether a running program has completed a kernel within 50 ms.
func (s *soak) progress() bool {
	for _, p := range s.live {
		p.lastKernels = p.completedKernels()
	}
	time.Sleep(50 * time.Millisecond)
	for _, p := range s.live {
		s.checkRunning(p)
		if p.completedKernels() != p.lastKernels {
			return true
		}
	}
	return false
}

// allWaiting reports whether all running programs wait in the preload library.
func (s *soak) allWaiting() bool {
	return !slices.ContainsFunc(s.live, func(p *soakProgram) bool { return p.stopped.IsZero() && !p.isWaiting() })
}

// usage describes the resources of the daemon.
type usage struct{ files, maps, rssKiB int }

func (s *soak) usage() usage {
	s.t.Helper()
	var u usage
	dir := fmt.Sprintf("/proc/%d/", s.daemon.Process.Pid)
	files, err := os.ReadDir(dir + "fd")
	if err != nil {
		s.t.Fatal(err)
	}
	maps, err := os.ReadFile(dir + "maps")
	if err != nil {
		s.t.Fatal(err)
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		s.t.Fatal(err)
	}
	u.files, u.maps = len(files), strings.Count(string(maps), "memfd:gfaas")
	if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
		_, _ = fmt.Sscan(rest, &u.rssKiB)
	}
	return u
}

// leaks compares the resources of the daemon and the folders with those at the start.
func (s *soak) leaks(before usage) {
	s.t.Helper()
	var after usage
	s.eventually("the daemon has closed its descriptors and pages", func() bool {
		after = s.usage()
		return after.files <= before.files+1 && after.maps == 0 // one for the status query
	})
	s.t.Logf("daemon before %+v, after %+v; %d goroutines here", before, after, runtime.NumGoroutine())
	if grown := after.rssKiB - before.rssKiB; grown > 64<<10 {
		s.t.Errorf("memory of the daemon: grew by %d KiB, want at most %d", grown, 64<<10)
	}
	for _, pattern := range []string{"instances/*", "client/soak-*", "sim/gpu*.mem.*"} {
		if leftovers, _ := filepath.Glob(filepath.Join(s.runDir, pattern)); len(leftovers) > 0 {
			s.t.Errorf("files at the end: got %v, want none", leftovers)
		}
	}
}
