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
