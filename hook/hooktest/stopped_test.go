package hooktest

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// debts is what each instance owes.
func (h *host) debts() map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, c := range h.rows() {
		out[c.Instance] = time.Duration(c.DebtMS * float64(time.Millisecond))
	}
	return out
}

// TestStoppedPays stops programs for long, and the daemon, in random order: who was
// stopped owes no more than what suspending it charged, far less than the pause,
// and all go on. In which state each is met is up to chance.
func TestStoppedPays(t *testing.T) {
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
		if n == len(ids) { // the daemon: leases end by themselves meanwhile, and nobody pays for it
			stop(t, h.daemon.Process.Pid, pause)
		} else {
			id, pid := ids[n], programs[ids[n]].cmd.Process.Pid
			stopped = ids[n : n+1] // it may hold a lock within the simulated driver, for which another waits and pays
			h.eventually(id+" holds a lease", func() bool { row, _ := h.row(id); return row.State == "running" })
			h.eventually(id+" is suspended", func() bool {
				// What is met while it waits comes to nothing: it goes on, and is stopped again.
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
			h.eventually(id+" goes on", func() bool {
				h.alive(programs[id], id)
				debts := h.debts()
				for _, id := range stopped {
					if debts[id] > pause/2 {
						t.Fatalf("%s owes %v after a pause of %v", id, debts[id], pause)
					}
				}
				return launches(id) > before+20
			})
		}
	}
}

// stop stops a process for so long.
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
