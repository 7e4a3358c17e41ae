package gateway

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

const (
	parkLook = 20 * time.Millisecond // between two looks at what of an instance's memory waits on the host
	parkTime = 5 * time.Second       // for all of it to do so by itself
	moveTime = time.Minute           // for the Parker to move it
)

// park has the memory of an instance go to the host; false if it does not.
func (g *Gateway) park(s *server) bool {
	if g.cfg.Park == ParkSwap {
		return g.parked(s.record.ID)
	}
	s.Lock()
	defer s.Unlock()
	if !g.engine.unused(s) {
		return false
	}
	ctx, cancel := context.WithTimeout(g.life, moveTime)
	defer cancel()
	if err := g.cfg.Parker.Park(ctx, s.record.ID); err != nil {
		g.log.Warn("instance not parked", "instance", s.record.ID, "function", s.record.Function, "err", err)
		return false
	}
	return true
}

// unused says whether an instance is still to be parked: no call has come for it.
func (e *engine) unused(s *server) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.state == serverReady && s.out && !s.comes
}

// parked waits until all memory of an instance has gone to the host by itself; false if
// it does not come to that.
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

// found is where the memory of an instance is that was found running.
func (g *Gateway) found(ctx context.Context, id string) residency.Start {
	if g.cfg.Usage == nil {
		return residency.GPUWarm
	}
	ctx, cancel := context.WithTimeout(ctx, usageTime)
	defer cancel()
	s, err := g.cfg.Usage(ctx)
	if err != nil {
		return residency.GPUWarm
	}
	for _, on := range s.GPUs {
		for _, c := range on.Clients {
			if c.Instance == id && c.MemParkedMiB > 0 && c.MemParkedMiB == c.MemUsedMiB {
				return residency.HostWarm
			}
		}
	}
	return residency.GPUWarm
}

// bring begins to bring back the memory of an instance. Locked.
func (e *engine) bring(s *server) {
	if s.comes {
		return
	}
	s.comes = true
	e.g.deed(func() {
		s.Lock()
		defer s.Unlock()
		e.came(s, e.g.unpark(s.record.ID))
	})
}

// unpark brings the memory of an instance back. A token daemon that is not there is
// waited for: instances are, too.
func (g *Gateway) unpark(id string) error {
	ctx, cancel := context.WithTimeout(g.life, moveTime)
	defer cancel()
	for {
		err := g.cfg.Parker.Unpark(ctx, id)
		var missing interface{ Unavailable() bool }
		if err == nil || !errors.As(err, &missing) || !missing.Unavailable() || !pause(ctx, parkLook) {
			return err
		}
	}
}

// came says that the memory of an instance has come back: what waits for that runs. Or
// that it has not: then the instance is good for nothing, and what waits for it waits
// for another.
func (e *engine) came(s *server, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.comes = false
	waiting := slices.DeleteFunc(slices.Clone(s.calls), func(c *call) bool { return c.state != callStarts })
	if err == nil && s.state != serverGone {
		s.out = false
		for _, c := range waiting {
			c.loading, c.state = e.now()-c.sent, callRuns
			c.turn <- nil
		}
		if s.fetched {
			s.fetched = false
			e.step(queue.Event{Kind: queue.Moved, Instance: s.id, Function: s.target.number, To: residency.GPUWarm})
		}
		return
	}
	now := e.now()
	s.busy = now // what failed is no use of the GPU
	if err == nil {
		err = errDied
	}
	for _, c := range waiting {
		ev := e.failed(c, queue.Event{Kind: queue.Failed, Again: now < c.deadline, Deadline: c.deadline})
		ev.Executed = 0
		if ev.Again {
			c.arrived, c.state = now, callWaits
		} else {
			e.drop(c)
			c.turn <- startFailed(s.target, err)
		}
		e.pending = append(e.pending, ev)
	}
	if s.state == serverReady {
		e.g.log.Error("instance lost: its memory did not come back", "instance", s.record.ID, "function", s.record.Function, "err", err)
		e.gone(s)
		e.pending = append(e.pending, queue.Event{Kind: queue.Lost, Instance: s.id, Function: s.target.number})
		e.g.deed(func() { e.g.discard(s.record) })
	}
	e.step()
}
