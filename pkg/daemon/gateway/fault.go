package gateway

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

// An instance whose process has got a CUDA error after which every call of that process
// fails still runs, and answers on its ready path. Only the preload library sees the error;
// the token daemon keeps it. The gateway asks the daemon and replaces such an instance. One
// that gfaas up started is started again where its function has a restart; otherwise it is
// left alone, for people to look at, and gets no calls.

const (
	faultsEvery = 100 * time.Millisecond // how often the token daemon is asked for faults
	faultsLeast = 5 * time.Millisecond   // the same, after answers 5xx: the next call is to have another instance
)

// watchFaults replaces instances that cannot use CUDA any more, until the context ends.
func (g *Gateway) watchFaults(ctx context.Context) {
	if g.cfg.Faults == nil {
		return
	}
	select {
	case <-g.known:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(faultsEvery)
	defer tick.Stop()
	for again := true; again; again = pause(ctx, faultsLeast) {
		select {
		case <-tick.C:
		case <-g.failing:
		case <-ctx.Done():
			return
		}
		asking, cancel := context.WithTimeout(ctx, usageTime)
		faults, err := g.cfg.Faults(asking)
		cancel()
		if err != nil {
			continue // without a daemon nothing is reported: instances go on when it is back
		}
		for _, f := range faults {
			if !f.Ended {
				g.replace(f)
			}
		}
	}
}

// failed makes watchFaults ask the token daemon at once: an instance has answered 5xx.
func (g *Gateway) failed() {
	select {
	case g.failing <- struct{}{}:
	default:
	}
}

// replace retires an instance that has faulted and starts another in its place, or has it
// started again.
func (g *Gateway) replace(f wire.InstanceFault) {
	s, calls := g.engine.faulted(f)
	if s == nil {
		return
	}
	r := s.record
	args := []any{"instance", r.ID, "function", r.Function, "pid", f.PID, "call", f.Call, "code", f.Code, "error", f.Name}
	if f.After != "" {
		args = append(args, "after", f.After)
	}
	g.log.Error("instance cannot use CUDA any more", args...)
	cut := func() {
		if len(calls) > 0 {
			time.AfterFunc(lastWords, func() {
				for _, c := range calls {
					g.engine.cutIf(c, s)
				}
			})
		}
	}
	fn, _, ok := g.applied(r.Function)
	switch {
	case s.own:
		g.deed(func() { g.discard(r); cut() })
		g.deed(func() { g.replaceOwn(s) })
	case ok && (fn.Restart == "on-failure" || fn.Restart == "always"):
		g.deed(cut)
		g.restartLater(r, true)
	}
}

// replaceOwn has another instance take the place of one of the gateway's own that faulted.
func (g *Gateway) replaceOwn(s *server) {
	want := g.engine.live(s.target) + 1
	wait := g.restarts.next(s.record.Function, time.Since(s.record.Handle.Started))
	if pause(s.generation.life, wait) {
		g.engine.restore(s, want)
	}
}

// faulted takes an instance that has faulted out of what is there, and returns it and the
// calls that run on it; nil if there is no such instance, or the fault is older than it.
func (e *engine) faulted(f wire.InstanceFault) (s *server, calls []*call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, v := range e.servers {
		if v.record.ID == f.Instance && v.state == serverReady && !f.Time.Before(v.record.Handle.Started) {
			s = v
		}
	}
	if s == nil {
		return nil, nil
	}
	if s.own {
		e.dying(s)
	} else {
		e.faults[s.record.ID] = standing{s, f}
	}
	e.gone(s)
	e.hold(s)
	e.step(queue.Event{Kind: queue.Lost, Instance: s.id, Function: s.target.number})
	return s, slices.Clone(s.calls)
}

// standing is an instance that has faulted and is not the gateway's to remove.
type standing struct {
	server *server
	fault  wire.InstanceFault
}

// faultedStatus returns the instances that have faulted and still stand. Locked.
func (e *engine) faultedStatus() (out []status.Instance) {
	for id, f := range e.faults {
		r := f.server.record
		out = append(out, status.Instance{ID: id, Function: r.Function, GPU: strings.Join(r.GPUs, ","), State: "faulted", Fault: f.fault.String(), InFlight: new(len(f.server.calls)),
			Address: r.Handle.Address, SMPct: r.Slice.SMPct, QuotaRequest: r.Slice.QuotaRequest, QuotaLimit: r.Slice.QuotaLimit})
	}
	return out
}

// mended forgets the faults of instances that are gone or were started again since.
func (e *engine) mended(records []instance.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, f := range e.faults {
		if !slices.ContainsFunc(records, func(r instance.Record) bool { return r.ID == id && r.Handle == f.server.record.Handle }) {
			delete(e.faults, id)
		}
	}
}
