package hooktest

import (
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// refusals returns the kinds of work in check/refusals.
func refusals(t *testing.T) (kinds []string) {
	t.Helper()
	text, err := os.ReadFile("../check/refusals.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\{"([a-z-]+)", \w+\}`).FindAllStringSubmatch(string(text), -1) {
		kinds = append(kinds, m[1])
	}
	if len(kinds) < 20 {
		t.Fatalf("%d kinds understood, want at least 20", len(kinds))
	}
	return kinds
}

// TestRefusedWork sends every kind of work that the driver refuses. Neither GPU time
// nor launches are charged, and each lease is returned. Work that was accepted before
// is charged.
func TestRefusedWork(t *testing.T) {
	t.Parallel()
	for _, kind := range refusals(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for accepted, args := range [][]string{{kind, "30"}, {kind, "30", "1"}} {
				f := newFake(t)
				f.listen()
				p := f.run(f.env(1), "check/refusals", args...)
				defer p.in.Close()
				ungated := kind == "host-function" || kind == "allocation"
				if !ungated || accepted > 0 {
					f.member(0).alwaysGrant()
				}
				f.eventually("the program has made its calls", func() bool { f.alive(p, kind); return strings.Contains(p.out.String(), "done") })
				if ungated && accepted == 0 {
					continue // no lease was requested
				}
				m := f.member(0)
				f.eventually("the process holds no lease", func() bool { return atomic.LoadUint32(&m.slot().Gate) == 0 })
				f.eventually("the process has returned every lease", func() bool { return len(m.returnedLeases()) == int(atomic.LoadUint32(&f.lease)) })
				var used time.Duration
				for _, back := range m.returnedLeases() {
					used += time.Duration(back.UsedNS)
				}
				if (used > 0) != (accepted > 0) {
					t.Errorf("%v: got %v of GPU time charged in %d leases, want some only for accepted work (%v)", args, used, len(m.returnedLeases()), accepted > 0)
				}
				if n := atomic.LoadUint64(&m.slot().Launches); n != uint64(accepted) {
					t.Errorf("%v: got %d launches counted, want %d", args, n, accepted)
				}
			}
		})
	}
}

// TestRefusedWorkPauses repeats launches that the driver refuses while other clients
// want the GPU. The program requests leases at growing intervals, and at once after a
// launch was accepted.
func TestRefusedWorkPauses(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.listen()
	p := f.run(f.env(1), "check/drive", "10")
	m := f.member(0)
	atomic.StoreUint64(&m.slot().TurnNS, uint64(10*time.Millisecond))
	var last time.Time // start of the previous lease
	refused := func(n int, least time.Duration) {
		t.Helper()
		p.order(kernels{blocks: -1, count: 1})
		m.awaitRequest()
		if pause := time.Since(last); pause < least {
			t.Errorf("launch %d: it asks %v after its last lease, want %v or more", n, pause, least)
		}
		for before := p.launches(0, 0); p.launches(0, 0) == before; {
			last = time.Now()
			lease := m.open()
			// It may have no processor, and return the lease first.
			f.eventually("the program launches or requests another lease", func() bool { return p.launches(0, 0) > before || m.requests.Load() > 0 })
			m.awaitReturn(lease)
		}
	}
	for n, pause := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 64, 100, 100} {
		refused(n, pause*time.Millisecond)
	}
	m.alwaysGrant()
	before := len(m.returnedLeases())
	p.order(kernels{blocks: 1, count: 1})
	f.eventually("the kernel is launched and its lease returned", func() bool { return atomic.LoadUint64(&m.slot().Launches) == 1 && len(m.returnedLeases()) > before })
	m.grantAlways.Store(false)
	refused(0, 0)
	refused(1, time.Millisecond)
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestHoldKeepsIdleLease checks that an idle program keeps its lease for the time that the daemon has
// set, and without such a time returns it.
func TestHoldKeepsIdleLease(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.listen()
	p := f.run(f.env(1), "check/drive", "2")
	m := f.member(0)
	atomic.StoreUint64(&m.slot().TurnNS, uint64(10*time.Millisecond))
	for n, hold := range []time.Duration{0, 100 * time.Millisecond} {
		atomic.StoreUint64(&m.slot().HoldNS, uint64(hold))
		p.order(kernels{blocks: 1, count: 1})
		m.awaitRequest()
		opened := time.Now() // before the launch, so that a busy host can only make the time longer
		lease := m.open()
		f.eventually("the program launches a kernel", func() bool { return p.launches(0, 0) > n })
		m.awaitReturn(lease)
		if held := time.Since(opened); held < hold*9/10 {
			t.Errorf("hold %v: got the lease back after %v, want %v or more", hold, held, hold*9/10)
		}
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}
