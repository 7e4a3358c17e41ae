package gateway

import (
	"context"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

const (
	usageEvery = time.Second            // how often the token daemon is asked
	adaptEvery = 200 * time.Millisecond // the same, where the policy goes by it
	usageTime  = time.Second            // for its answer
)

// measure asks the token daemon what its instances use, until the context ends.
func (g *Gateway) measure(ctx context.Context) {
	if g.cfg.Usage == nil {
		return
	}
	every := usageEvery
	if g.cfg.Policy.Utilization > 0 {
		every = adaptEvery
	}
	for pause(ctx, every) {
		asking, cancel := context.WithTimeout(ctx, usageTime)
		s, err := g.cfg.Usage(asking)
		cancel()
		if err != nil {
			g.usage.Store(nil) // it is not there: nothing is known
			continue
		}
		g.usage.Store(&s)
		if g.cfg.Policy.Utilization <= 0 {
			continue
		}
		g.engine.mu.Lock()
		for i, gpu := range g.cfg.GPUs {
			busy, _ := usageOf(&s, gpu.Name)
			g.engine.step(queue.Event{Kind: queue.Used, GPU: int32(i), Busy: busy})
		}
		g.engine.mu.Unlock()
	}
}

const (
	parkLook = 20 * time.Millisecond // between two looks at what of an instance's memory waits on the host
	parkTime = 5 * time.Second       // for all of it to do so
)

// parked waits until all memory of an instance waits on the host; false if it does
// not come to that.
func (g *Gateway) parked(id string) bool {
	ctx, cancel := context.WithTimeout(g.life, parkTime)
	defer cancel()
	for {
		if s, err := g.cfg.Usage(ctx); err == nil {
			if mem, known := memoryOf(&s, id); known && mem <= 0 {
				return true
			}
		}
		if !pause(ctx, parkLook) {
			return false
		}
	}
}
