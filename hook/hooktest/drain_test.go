package hooktest

import (
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// TestDrainLong closes the gate on kernels whose total time exceeds the limit for a
// hang, while a thread waits at the gate. The lease lasts until the kernels have
// finished.
func TestDrainLong(t *testing.T) {
	t.Parallel()
	const each = 6 * time.Second
	f := newFake(t)
	f.listen()
	p := f.run(f.env(1), "check/drive", fmt.Sprint(each.Microseconds()))
	p.order(kernels{blocks: 1, count: 2})
	m := f.member(0)
	m.awaitRequest()
	lease := m.open()
	f.eventually("the program has launched twice", func() bool { return p.launches(0, 0) == 2 })
	m.close(lease)
	p.order(kernels{thread: 1, blocks: 1, count: 1})
	back := m.awaitReturn(lease)
	if used := time.Duration(back.UsedNS); used < 2*each || used > 3*each || back.Flags&wire.ReturnWantsMore == 0 {
		t.Errorf("returned lease: got %+v, want a GPU time of %v to %v and a request for another", back, 2*each, 3*each)
	}
	if p.launches(1, 0) != 0 {
		t.Errorf("launches behind the closed gate: got %d, want 0", p.launches(1, 0))
	}
}

// TestDrainHangs closes the gate on work that waits for the program, while the program
// waits at the gate. The library cannot distinguish such work from running work. After
// a while, the lease is returned nevertheless, and the work in flight counts under the
// next lease.
func TestDrainHangs(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.listen()
	p := f.run(f.env(1), "check/ends", "stuck")
	m := f.member(0)
	m.awaitRequest()
	started := time.Now()
	lease := m.open()
	f.eventually("the program has launched the work behind its wait", func() bool { return strings.Contains(p.out.String(), "behind") })
	m.close(lease)
	fmt.Fprintln(p.in)
	if back := m.awaitReturn(lease); back.UsedNS != math.MaxUint64 || back.Flags&wire.ReturnWantsMore == 0 {
		t.Errorf("returned lease: got %+v, want an unknown GPU time and a request for another", back)
	}
	lease = m.open()
	if used := time.Duration(m.awaitReturn(lease).UsedNS); used < time.Second || used > time.Since(started) {
		t.Errorf("GPU time of the work in flight: got %v, want at least 1s and at most the elapsed %v", used, time.Since(started))
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestDrainIsAnnounced closes the gate on endless kernels. The daemon, which has asked for
// announcements, gets one per lease, at most LeadNS before the work in flight finishes,
// unless the host misses that moment.
func TestDrainIsAnnounced(t *testing.T) {
	t.Parallel()
	const lead = 250 * time.Microsecond
	f := newFake(t)
	f.flags = wire.PageEndings
	f.listen()
	f.run(f.env(1), "check/steady", "600", "100")
	m := f.member(0)
	atomic.StoreUint64(&m.slot().LeadNS, uint64(lead))
	announced := 0
	f.eventually("the process has announced ten ends", func() bool {
		m.awaitRequest()
		before := atomic.LoadUint64(&m.slot().Launches)
		lease := m.open()
		f.eventually("the process has launched 50 more kernels", func() bool {
			if m.requests.Load() > 0 { // it had no processor, and returned the lease
				lease = m.open()
			}
			return atomic.LoadUint64(&m.slot().Launches) > before+50
		})
		m.close(lease)
		m.awaitReturn(lease)
		m.mu.Lock()
		if n := len(m.endings); n > 1 || n == 1 && (m.endings[0].Lease != lease || time.Duration(m.endings[0].LeftNS) > lead) {
			t.Errorf("announcements of the end of lease %d: got %+v, want at most one, at most %v before it", lease, m.endings, lead)
		}
		announced += len(m.endings)
		m.endings = nil
		m.mu.Unlock()
		return announced >= 10
	})
}
