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
	soakTime    = 15 * time.Second // GFAAS_SOAK=30m for a long one
	calm        = 400 * time.Millisecond
	resting     = 6 // looks without progress, at programs that wait; one that waits for a processor is not at rest
)

// restless is one program of the soak.
type restless struct {
	*program
	account
	id      string
	seen    uint64    // kernels done when last looked at
	stopped time.Time // zero: runs
}

// soak is a daemon and the programs that come and go under it.
type soak struct {
	*host
	rng   *rand.Rand
	live  []*restless
	count int
	tally map[string]int
}

// TestSoak starts, kills and stops programs at random, and the daemon under
// them. While the daemon is away nothing is launched; when it is back every
// program goes on; at the end nothing of it all is left.
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
	s.eventually("nobody is left", func() bool {
		status := s.status()
		return len(status.GPUs) == 0 || len(s.rows()) == 0 && len(status.GPUs[0].Clients) == 0
	})
	t.Logf("%v", s.tally)
	s.leaks(before)
}

// step does one thing to one program, most often starts another.
func (s *soak) step() {
	s.resume()
	what, n := s.rng.IntN(10), len(s.live)
	switch {
	case n < soakClients && (what < 6 || n < soakClients/2):
		s.spawn()
	case what < 8:
		s.end(s.rng.IntN(n), syscall.SIGKILL)
	case what == 8:
		s.end(s.rng.IntN(n), syscall.SIGTERM)
	default:
		if p := s.live[s.rng.IntN(n)]; p.stopped.IsZero() {
			s.signal(p, syscall.SIGSTOP)
			p.stopped = time.Now()
			s.tally["stops"]++
		}
	}
	time.Sleep(time.Duration(s.rng.IntN(50)) * time.Millisecond) // the pace of events, nothing waits for it
}

// resume lets programs go on that have been stopped for a while. One that is
// stopped inside the simulated driver may hold a lock there that others need.
func (s *soak) resume() {
	for _, p := range s.live {
		if !p.stopped.IsZero() && time.Since(p.stopped) > time.Duration(s.rng.IntN(1000))*time.Millisecond {
			s.signal(p, syscall.SIGCONT)
			p.stopped = time.Time{}
		}
	}
}

func (s *soak) signal(p *restless, sig syscall.Signal) {
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil {
		s.t.Fatalf("%s: %v", p.id, err)
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
	s.live = append(s.live, &restless{program: p, account: a, id: id})
	s.tally["starts"]++
}

// end kills a program, one that is stopped too, and takes its registration
// back.
func (s *soak) end(i int, sig syscall.Signal) {
	p := s.live[i]
	s.live = append(s.live[:i], s.live[i+1:]...)
	s.sound(p)
	s.signal(p, syscall.SIGCONT)
	s.signal(p, sig)
	p.ended <- <-p.ended
	if err := s.client.Unregister(context.Background(), p.id); err != nil {
		s.t.Fatal(err)
	}
	_ = os.Remove(p.path)
	s.tally[sig.String()]++
}

// sound fails the test when a program has ended by itself: a result was wrong
// or a call failed.
func (s *soak) sound(p *restless) {
	s.t.Helper()
	if p.over() {
		s.t.Fatalf("%s has ended: %s", p.id, p.errout.String())
	}
}

// restart takes the daemon away, half of the time with a warning; the programs
// come to rest. Then a new one lets all of them go on.
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
	s.eventually("programs come to rest", func() bool {
		s.resume() // what it holds up comes to a gate then
		if still++; s.progress() || !s.rest() {
			still = 0
		}
		return still == resting
	})
	for since := time.Now(); time.Since(since) < calm; time.Sleep(10 * time.Millisecond) {
		if s.progress() {
			s.t.Fatal("launched without a daemon")
		}
	}
	s.start()
	for _, p := range s.live {
		if p.stopped.IsZero() {
			at := p.done()
			s.eventually(p.id+" goes on", func() bool { s.resume(); s.sound(p); return p.done() > at })
		}
	}
}

// progress says whether any program that runs has done anything in 50 ms.
func (s *soak) progress() bool {
	for _, p := range s.live {
		p.seen = p.done()
	}
	time.Sleep(50 * time.Millisecond)
	for _, p := range s.live {
		s.sound(p)
		if p.done() != p.seen {
			return true
		}
	}
	return false
}

// rest says whether all programs that run wait in the preload library.
func (s *soak) rest() bool {
	return !slices.ContainsFunc(s.live, func(p *restless) bool { return p.stopped.IsZero() && !p.waits() })
}

// usage is what the daemon holds.
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

// leaks compares the daemon and the folders with what they were.
func (s *soak) leaks(before usage) {
	s.t.Helper()
	var after usage
	s.eventually("descriptors are closed", func() bool {
		after = s.usage()
		return after.files <= before.files+1 && after.maps == 0 // one for the status just asked
	})
	s.t.Logf("daemon before %+v, after %+v; %d goroutines here", before, after, runtime.NumGoroutine())
	if grown := after.rssKiB - before.rssKiB; grown > 64<<10 {
		s.t.Errorf("the daemon grew by %d KiB", grown)
	}
	for _, pattern := range []string{"instances/*", "client/soak-*", "sim/gpu*.mem.*"} {
		if left, _ := filepath.Glob(filepath.Join(s.runDir, pattern)); len(left) > 0 {
			s.t.Errorf("left behind: %v", left)
		}
	}
}
