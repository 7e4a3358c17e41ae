package hooktest

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestWaits asks for the lease of a process whose stream waits for something outside
// the GPU. The lease is returned at once, with the time of the work before the wait.
// The work behind the wait runs when the wait ends, without a lease, and the process
// reports its time.
func TestWaits(t *testing.T) {
	t.Parallel()
	const front, behind = 20 * time.Millisecond, 100 * time.Millisecond
	for _, tt := range []struct {
		kind, stream string
		unreported   bool // no event can be placed at the beginning or the end of the work
	}{
		{"value32", "created", false}, {"value64", "blocking", false}, {"batch", "legacy", false}, {"host", "created", false},
		{"host", "thread", false}, {"callback", "created", false}, {"semaphore", "created", false}, {"event", "created", false},
		{"node", "created", false}, {"value32", "after", false}, {"host", "after", false}, {"event", "after", false},
		{"value32", "beneath", true}, {"value32", "above", true}, {"value32", "copy", true},
	} {
		t.Run(tt.kind+" "+tt.stream, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.listen()
			p := f.run(f.env(1), "check/waits", tt.kind, tt.stream, fmt.Sprint(front.Microseconds()), fmt.Sprint(behind.Microseconds()))
			var m *member
			for round := range 3 {
				if m == nil {
					f.eventually("the process requests a lease", func() bool { m = f.waitingMember(); return m != nil })
				}
				m.awaitRequest()
				reported := atomic.LoadUint64(&m.slot().UnleasedNS)
				before := m.used()
				started := time.Now()
				lease := m.open()
				f.eventually("the program has queued its work", func() bool {
					if m.requests.Load() > 0 { // it had no processor, and returned the lease
						lease = m.open()
					}
					return strings.Count(p.out.String(), "queued") == round+1
				})
				ahead := time.Since(started)
				m.close(lease)
				m.awaitReturn(lease)
				if used := m.used() - before; used < front || used > ahead {
					t.Errorf("charged GPU time: got %v, want %v to %v", used, front, ahead)
				}
				if got := atomic.LoadUint64(&m.slot().UnleasedNS); got != reported {
					t.Errorf("reported time without a lease before the wait ended: got %v, want 0s", time.Duration(got-reported))
				}
				resumed := time.Now()
				if _, err := fmt.Fprintln(p.in); err != nil {
					t.Fatal(err)
				}
				if tt.stream == "copy" {
					m.alwaysGrant() // the copy may have reached the gate too late
				}
				f.eventually("the program has finished its work", func() bool { return strings.Count(p.out.String(), "done") == round+1 })
				m.grantAlways.Store(false)
				if tt.unreported {
					return
				}
				whole := func() time.Duration { return time.Duration(atomic.LoadUint64(&m.slot().UnleasedNS) - reported) }
				f.eventually("the process has reported the time without a lease", func() bool { return whole() >= behind })
				if most := time.Since(resumed); whole() > most && tt.kind != "node" { // a graph is charged from its beginning
					t.Errorf("reported time without a lease: got %v, want at most %v", whole(), most)
				}
			}
		})
	}
}

// used returns the time that the process has been charged.
func (m *member) used() (sum time.Duration) {
	for _, r := range m.returnedLeases() {
		sum += time.Duration(r.UsedNS)
	}
	return sum
}

// waitingMember returns a connection that has requested a lease.
func (f *fake) waitingMember() *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		if m.requests.Load() > 0 {
			return m
		}
	}
	return nil
}

// TestRounds runs two processes that wait for each other's kernels, in two slices and
// in one. Each round takes a few turns, so all rounds finish long before a single one
// in which a lease is held until its wait times out (30 s).
func TestRounds(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"value32", "host", "semaphore"} {
		for _, slices := range []int{1, 2} {
			t.Run(fmt.Sprint(kind, slices), func(t *testing.T) {
				t.Parallel()
				h := newHost(t)
				h.start()
				half := gpu.Slice{SMPct: 100, QuotaRequest: 0.5, QuotaLimit: 0.5}
				env := h.register("a", half)
				other := env
				if slices == 2 {
					other = h.register("b", half)
				}
				file := filepath.Join(h.runDir, "rounds")
				a := h.run(env, "check/waits", "rounds", kind, "a", file, "50")
				b := h.run(other, "check/waits", "rounds", kind, "b", file, "50")
				for _, p := range []*program{a, b} {
					h.eventually("both programs have finished all rounds", func() bool { return strings.Contains(p.out.String(), "done") })
				}
			})
		}
	}
}
