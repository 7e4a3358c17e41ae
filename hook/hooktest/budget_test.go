package hooktest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// metered returns a fake daemon that meters blocks.
func metered(t *testing.T) *fake {
	f := newFake(t)
	f.flags = wire.PageMetered
	f.listen()
	return f
}

// checkStalled waits until the program has made n launches and all of its launching threads
// wait in the preload library, and checks for a while that it launches no more.
func (f *fake) checkStalled(description string, p *program, threads, n int, launches func() int) {
	f.t.Helper()
	f.eventually(description, func() bool { return launches() >= n })
	f.eventually(fmt.Sprintf("%d threads of the program wait in the preload library", threads), func() bool { f.alive(p, description); return p.waitingThreads() == threads })
	started := time.Now()
	f.eventually("150 ms have passed", func() bool { return time.Since(started) > 150*time.Millisecond })
	if now := launches(); now != n {
		f.t.Errorf("%s: got %d launches, want %d", description, now, n)
	}
}

// TestBudget lets a process launch the blocks of its budget. The last launch may exceed
// the budget; the next increase of the budget pays for the excess.
func TestBudget(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(1), "check/drive", "10")
	p.order(kernels{blocks: 8, count: 100})
	m := f.member(0)
	m.alwaysGrant()
	launches := func() int { return p.launches(0, 0) }
	f.checkStalled("without a budget", p, 1, 0, launches)
	m.budget(20)
	f.checkStalled("of 20 blocks", p, 1, 3, launches)
	if m.blocks() != 24 {
		t.Errorf("launched blocks: got %d, want 24", m.blocks())
	}
	m.budget(24)
	f.checkStalled("of 24 blocks", p, 1, 3, launches)
	m.budget(25)
	f.checkStalled("of 25 blocks", p, 1, 4, launches)
	if row := m.slot(); atomic.LoadUint64(&row.BlockedNS) < uint64(300*time.Millisecond) {
		t.Errorf("time for which the process was blocked: got %d ns, want at least 300 ms", atomic.LoadUint64(&row.BlockedNS))
	}
	f.eventually("the page counts 4 launches", func() bool { return atomic.LoadUint64(&m.slot().Launches) == 4 })
	// A process that waits for a budget is not idle, and returns its lease only when
	// asked. Before, it may have been idle while it had no processor.
	var lease uint32
	f.eventually("the process holds a lease", func() bool { lease = atomic.LoadUint32(&m.slot().Gate); return lease != 0 })
	before := m.returnedLeases()
	f.checkStalled("of 25 blocks", p, 1, 4, launches)
	if now := m.returnedLeases(); len(now) > len(before) {
		t.Errorf("leases that the waiting process returned: got %+v, want no more than before, and lease %d held", now, lease)
	}
	m.grantAlways.Store(false)
	m.close(lease)
	if back := m.awaitReturn(lease); back.Flags&wire.ReturnWantsMore == 0 {
		t.Errorf("returned lease: got %+v, want a request for another", back)
	}
	m.budget(1 << 40)
	f.checkStalled("behind a closed gate", p, 1, 4, launches)
	m.alwaysGrant()
	f.eventually("the process has launched 100 kernels", func() bool { return launches() == 100 })
	if m.blocks() != 800 {
		t.Errorf("launched blocks: got %d, want 800", m.blocks())
	}
	// A refused launch uses no budget, nor does a copy.
	p.order(kernels{blocks: -1, count: 3})
	p.order(kernels{count: 3})
	f.eventually("the process has launched 106 times", func() bool { return launches() == 106 })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if m.blocks() != 800 {
		t.Errorf("launched blocks: got %d, want 800", m.blocks())
	}
}

