package token

import (
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// A process occupies more of a GPU than it allocates: its context, and what the
// driver keeps for its modules. The preload library does not see that; the
// driver tells it.

// outsideEvery is how often it is asked, while there are clients.
const outsideEvery = time.Second

// lookOutside asks once for each GPU that somebody is on. The lock is not held
// meanwhile: the driver may take its time.
func (d *Daemon) lookOutside() {
	inUse := map[*device]bool{}
	_ = d.locked(func() {
		for _, m := range d.members {
			inUse[m.seat.gpu] = true
		}
	})
	for g := range inUse {
		occupied, err := d.cfg.Memory(g.name)
		_ = d.locked(func() {
			if (err != nil) != g.blind {
				g.blind = err != nil
				d.log.Info("memory by process", "gpu", g.name, "known", !g.blind, "err", err)
			}
			for _, m := range d.members {
				if m.seat.gpu == g && err == nil {
					m.lookOutside(occupied, d.cfg.CountContext)
				}
			}
		})
	}
}

// lookOutside notes what the process occupies beside its own allocations, and
// tells the process if that counts.
func (m *member) lookOutside(occupied map[int]gpu.Bytes, counts bool) {
	s := m.seat.page.slot(m.slot)
	own := gpu.Bytes(min(atomic.LoadUint64(&s.MemUsed), 1<<62))
	m.outside = 0
	if m.pid != 0 {
		m.outside = max(0, occupied[m.pid]-own)
	}
	if counts {
		atomic.StoreUint64(&s.MemOutside, uint64(m.outside))
	}
}
