package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
)

// follow makes the gateway's what the state says, as often as that changes, until
// the context ends.
func (g *Gateway) follow(ctx context.Context) error {
	var last ports.Revision
	f := follower{g: g, others: map[string]instance.Handle{}, starting: starting{map[string]instance.Record{}}}
	for {
		l, err := g.cfg.Catalog.Watch(ctx, last)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			g.log.Error("the state cannot be read", "err", err)
			if !pause(ctx, time.Second) {
				return nil
			}
			continue
		}
		last = l.Revision
		if !f.begun {
			g.goOn(l.Instances)
		}
		g.engine.apply(l.Functions)
		f.instances(ctx, l.Instances)
		if g.adopted.CompareAndSwap(false, true) {
			close(g.known)
			g.engine.keep()
			if g.async != nil {
				g.async.Start()
			}
		}
	}
}

// pause waits; false if the context ends.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// apply makes the functions those that are applied.
func (e *engine) apply(functions []function.Function) {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := map[string]*target{}
	for _, fn := range functions {
		names[fn.Name] = e.set(fn)
	}
	for _, t := range e.inOrder() {
		if names[t.name] == nil && !t.gone {
			t.gone = true
			e.renew(t)
			e.step(queue.Event{Kind: queue.FunctionGone, Function: t.number})
		}
	}
	e.g.names.Store(&names)
}

// set makes a function known, or what has changed of it. Locked.
func (e *engine) set(fn function.Function) *target {
	number := e.numbers.Of(fn.Name)
	t := e.functions[number]
	fresh := t == nil
	if fresh {
		t = &target{name: fn.Name, number: number, since: time.Now()}
		e.g.metrics.of(t)
		e.functions[number] = t
	}
	if t.gone {
		t.since = time.Now()
	}
	renew := !fresh && (t.gone || !same(t.function, fn))
	if fresh || renew {
		e.renew(t)
	}
	t.function = fn
	t.timeout.Store(int64(orElse(fn.Timeout, e.g.cfg.Timeout)))
	t.queue.Store(int64(orElse(fn.Queue, e.g.cfg.Queue)))
	probes, idle := fn.Probed(), fn.Scale.Idle
	if fn.KeepUpgraded {
		idle = 0
	}
	t.probes.Store(&probes)
	t.idle.Store(int64(idle))
	if t.scaling == nil {
		t.scaling = e.newScaling(t)
		if row := e.unitOf(fn); row != nil {
			t.unit = *row
		}
	} else {
		t.scaling.scaler.Step(e.now(), []scale.Event{scale.Configure{Bounds: bounds(fn)}}, nil)
	}
	spec := e.spec(t)
	if fresh || renew || spec != t.spec {
		t.spec, t.gone = spec, false
		e.step(queue.Event{Kind: queue.FunctionSet, Function: number, Spec: &spec, Renew: renew})
	}
	return t
}

// respec tells the policy what it is to know of a function now. Locked.
func (e *engine) respec(t *target) {
	t.spec = e.spec(t)
	spec := t.spec
	e.step(queue.Event{Kind: queue.FunctionSet, Function: t.number, Spec: &spec})
}

// orElse is a value, or another where it is none.
func orElse[T comparable](v, other T) T {
	var none T
	if v == none {
		return other
	}
	return v
}

// forget frees the number of a function of which nothing is left. Locked.
func (e *engine) forget(number int32) {
	if t := e.functions[number]; t != nil {
		t.forgotten.Store(true)
	}
	e.g.metrics.forget(e.numbers.Name(number))
	if e.g.async != nil {
		e.g.async.Forget(e.numbers.Name(number))
	}
	delete(e.functions, number)
	e.numbers.Forget(number)
}

// inOrder is the functions, by number. Locked.
func (e *engine) inOrder() []*target {
	out := make([]*target, 0, len(e.functions))
	for _, n := range slices.Sorted(maps.Keys(e.functions)) {
		out = append(out, e.functions[n])
	}
	return out
}

// follower makes instances known that others started, or a gateway before this
// one.
type follower struct {
	g        *Gateway
	begun    bool                       // what the gateway before this one left is put in order
	others   map[string]instance.Handle // instances of others that are known, by id
	starting starting
}

