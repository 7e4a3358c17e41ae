package hooktest

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// metered is a fake daemon that meters blocks.
func metered(t *testing.T) *fake {
	f := newFake(t)
	f.flags = wire.PageMetered
	f.listen()
	return f
}

// stays checks for a while, in which all threads that launch wait in the preload
// library, that nothing is launched beyond so many.
func (f *fake) stays(what string, p *program, threads, n int, launches func() int) {
	f.t.Helper()
	f.eventually(what, func() bool { return launches() >= n })
	f.eventually("it waits", func() bool { f.alive(p, what); return p.waiting() == threads })
	began := time.Now()
	f.eventually("time passes", func() bool { return time.Since(began) > 150*time.Millisecond })
	if now := launches(); now != n {
		f.t.Errorf("%s: %d launches, want %d", what, now, n)
	}
}

// TestBudget has a process launch as many blocks as its budget allows, and at
// most one launch more: what that is over, the next raise pays.
func TestBudget(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(1), "check/drive", "10")
	p.order(0, 0, 8, 100)
	m := f.member(0)
	m.give()
	launches := func() int { return p.launches(0, 0) }
	f.stays("without a budget", p, 1, 0, launches)
	m.budget(20)
	f.stays("of 20 blocks", p, 1, 3, launches)
	if m.blocks() != 24 {
		t.Errorf("%d blocks, want 24", m.blocks())
	}
	m.budget(24)
	f.stays("of 24 blocks", p, 1, 3, launches)
	m.budget(25)
	f.stays("of 25 blocks", p, 1, 4, launches)
	if row := m.slot(); atomic.LoadUint64(&row.BlockedNS) < uint64(300*time.Millisecond) {
		t.Errorf("blocked for %d ns", atomic.LoadUint64(&row.BlockedNS))
	}
	f.eventually("its launches are told", func() bool { return atomic.LoadUint64(&m.slot().Launches) == 4 })
	// Who waits for a budget is not idle, and gives the lease back when asked. It may
	// have been idle before, when it had no processor for a while.
	var lease uint32
	f.eventually("it has one", func() bool { lease = atomic.LoadUint32(&m.slot().Gate); return lease != 0 })
	before := m.gaveBack()
	f.stays("of 25 blocks", p, 1, 4, launches)
	if now := m.gaveBack(); len(now) > len(before) {
		t.Errorf("it gave its lease %d back: %+v", lease, now)
	}
	m.generous.Store(false)
	m.close(lease)
	if back := m.returned(lease); back.Flags&wire.ReturnWantsMore == 0 {
		t.Errorf("it does not want more: %+v", back)
	}
	m.budget(1 << 40)
	f.stays("behind a closed gate", p, 1, 4, launches)
	m.give()
	f.eventually("it goes on", func() bool { return launches() == 100 })
	if m.blocks() != 800 {
		t.Errorf("%d blocks, want 800", m.blocks())
	}
	// What the driver refuses is not launched; a copy is no kernel.
	p.order(0, 0, -1, 3)
	p.order(0, 0, 0, 3)
	f.eventually("it goes on", func() bool { return launches() == 106 })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if m.blocks() != 800 {
		t.Errorf("%d blocks, want 800", m.blocks())
	}
}

// TestBudgetThreads has many threads come for the last block at once: one gets it.
func TestBudgetThreads(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(1), "check/drive", "10")
	for thread := range 8 {
		p.order(thread, 0, 10, 50)
	}
	m := f.member(0)
	m.give()
	launches := func() int { return strings.Count(p.out.String(), "\n") }
	for n := 1; n <= 10; n++ {
		m.budget(uint64(100*n - 5))
		f.stays("the budget is used up", p, 8, 10*n, launches)
	}
	m.budget(1 << 40)
	if err := p.wait(); err != nil || m.blocks() != 4000 {
		t.Errorf("%v: %d blocks, want 4000", err, m.blocks())
	}
}

// TestBudgetDaemonDies kills the daemon while a process waits for a budget: it
// stalls, says so, and goes on with the next daemon, whose count begins at 0.
func TestBudgetDaemonDies(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(1), "check/drive", "10")
	p.order(0, 0, 1, 100)
	m := f.member(0)
	m.give()
	m.budget(10)
	launches := func() int { return p.launches(0, 0) }
	f.stays("of 10 blocks", p, 1, 10, launches)
	f.die()
	f.eventually("it says that it waits", func() bool { return strings.Contains(p.errout.String(), "no gfaas-tokend") })
	m.budget(1 << 40) // of nobody
	f.stays("without a daemon", p, 1, 10, launches)
	f.listen()
	m = f.member(0)
	m.give()
	m.budget(20)
	f.stays("with the next daemon", p, 1, 30, launches)
	m.budget(1 << 40)
	if err := p.wait(); err != nil || m.blocks() != 90 {
		t.Errorf("%v: %d blocks, want 90", err, m.blocks())
	}
}

// TestBudgetEverywhere has a process launch on two devices at once. While it
// waits at the gate of one it gives the lease of the other back when asked, and
// goes when both are open. What the driver refuses then is put back on both.
func TestBudgetEverywhere(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(2), "check/drive", "10")
	p.order(0, -1, 8, 1)
	zero := f.member(0)
	zero.budget(100)
	zero.asked()
	lease := zero.open()
	one := f.member(1)
	one.budget(100)
	one.asked()
	if zero.blocks() != 8 {
		t.Errorf("%d blocks, want 8", zero.blocks())
	}
	zero.close(lease)
	zero.returned(lease)
	one.give()
	zero.asked()
	if n := p.launches(0, -1); n != 0 {
		t.Errorf("%d launches went by a closed gate", n)
	}
	zero.give()
	f.eventually("it launches", func() bool { return p.launches(0, -1) == 1 })
	for device, m := range []*member{zero, one} {
		if m.blocks() != 0 {
			t.Errorf("device %d: %d blocks were not put back", device, m.blocks())
		}
		f.eventually("the lease is back", func() bool { return atomic.LoadUint32(&m.slot().Gate) == 0 })
		if n := atomic.LoadUint64(&m.slot().Launches); n != 0 {
			t.Errorf("device %d: %d launches are counted, and the driver refused all", device, n)
		}
	}
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestBudgetFork has a process fork before it uses the GPU: each has a budget
// of its own.
func TestBudgetFork(t *testing.T) {
	t.Parallel()
	f := metered(t)
	p := f.run(f.env(1), "check/fork", "before")
	f.eventually("both say hello", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.members) == 2 })
	f.mu.Lock()
	members := f.members
	f.mu.Unlock()
	for _, m := range members {
		m.give()
	}
	for n := uint64(1); n <= 10; n++ {
		for _, m := range members {
			m.budget(n)
			f.eventually("it launches", func() bool { return m.blocks() == n })
		}
	}
	for _, m := range members {
		m.budget(1 << 40)
	}
	f.eventually("it is done", func() bool { return strings.Contains(p.out.String(), "launched 15") })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if a, b := members[0].blocks(), members[1].blocks(); min(a, b) != 10 || max(a, b) != 15 {
		t.Errorf("%d and %d blocks, want 10 and 15", a, b)
	}
}
