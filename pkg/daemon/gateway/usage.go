package gateway

import (
	"context"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	adaptEvery = 200 * time.Millisecond // how often the token daemon is asked where the policy goes by it
	usageTime  = time.Second            // for its answer
)

// measure asks the token daemon what its instances use, and the drivers how memory is
// used, until the context ends.
func (g *Gateway) measure(ctx context.Context) {
	if g.cfg.Usage == nil && g.cfg.Memory == nil {
		return
	}
	select {
	case <-g.known: // before, memory of instances would be taken for that of other programs
	case <-ctx.Done():
		return
	}
	every := memoryEvery
	if g.cfg.Policy.Utilization > 0 {
		every = adaptEvery
	}
	var last time.Time
	for again := g.cfg.Memory != nil || pause(ctx, every); again; again = pause(ctx, every) {
		var s *wire.Status
		if now := time.Now(); now.Sub(last) >= memoryEvery-adaptEvery/2 {
			last, s = now, g.measureMemory(ctx)
		} else {
			s = g.askUsage(ctx)
		}
		if s == nil || g.cfg.Policy.Utilization <= 0 {
			continue
		}
		g.engine.mu.Lock()
		for i, gpu := range g.cfg.GPUs {
			busy, _ := usageOf(s, gpu.Name)
			g.engine.step(queue.Event{Kind: queue.Used, GPU: int32(i), Busy: busy})
		}
		g.engine.mu.Unlock()
	}
}

// askUsage asks the token daemon what its instances use; nil if it does not answer.
func (g *Gateway) askUsage(ctx context.Context) *wire.Status {
	if g.cfg.Usage == nil {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, usageTime)
	defer cancel()
	s, err := g.cfg.Usage(asking)
	if err != nil {
		g.usage.Store(nil) // nothing is known
		return nil
	}
	g.usage.Store(&s)
	return &s
}