func (f *follower) instances(ctx context.Context, records []instance.Record) {
	f.g.engine.mended(records)
	f.starting.follow(f.g, records)
	var left []instance.Record // by a gateway that was killed
	for _, r := range records {
		switch {
		case r.Owner == instance.Gateway && f.begun:
		case r.Owner == instance.Gateway:
			left = append(left, r)
		case r.State == instance.Ready && f.others[r.ID] != r.Handle:
			if f.g.takeOver(ctx, r, false) {
				f.others[r.ID] = r.Handle
			}
		case r.State == instance.Starting && r.Restarts > 0: // by a gateway that was killed, if not by this one
			f.g.restartOther(r, unknownEnd)
		}
	}
	f.begun = true
	for _, r := range left {
		f.g.takeOver(ctx, r, true)
	}
}

// goOn has the names of instances go on where those of the gateway before this one
// ended.
func (g *Gateway) goOn(left []instance.Record) {
	for _, r := range left {
		if r.Owner == instance.Gateway {
			g.lastID.Store(max(g.lastID.Load(), number(r.ID)))
		}
	}
}

// keep has as many instances started as functions are to have at least, now that
// those that run already are known.
func (e *engine) keep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.inOrder() {
		if !t.gone && e.spec(t) != t.spec {
			e.respec(t)
		}
	}
}

// number is N of an id NAME.N.
func number(id string) int64 {
	n, err := strconv.ParseInt(id[strings.LastIndexByte(id, '.')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// takeOver adopts an instance that another process started, now or, as long as nobody
// can say whether it runs, later; false if it has ended, or nothing here can use it.
// Then another starts in its place, or what is left of it is put away.
func (g *Gateway) takeOver(ctx context.Context, r instance.Record, own bool) bool {
	err := g.adopt(ctx, r, own)
	if unknown(err) {
		g.deed(func() { g.adoptLater(r, own) })
		return true
	}
	if err != nil {
		g.notAdopted(r, own)
	}
	return err == nil
}

// adoptLater tries to adopt an instance until it is known whether it runs. At the end
// the gateway's own is put away all the same.
func (g *Gateway) adoptLater(r instance.Record, own bool) {
	for retry := firstRetry; pause(g.life, retry); retry = min(2*retry, lastRetry) {
		switch err := g.adopt(g.life, r, own); {
		case err == nil:
			return
		case !unknown(err):
			g.notAdopted(r, own)
			return
		}
	}
	if own && !g.cfg.Keep {
		g.discard(r)
	}
}

// notAdopted sees to an instance that is not there to be taken over, or of no use.
func (g *Gateway) notAdopted(r instance.Record, own bool) {
	if own {
		g.deed(func() { g.discard(r) })
		return
	}
	g.engine.retractID(r.ID)
	g.restartOther(r, unknownEnd)
}

// Why nothing here can use an instance.
var (
	errNotServed = errors.New("its function or its GPU is not served here")
	errOutdated  = errors.New("its function has changed since it was started")
)

// unknown says whether an error of adopt leaves open whether the instance runs.
func unknown(err error) bool {
	var gone *ports.GoneError
	return err != nil && !errors.Is(err, errNotServed) && !errors.Is(err, errOutdated) && !errors.As(err, &gone)
}

// firstGPU returns the number of an instance's first GPU; negative if it is not served
// here.
func (g *Gateway) firstGPU(r instance.Record) int {
	if len(r.GPUs) == 0 {
		return -1
	}
	return slices.IndexFunc(g.cfg.GPUs, func(gpu GPU) bool { return gpu.Name == r.GPUs[0] })
}

// adopt takes over an instance that runs. The error is errNotServed, errOutdated or a
// *ports.GoneError, unless it may pass.
func (g *Gateway) adopt(ctx context.Context, r instance.Record, own bool) error {
	t := (*g.names.Load())[r.Function]
	gpu := g.firstGPU(r)
	if t == nil || gpu < 0 {
		g.log.Warn("instance not adopted: "+errNotServed.Error(), "instance", r.ID, "function", r.Function, "gpus", r.GPUs)
		return errNotServed
	}
	if err := g.cfg.Starter.Adopt(ctx, r); err != nil {
		if unknown(err) && ctx.Err() == nil {
			g.log.Error("instance not adopted yet", "instance", r.ID, "err", err)
		}
		return err
	}
	s := g.engine.adopt(t, int32(gpu), r, own, g.found(ctx, r.ID))
	if s == nil {
		g.log.Info("instance not adopted: "+errOutdated.Error(), "instance", r.ID, "function", r.Function)
		return errOutdated
	}
	g.log.Info("instance adopted", "instance", r.ID, "function", r.Function)
	g.deed(func() { g.watch(s) })
	return nil
}
