package hooktest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"testing"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// account is the file that a pace program writes.
type account struct {
	t    testing.TB
	path string
}

const paceTimes = 65536

func (h *host) account() account {
	return account{h.t, filepath.Join(h.t.TempDir(), "account")}
}

// pace runs kernels of the given length, one after the other.
func (h *host) pace(env []string, us string) (*program, account) {
	a := h.account()
	return h.run(env, "check/pace", a.path, us), a
}

// completedKernels returns how many kernels the program has completed.
func (a account) completedKernels() uint64 {
	b := make([]byte, 8)
	f, err := os.Open(a.path)
	if err != nil {
		return 0
	}
	defer f.Close()
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0
	}
	return binary.NativeEndian.Uint64(b)
}

// times returns the launch times of the kernels in the range [first, last).
func (a account) times(first, last uint64) []time.Duration {
	a.t.Helper()
	b, err := os.ReadFile(a.path)
	if err != nil {
		a.t.Fatal(err)
	}
	var out []time.Duration
	for n := first; n < last; n++ {
		out = append(out, time.Duration(binary.NativeEndian.Uint64(b[8*(1+n%paceTimes):])))
	}
	return out
}

// paceKernel is the length of a kernel in the programs that checkQuota checks.
const paceKernel = time.Millisecond

// checkQuota observes programs of one instance for a while. They launch one kernel at a
// time, so the number of launches times the length of a kernel is their GPU time. It
// must not exceed the quota, and it must be distributed as a quota is: after the quota
// is used up, no launch until the next window.
func (h *host) checkQuota(quota float64, accounts ...account) {
	h.t.Helper()
	const window, slack = 100 * time.Millisecond, 20 * time.Millisecond
	first := map[account]uint64{}
	for _, a := range accounts {
		first[a] = a.completedKernels()
	}
	started := time.Now()
	h.eventually("25 windows have passed", func() bool { return time.Since(started) > 25*window })
	var all []time.Duration
	for _, a := range accounts {
		all = append(all, a.times(first[a], a.completedKernels())...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	if len(all) < 10 {
		h.t.Fatalf("launches in %v: got %d, want at least 10", time.Since(started), len(all))
	}
	span := all[len(all)-1] - all[0]
	share := float64(len(all)) * paceKernel.Seconds() / (span + window).Seconds()
	h.t.Logf("quota %v: used %.3f of %v, in %d launches", quota, share, span, len(all))
	if share > quota*1.1 {
		h.t.Errorf("share of the GPU with a quota of %v: got %.3f, want at most %.3f", quota, share, quota*1.1)
	}
	budget := time.Duration(quota * float64(window))
	burst := 1
	for i := 1; i < len(all); i++ {
		if all[i]-all[i-1] < (window-budget)/2 {
			burst++
			continue
		}
		burst = 1
		// A window may include the unused time of the previous window.
		if most := int((2*budget + slack) / paceKernel); burst > most {
			h.t.Errorf("launches without a pause: got %d, want at most %d, as fit a window", burst, most)
		}
	}
}

// TestQuota lets a client alone on the GPU use up its quota. It launches no more until
// the next window.
func TestQuota(t *testing.T) {
	h := newHost(t)
	h.start()
	slice := whole
	slice.QuotaRequest, slice.QuotaLimit = 0.2, 0.2
	_, a := h.pace(h.register("a", slice), "1000")
	h.eventually("the client has completed 40 kernels", func() bool { return a.completedKernels() > 40 })
	h.checkQuota(0.2, a)
}

// overlaps reports whether a client has not returned a lease that it had announced to
// end, while others already launch. On a busy host, it had no processor at that moment.
func overlaps(c wire.ClientStatus) bool {
	return c.State == "draining" && c.Reason.Code == policy.Overlaps
}

// holdsExclusively reports whether a client holds SMs exclusively.
func holdsExclusively(c wire.ClientStatus) bool {
	return c.State == "running" || c.State == "draining" && !overlaps(c)
}

// watch polls the daemon's status up to n times, or until enough returns true, and
// checks the invariants of the status.
func (h *host) watch(n int, enough func(held map[string]bool) bool) {
	h.t.Helper()
	seen := false
	for end := time.Now().Add(patience); (n > 0 || !seen) && time.Now().Before(end); n-- {
		held := map[string]bool{}
		status := h.status()
		for _, g := range status.GPUs {
			sum := 0.0
			for _, c := range g.Clients {
				if holdsExclusively(c) {
					held[c.Instance] = true
					sum += c.SMPct
				}
			}
			if sum > 100 || g.SMRunningPct > 100 && !slices.ContainsFunc(g.Clients, overlaps) {
				h.t.Fatalf("leased SMs: got %v%%, and %v%% by the clients; want at most 100%%: %+v", g.SMRunningPct, sum, g.Clients)
			}
		}
		seen = seen || enough(held)
	}
	if !seen {
		h.t.Fatalf("leases at the same time: got none of the combinations that this test waits for within %v, want one", patience)
	}
}

// TestSideBySide checks that clients that fit on the GPU at the same time hold leases
// at the same time, and that two clients that do not fit never do.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	both := map[string]bool{}
	for _, id := range []string{"a60", "b60"} {
		slice := whole
		slice.SMPct = 60
		_, a := h.pace(h.register(id, slice), "500")
		h.eventually(id+" runs", func() bool { return a.completedKernels() > 0 })
	}
	h.watch(300, func(held map[string]bool) bool {
		both["a60"], both["b60"] = both["a60"] || held["a60"], both["b60"] || held["b60"]
		return both["a60"] && both["b60"]
	})
	for _, p := range h.ran {
		p.kill()
	}
	for id, sm := range map[string]float64{"c24": 24, "d24": 24, "e50": 50} {
		slice := whole
		slice.SMPct = sm
		h.pace(h.register(id, slice), "500")
	}
	h.watch(100, func(held map[string]bool) bool { return held["c24"] && held["d24"] && held["e50"] })
}

// TestIdle checks that a client that stops launching returns its lease.
func TestIdle(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	idle := h.run(h.register("idle", whole), "check/route", "link", "cuLaunchKernel", "3")
	h.eventually("the program has made its launches", func() bool { return idle.out.String() != "" })
	h.eventually("the client is idle", func() bool { row, ok := h.row("idle"); return ok && row.State == "idle" })
	_, a := h.pace(h.register("other", whole), "500")
	h.eventually("the other client has completed 100 kernels", func() bool { return a.completedKernels() > 100 })
	if row, ok := h.row("idle"); !ok || row.State != "idle" || row.Launches != 3 {
		t.Errorf("idle client: got %+v, want state idle with 3 launches", row)
	}
}
