package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

const (
	stateTime  = 10 * time.Second // for a change of the state file
	stopTime   = 30 * time.Second // to stop one instance
	stopsAtEnd = 16               // at a time
	endingTime = time.Second / 10 // for a process to end whose connection did
	engineTime = time.Second      // the same, for an engine to tell of its container
	firstRetry = time.Second      // after what should not fail did; doubles
	lastRetry  = 30 * time.Second
)

// deed does something beside the engine. At the end they are waited for.
func (g *Gateway) deed(do func()) { g.deeds.Go(do) }

// start starts an instance, and tells the engine when it is ready or that it could
// not be.
func (g *Gateway) start(s *server) {
	defer s.cancel()
	began := time.Now()
	r, err := g.launch(s)
	if err == nil {
		g.measureStarted(s)
	} else {
		err = g.shortOfMemory(s, err)
	}
	switch {
	case err == nil && g.engine.started(s, r):
		g.log.Info("instance started", "function", r.Function, "instance", r.ID, "gpu", g.cfg.GPUs[s.gpu].Name, "took", time.Since(began).Round(time.Millisecond).String())
		g.deed(func() { g.watch(s) })
		g.write(func(ctx context.Context) error { return g.cfg.Catalog.Update(ctx, r) })
	case err != nil && g.engine.notStarted(s, err):
		if g.life.Err() == nil {
			g.log.Error("instance not started", "function", r.Function, "instance", r.ID, "err", err)
		}
	default: // the start was cancelled
		if err == nil {
			g.discard(r)
		}
		g.log.Info("start cancelled: the function has changed or is gone", "function", r.Function, "instance", r.ID)
		g.engine.stopped(s)
	}
}

// intend names an instance that is to be started, and gives it its slice. Locked.
func (e *engine) intend(s *server) {
	fn, id := s.function, e.g.newID(s.target.name)
	slice, _ := e.sliceOf(s.target, int(s.gpu))
	s.parks = e.g.parks(fn)
	s.record = launch.Intended(fn, instance.Placement{ID: id, GPUs: []string{e.g.cfg.GPUs[s.gpu].Name}, Slice: slice})
	s.record.Registered, s.record.Owner = []string{id}, instance.Gateway
}

// parks says whether the memory of a function's instances waits on the host while
// they have no work: where it is bounded, or it could take all of the host's.
func (g *Gateway) parks(fn function.Function) bool {
	return g.cfg.Park != "" && g.cfg.Usage != nil && fn.GPUMem > 0
}

// launch starts an instance of a function. The intent is written down before, so
// that the next gateway knows of it should this one be killed. After an error nothing
// is left of it, unless the start was not cancelled and it could not be stopped: then
// that is tried on.
func (g *Gateway) launch(s *server) (instance.Record, error) {
	fn, r := s.function, s.record
	p := instance.Placement{ID: r.ID, GPUs: r.GPUs, Slice: r.Slice, Oversubscribe: g.parks(fn) && g.cfg.Park == ParkSwap}
	if fn.GPUs > 1 {
		return r, fmt.Errorf("it spans %d GPUs: only instances of a plan (gfaas up) do", fn.GPUs)
	}
	ctx, cancel := context.WithTimeout(g.life, stateTime)
	err := g.cfg.Catalog.Reserve(ctx, r)
	cancel()
	if err != nil {
		return r, err
	}
	p.Note = func(r instance.Record) error {
		r.Owner = instance.Gateway
		return g.cfg.Catalog.Update(g.life, r)
	}
	started, err := g.cfg.Starter.Start(s.life, fn, p)
	started.Owner = instance.Gateway
	if err == nil {
		return started, nil
	}
	var failed *ports.StartError
	switch remains := errors.As(err, &failed) && failed.Remains; {
	case remains && s.life.Err() != nil:
		g.discard(started)
	case remains:
		g.deed(func() { g.discard(started) })
	default:
		g.forgetRecord(r.ID)
	}
	return r, err
}