// TestBudgetThreads lets many threads compete for the last block. Exactly one thread
// gets it.
func TestBudgetThreads(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(1), "check/drive", "10")
	for thread := range 8 {
		p.order(kernels{thread: thread, blocks: 10, count: 101}) // more than the budgets allow, even if one thread gets them all
	}
	m := f.member(0)
	m.alwaysGrant()
	launches := func() int { return strings.Count(p.out.String(), "\n") }
	for n := 1; n <= 10; n++ {
		m.budget(uint64(100*n - 5))
		f.checkStalled("the budget is used up", p, 8, 10*n, launches)
	}
	m.budget(1 << 40)
	if err := p.wait(); err != nil || m.blocks() != 8080 {
		t.Errorf("launched blocks: got %d, %v; want 8080", m.blocks(), err)
	}
}

// TestBudgetDaemonDies kills the daemon while a process waits for a budget. The process
// stalls, prints a message, and continues with the next daemon, whose count begins at
// 0.
func TestBudgetDaemonDies(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(1), "check/drive", "10")
	p.order(kernels{blocks: 1, count: 100})
	m := f.member(0)
	m.alwaysGrant()
	m.budget(10)
	launches := func() int { return p.launches(0, 0) }
	f.checkStalled("of 10 blocks", p, 1, 10, launches)
	f.stop()
	f.eventually("the program prints that it waits", func() bool { return strings.Contains(p.errout.String(), "no gfaas-tokend") })
	m.budget(1 << 40) // the daemon that owned this page is dead
	f.checkStalled("without a daemon", p, 1, 10, launches)
	f.listen()
	m = f.member(0)
	m.alwaysGrant()
	m.budget(20)
	f.checkStalled("with the next daemon", p, 1, 30, launches)
	m.budget(1 << 40)
	if err := p.wait(); err != nil || m.blocks() != 90 {
		t.Errorf("launched blocks: got %d, %v; want 90", m.blocks(), err)
	}
}

// TestBudgetEverywhere launches on two devices at once. While the process waits at one
// gate, it returns the lease of the other device when asked, and it launches when both
// gates are open. If the driver refuses the launch, the blocks are returned to both
// budgets.
func TestBudgetEverywhere(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(2), "check/drive", "10")
	p.order(kernels{device: -1, blocks: 8, count: 1})
	zero := f.member(0)
	zero.budget(100)
	zero.awaitRequest()
	lease := zero.open()
	one := f.member(1)
	one.budget(100)
	one.awaitRequest()
	if zero.blocks() != 8 {
		t.Errorf("%d blocks, want 8", zero.blocks())
	}
	zero.close(lease)
	zero.awaitReturn(lease)
	one.alwaysGrant()
	zero.awaitRequest()
	if n := p.launches(0, -1); n != 0 {
		t.Errorf("%d launches went by a closed gate, want 0", n)
	}
	zero.alwaysGrant()
	f.eventually("the refused launch was made", func() bool { return p.launches(0, -1) == 1 })
	for device, m := range []*member{zero, one} {
		if m.blocks() != 0 {
			t.Errorf("device %d: got %d blocks charged for a refused launch, want 0", device, m.blocks())
		}
		f.eventually("the process has returned its lease", func() bool { return atomic.LoadUint32(&m.slot().Gate) == 0 })
		if n := atomic.LoadUint64(&m.slot().Launches); n != 0 {
			t.Errorf("device %d: got %d launches counted, want 0, because the driver refused all", device, n)
		}
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestBudgetFork forks a process before it uses the GPU. Each process has its own
// budget.
func TestBudgetFork(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(1), "check/fork", "before")
	f.eventually("both processes are connected", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.members) == 2 })
	f.mu.Lock()
	members := f.members
	f.mu.Unlock()
	for _, m := range members {
		m.alwaysGrant()
	}
	for n := uint64(1); n <= 10; n++ {
		for _, m := range members {
			m.budget(n)
			f.eventually(fmt.Sprintf("the process has launched %d blocks", n), func() bool { return m.blocks() == n })
		}
	}
	for _, m := range members {
		m.budget(1 << 40)
	}
	f.eventually("the program has made its 15 launches", func() bool { return strings.Contains(p.out.String(), "launched 15") })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if a, b := members[0].blocks(), members[1].blocks(); min(a, b) != 10 || max(a, b) != 15 {
		t.Errorf("%d and %d blocks, want 10 and 15", a, b)
	}
}
