package token

import (
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Under the introspective policy processes are held to budgets of kernel
// blocks beside their leases. The scheduler asks to be woken every 5 ms while
// anybody is active, and is told before each wake what the holders of leases
// have launched; while all are idle there is no timer.

// metered says whether processes are held to budgets.
func (d *Daemon) metered() bool { return d.cfg.Policy == policy.Introspection }

// wake tells the scheduler what its clients have launched, and wakes it.
// Locked.
func (g *device) wake() {
	var events []policy.Event
	if g.d.metered() {
		for _, m := range g.d.members {
			if m.seat.gpu == g && m.lease != 0 {
				events = append(events, m.sample())
			}
		}
	}
	g.step(append(events, policy.Wake{})...)
}

// sample is what a process has launched.
func (m *member) sample() policy.Event {
	n := m.seat.page.counters(m.slot)
	return policy.Sample{Client: m.id, Launches: n.launches, Blocks: n.blocks}
}

func (g *device) budget(a policy.Budget) {
	if m := g.d.members[a.Client]; m != nil {
		m.seat.page.setBudget(m.slot, a.Blocks)
	}
}

// prepared takes note of what preparations for an instance came to: where
// there is something to note its SM share holds nobody back.
func (d *Daemon) prepared(i *instance, answer wire.Registered) {
	_ = d.locked(func() {
		known := d.instances[i.reg.Instance]
		if loose := answer.Note != ""; known != nil && known.loose != loose {
			known.loose = loose
			d.seatsOf(known)
		}
	})
}

// meter says in the page that its processes are held to budgets. It is called
// before anybody else has the page.
func (p *page) meter() {
	header := (*wire.PageHeader)(unsafe.Pointer(&p.mem[0]))
	atomic.StoreUint32(&header.Flags, wire.PageMetered)
}

// setBudget says how many blocks a process may have launched, and wakes who
// waits for that.
func (p *page) setBudget(n int, blocks uint64) {
	s := p.slot(n)
	before := atomic.SwapUint64(&s.Budget, blocks)
	atomic.AddUint32(&s.Refill, 1)
	if atomic.LoadUint64(&s.Blocks) < before {
		return // it had some left: nobody waits
	}
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.Refill)), futexWake, math.MaxInt32, 0, 0, 0)
}

// scaling adds to a row of the status what the policy says of a client and its
// instance.
func scaling(row *wire.ClientStatus, c policy.ClientStatus, i policy.InstanceStatus) {
	row.Phase = i.Phase
	if c.Budget != policy.Unlimited {
		row.BudgetBlocks = c.Budget
	}
}