// newID names an instance.
func (g *Gateway) newID(name string) string {
	const most = 48 // of 63, so that the number fits
	return fmt.Sprintf("%s.%d", name[:min(len(name), most)], g.lastID.Add(1))
}

// watch waits until an instance ends by itself.
func (g *Gateway) watch(s *server) {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		state, err := g.cfg.Starter.Wait(g.life, s.record)
		if g.life.Err() != nil {
			return
		}
		if err == nil {
			g.ended(s, state)
			return
		}
		g.log.Warn("cannot watch an instance", "instance", s.record.ID, "err", err)
		if !pause(g.life, retry) {
			return
		}
	}
}

// unknownEnd is how an instance ended whose end nobody saw.
var unknownEnd = instance.State{ExitCode: -1, Detail: "ended"}

// ended says that an instance has ended by itself.
func (g *Gateway) ended(s *server, state instance.State) {
	if !g.engine.died(s) {
		return
	}
	g.log.Error("instance ended", "instance", s.record.ID, "function", s.record.Function, "how", state.Detail)
	if s.own {
		g.deed(func() { g.discard(s.record) })
		g.deed(func() { g.restartOwn(s, state) })
		return
	}
	g.restartOther(s.record, state)
}

// suspect waits a moment for an instance whose connection ended too early to be known
// to have ended, if it has: so long its place is not free. What ends still takes
// connections for an instant; a container's port is its engine's, which does until it
// knows.
func (g *Gateway) suspect(s *server) {
	patience := endingTime
	if s.record.Runtime == instance.Docker {
		patience = engineTime
	}
	ctx, cancel := context.WithTimeout(g.life, patience)
	defer cancel()
	if state, err := g.cfg.Starter.Wait(ctx, s.record); err == nil {
		g.ended(s, state)
	}
}

// bury puts away an instance that does not answer. One that is not the gateway's
// may answer again.
func (g *Gateway) bury(s *server) {
	if s.own {
		g.discard(s.record)
		return
	}
	for retry := firstRetry; pause(g.life, retry); retry = min(2*retry, lastRetry) {
		var gone *ports.GoneError
		if err := g.cfg.Starter.Adopt(g.life, s.record); errors.As(err, &gone) {
			g.restartOther(s.record, unknownEnd)
			return
		}
		dialer := net.Dialer{Timeout: firstRetry}
		conn, err := dialer.DialContext(g.life, "tcp", s.record.Handle.Address)
		if err != nil {
			continue
		}
		_ = conn.Close()
		g.takeOver(g.life, s.record, false)
		return
	}
}

// discard stops what is left of an instance and forgets it, however often it takes.
func (g *Gateway) discard(r instance.Record) {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(g.life), stopTime)
		err := g.cfg.Starter.Stop(ctx, r)
		cancel()
		if err == nil {
			g.forgetRecord(r.ID)
			return
		}
		g.log.Error("instance not stopped", "instance", r.ID, "err", err)
		if !pause(g.life, retry) {
			return // the next gateway finds its record
		}
	}
}

func (g *Gateway) forgetRecord(id string) {
	g.write(func(ctx context.Context) error { return g.cfg.Catalog.Forget(ctx, id) })
}

// write changes the state, however often it takes.
func (g *Gateway) write(change func(context.Context) error) {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(g.life), stateTime)
		err := change(ctx)
		cancel()
		var missing *ports.NotFoundError
		if err == nil || errors.As(err, &missing) { // who removed it knows
			return
		}
		g.log.Error("the state is not written", "err", err)
		if !pause(g.life, retry) {
			return
		}
	}
}

// stopAll stops the gateway's own instances, at its end.
func (g *Gateway) stopAll() {
	slots := make(chan struct{}, stopsAtEnd)
	var wg sync.WaitGroup
	for _, r := range g.engine.own() {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			g.discard(r)
		})
	}
	wg.Wait()
}

// own are the gateway's own instances that run.
func (e *engine) own() (out []instance.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.servers {
		if s.own && s.state == serverReady {
			out = append(out, s.record)
		}
	}
	return out
}
