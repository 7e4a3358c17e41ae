package hooktest

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// debts returns the debt of each instance.
func (h *host) debts() map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, c := range h.rows() {
		out[c.Instance] = time.Duration(c.DebtMS * float64(time.Millisecond))
	}
	return out
}

// TestStoppedProgramsOweLittle stops programs and the daemon for seconds, in random
// order. A stopped program owes no more than the charge for its suspension, which is
// far less than the pause, and all programs continue. The state in which each is
// stopped is random.
func TestStoppedProgramsOweLittle(t *testing.T) {
	t.Parallel()
	const pause = 3 * time.Second
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	h := newHost(t)
	h.start()
	programs := map[string]*program{}
	var ids []string
	for i := range 3 {
		id := fmt.Sprintf("stops-%d", i)
		ids = append(ids, id)
		programs[id] = h.run(h.register(id, gpu.Slice{SMPct: 100, QuotaRequest: 0.3, QuotaLimit: 0.3}), "victim/saturate", "600", "500")
	}
	launches := func(id string) uint64 {
		row, _ := h.row(id)
		return row.Launches
	}
	for _, n := range rng.Perm(len(ids) + 1) {
		stopped := ids
		if n == len(ids) { // the daemon: leases expire meanwhile, and no client pays for it
			stop(t, h.daemon.Process.Pid, pause)
		} else {
			id, pid := ids[n], programs[ids[n]].cmd.Process.Pid
			stopped = ids[n : n+1] // the program may hold a lock in the simulated driver, for which another waits and pays
			h.eventually(id+" holds a lease", func() bool { row, _ := h.row(id); return row.State == "running" })
			h.eventually(id+" is suspended", func() bool {
				// A stop while the program waits has no effect, so it is continued and
				// stopped again.
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				for range 200 {
					if row, _ := h.row(id); row.State == "suspended" {
						return true
					}
					time.Sleep(5 * time.Millisecond)
				}
				_ = syscall.Kill(pid, syscall.SIGCONT)
				return false
			})
			stop(t, pid, pause)
		}
		for _, id := range ids {
			before := launches(id)
			h.eventually(id+" has launched 20 more kernels", func() bool {
				h.alive(programs[id], id)
				debts := h.debts()
				for _, id := range stopped {
					if debts[id] > pause/2 {
						t.Fatalf("debt of %s after a pause of %v: got %v, want at most %v", id, pause, debts[id], pause/2)
					}
				}
				return launches(id) > before+20
			})
		}
	}
}

// stop stops a process for the length of the pause.
func stop(t *testing.T, pid int, pause time.Duration) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(pause)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
