package token

import (
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// A process occupies more of a GPU than it allocates: its context, and what the
// driver keeps for its modules. That is foreign to the preload library, which
// does not see it; the driver tells it.

// foreignEvery is how often it is asked, while there are clients.
const foreignEvery = time.Second

// measureForeign asks once for each GPU that a client is on, or that an unmanaged
// process may be on. The lock is not held
// meanwhile: the driver may take its time.
func (d *Daemon) measureForeign() {
	inUse := map[*device]bool{}
	_ = d.locked(func() {
		for _, c := range d.clients {
			inUse[c.alloc.gpu] = true
		}
		for _, i := range d.instances {
			for _, a := range i.allocations {
				if i.outside > 0 {
					inUse[a.gpu] = true
				}
			}
		}
	})
	for g := range inUse {
		occupied, err := d.cfg.Memory(g.name)
		_ = d.locked(func() {
			if (err != nil) != g.unmeasured {
				g.unmeasured = err != nil
				d.log.Info("memory by process", "gpu", g.name, "known", !g.unmeasured, "err", err)
			}
			g.occupied = occupied
			for _, c := range d.clients {
				if c.alloc.gpu == g && err == nil {
					c.measureForeign(occupied, d.cfg.CountContext)
				}
			}
		})
	}
}

// measureForeign notes what the process occupies beside its own allocations, and
// tells the process if that counts.
func (c *client) measureForeign(occupied map[int]gpu.Bytes, counts bool) {
	s := c.alloc.page.slot(c.slot)
	own := gpu.Bytes(min(atomic.LoadUint64(&s.MemUsed), 1<<62))
	c.foreign = 0
	if c.pid != 0 {
		c.foreign = max(0, occupied[c.pid]-own)
	}
	if counts {
		atomic.StoreUint64(&s.MemForeign, uint64(c.foreign))
	}
}
