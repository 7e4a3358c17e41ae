package token

import (
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// occupancyInterval is the time between two measurements.
const occupancyInterval = time.Second

// occupancy measures the memory that processes occupy on GPUs in addition to their allocations: their
// contexts, and the driver's data for their modules. The preload library does not see this memory,
// but the driver reports it.
type occupancy struct {
	*core
	registry *registry
}

// measure queries the driver once for each GPU that has a client or may have an unmanaged process. It
// does so without the lock.
func (o *occupancy) measure() {
	inUse := map[*device]bool{}
	_ = o.locked(func() {
		for _, i := range o.registry.instances {
			for _, a := range i.allocations {
				if a.connected > 0 || i.findings.outside > 0 {
					inUse[a.gpu] = true
				}
			}
		}
	})
	for g := range inUse {
		occupied, err := o.cfg.Memory(g.name)
		_ = o.locked(func() {
			if (err != nil) != g.unmeasured {
				g.unmeasured = err != nil
				o.log.Info("measurement of GPU memory per process changed", "gpu", g.name, "known", !g.unmeasured, "err", err)
			}
			g.memoryByPID = occupied
			for c := range o.registry.sessions() {
				if c.gpu == g && err == nil {
					c.setForeign(occupied, o.cfg.CountContext)
				}
			}
		})
	}
}

// setForeign records the memory that the process occupies in addition to its own allocations. If
// counts is true, it also writes the amount into the process's slot, where it counts towards the
// limit.
func (c *session) setForeign(occupied map[int]gpu.Bytes, counts bool) {
	s := c.page.slot(c.slot)
	own := gpu.Bytes(min(atomic.LoadUint64(&s.MemUsed), maxBytes))
	c.foreign = 0
	if c.pid != 0 {
		c.foreign = max(0, occupied[c.pid]-own)
	}
	if counts {
		atomic.StoreUint64(&s.MemForeign, uint64(c.foreign))
	}
}
