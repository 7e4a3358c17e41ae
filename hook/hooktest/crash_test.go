package hooktest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// TestKilledClient kills clients at random points while another client waits for their
// lease. The other client continues, and the daemon forgets the killed ones.
func TestKilledClient(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	_, other := h.pace(h.register("other", whole), "300")
	h.eventually("the other client runs", func() bool { return other.completedKernels() > 0 })
	env := h.register("victim", whole)
	for range 12 {
		p, victim := h.pace(env, "300")
		at := rand.Uint64N(150)
		h.eventually(fmt.Sprintf("the victim has completed %d kernels", at), func() bool { h.alive(p, "victim"); return victim.completedKernels() >= at })
		p.kill()
		before := other.completedKernels()
		h.eventually("the other client has completed 50 more kernels", func() bool { return other.completedKernels() > before+50 })
		h.eventually("the daemon has forgotten the victim", func() bool { _, ok := h.row("victim"); return !ok })
	}
	if rows := h.rows(); len(rows) != 1 || rows[0].Instance != "other" {
		t.Errorf("clients at the end: got %+v, want only the other client", rows)
	}
}

// TestKilledDaemon kills the daemon under two clients that run side by side. Both
// stall, print one line, complete no kernel until the daemon is back, and then
// continue.
func TestKilledDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	slice := whole
	slice.SMPct = 50
	var programs []*program
	var accounts []account
	for _, id := range []string{"a", "b"} {
		p, a := h.pace(h.register(id, slice), "300")
		programs, accounts = append(programs, p), append(accounts, a)
		h.eventually(id+" runs", func() bool { return a.completedKernels() > 0 })
	}
	for round := range 2 {
		h.kill()
		// A program prints its message once, after its gate is closed and its work has
		// finished.
		stalled := make([]uint64, len(accounts))
		for i, p := range programs {
			h.eventually("the program prints that it waits", func() bool { return strings.Contains(p.errout.String(), "no gfaas-tokend") })
			last, since := accounts[i].completedKernels(), time.Now()
			h.eventually("the program waits and completes no kernel", func() bool {
				if now := accounts[i].completedKernels(); now != last || !p.isWaiting() {
					last, since = now, time.Now()
				}
				return round == 0 || time.Since(since) > 300*time.Millisecond
			})
			stalled[i] = accounts[i].completedKernels()
		}
		started := time.Now()
		h.eventually("a second without a daemon has passed", func() bool {
			for i, a := range accounts {
				if now := a.completedKernels(); now > stalled[i]+1 { // a kernel may have been done but not recorded yet
					t.Fatalf("kernels completed without a daemon: got %d, want at most 1", now-stalled[i])
				}
			}
			return time.Since(started) > time.Second
		})
		h.start()
		for i, a := range accounts {
			h.eventually("the client has completed 100 more kernels", func() bool { return a.completedKernels() > stalled[i]+100 })
		}
	}
	for _, p := range programs {
		if n := strings.Count(p.errout.String(), "\n"); n != 1 {
			t.Errorf("messages of the program: got %d lines, want 1:\n%s", n, p.errout.String())
		}
	}
}

// TestStoppedDaemon stops the daemon under two saturating clients that take turns. The
// current lease ends by itself, with one message, and both clients pause until the
// daemon continues. They are charged for the time used: a client that was charged for
// the pause would owe seconds.
func TestStoppedDaemon(t *testing.T) {
	t.Parallel()
	for _, by := range policy.Names() {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			stopDaemon(t, by)
		})
	}
}

func stopDaemon(t *testing.T, by string) {
	const pause = 4 * time.Second
	h := newHost(t)
	h.flags = []string{"--policy", by}
	h.start()
	quotas := map[string]float64{"fifth": 0.2, "most": 0.8}
	programs := map[string]*program{}
	for id, quota := range quotas {
		slice := gpu.Slice{SMPct: 100, QuotaRequest: quota, QuotaLimit: quota}
		programs[id] = h.run(h.register(id, slice), "victim/saturate", "8", "100", "80", "0")
	}
	h.eventually("both clients have run, and one holds a lease", func() bool {
		a, _ := h.row("fifth")
		b, _ := h.row("most")
		return a.Launches > 1000 && b.Launches > 1000 && (a.State == "running" || b.State == "running")
	})
	signal := func(s syscall.Signal) {
		if err := h.daemon.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	stopped := time.Now()
	h.eventually("the pause has passed", func() bool { return time.Since(stopped) > pause })
	signal(syscall.SIGCONT)
	for _, row := range h.rows() {
		t.Logf("%s owes %.0f ms", row.Instance, row.DebtMS)
		if row.DebtMS > 1000 {
			t.Errorf("%s was charged for the pause: it owes %.0f ms, want at most 1000", row.Instance, row.DebtMS)
		}
	}
	for id, p := range programs {
		if err := p.wait(); err != nil {
			t.Fatal(err)
		}
		if text := p.errout.String(); text != "" && (strings.Count(text, "\n") != 1 || !strings.Contains(text, "does not answer")) {
			t.Errorf("messages of %s: want none or one line with \"does not answer\", got\n%s", id, text)
		}
		var report struct {
			Launches uint64
			S        float64 `json:"elapsed_s"`
		}
		if err := json.Unmarshal([]byte(p.out.String()), &report); err != nil {
			t.Fatalf("report of %s: %v in %s", id, err, p.out.String())
		}
		used := time.Duration(report.Launches) * 100 * time.Microsecond
		t.Logf("%s used %v of %.3f s", id, used, report.S)
		if most := time.Duration((report.S - pause.Seconds()) * quotas[id] * float64(time.Second)); used > most+time.Second {
			t.Errorf("GPU time of %s: got %v, want at most %v, its quota without the pause and a lease", id, used, most+time.Second)
		}
	}
}
