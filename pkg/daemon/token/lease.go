package token

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gfaas/gfaas/pkg/wire"
)

// A lease ends by itself, so that a daemon which stands still, stopped or on a
// host that pauses, leaves no gate open: while any lease is out the daemon
// renews all, and a process whose page has counted no renewal for the length of
// a lease closes its gate, drains and gives the lease back to be read later.
const (
	leaseLength = 500 * time.Millisecond
	renewEvery  = leaseLength / 5
)

// leases are what renews those that are out. Guarded by the daemon's lock.
type leases struct {
	timer   *time.Timer
	out     bool          // one may be: the timer is set
	renewed time.Time     // when they were last
	stood   time.Duration // how long the daemon has stood still with none in force
}

// now is the schedulers' time: since the daemon's start, without the time that it
// stood still when all leases had ended by themselves. Nothing ran then, so
// nobody is charged for it and no window passes. Locked.
func (d *Daemon) now() time.Duration {
	now := time.Now()
	if gap := now.Sub(d.leases.renewed) - leaseLength; d.leases.out && gap > 0 {
		d.leases.stood += gap
		d.renew(now)
		d.log.Warn("the daemon stood still: leases ended by themselves", "ms", gap.Milliseconds())
	}
	return now.Sub(d.epoch) - d.leases.stood
}

// startRenewing has leases renewed from now on. Locked.
func (d *Daemon) startRenewing() {
	if !d.leases.out {
		d.leases.out, d.leases.renewed = true, time.Now()
		d.leases.timer.Reset(renewEvery)
	}
}

// renewLeases renews all that are out, until none is. Locked.
func (d *Daemon) renewLeases() {
	d.now() // notes how long it has been
	if d.leases.out = d.renew(time.Now()); d.leases.out {
		d.leases.timer.Reset(renewEvery)
	}
}

// renew says in the pages of all leases that are out that they go on, and whether
// any is.
func (d *Daemon) renew(now time.Time) (any bool) {
	d.leases.renewed = now
	for _, c := range d.clients {
		if c.lease != 0 && !c.suspended {
			any = true
			c.alloc.page.renew()
		}
	}
	return any
}

// renew says to the page's processes that their leases go on.
func (p *page) renew() {
	atomic.AddUint32(&(*wire.PageHeader)(unsafe.Pointer(&p.mem[0])).Renewals, 1)
}
