package gateway

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// costs is what calls of a function are expected to take: what a file says, then
// means of what was measured.
type costs struct {
	warm, start, load mean

	mem      int64 // the most bytes of a GPU that an instance took
	measured bool  // one has run a call and was measured
}

// mean is a mean of durations; the last few dozen count most.
type mean struct {
	value time.Duration
	n     int
}

// few is how many measurements a mean is of, about, once there were as many.
const few = 32

func (m *mean) add(d time.Duration) {
	if m.n < few {
		m.n++
	}
	m.value += (d - m.value) / time.Duration(m.n)
}

// What is expected of a function that nothing is known of.
const (
	usualWarm  = 100 * time.Millisecond
	usualStart = 2 * time.Second
	usualLoad  = 200 * time.Millisecond
)

// spec is what the policy is told of a function. Locked.
func (e *engine) spec(t *target) queue.Function {
	fn := t.function
	s := queue.Function{
		Name: fn.Name, Mem: int64(fn.GPUMem), Weight: fn.Weight,
		Tenant: e.tenants.Of(fn.Tenant), Queue: int32(t.queue.Load()),
		Inflight: int32(fn.Inflight), Min: int32(fn.Scale.Min), Max: int32(fn.Scale.Max), Idle: fn.Scale.Idle,
	}
	if s.Weight <= 0 {
		s.Weight = 1
	}
	for number := range e.g.cfg.GPUs { // the largest, where GPUs are of several models
		if slice, profiled := e.sliceOf(t, number); profiled {
			s.Slice = max(s.Slice, min(slice.SMPct/100*slice.QuotaRequest, 1))
		}
	}
	if t.scaling != nil {
		s.Min, s.Idle = max(s.Min, int32(t.scaling.wanted)), beyondIdle
	}
	if !e.g.adopted.Load() {
		s.Min = 0 // some may run already
	}
	if t.held > 0 {
		s.Min = min(s.Min, int32(t.kept))
	}
	if fn.GPUs > 1 { // those of a plan, and no more
		s.Min, s.Max = 0, int32(max(e.count(t), 1))
	}
	if known, ok := e.g.settings.Load().Costs[fn.Name]; ok && known.MemMiB > 0 {
		s.Mem = max(s.Mem, int64(gpu.FromMiB(known.MemMiB)))
	}
	s.Need = e.need(t, s.Mem)
	s.Warm, s.Cold, s.Load = e.expect(t)
	return s
}

// expect is what calls of a function are expected to take. Locked.
func (e *engine) expect(t *target) (warm, cold, load time.Duration) {
	warm, load = usualWarm, usualLoad
	start := usualStart
	settings := e.g.settings.Load()
	if known, ok := settings.Costs[t.name]; ok {
		if settings.FixedCosts {
			return known.Warm, known.Cold, known.Load
		}
		warm, start, load = known.Warm, max(known.Cold-known.Warm, 0), known.Load
	}
	if t.costs.warm.n > 0 {
		warm = t.costs.warm.value
	}
	if t.costs.start.n > 0 {
		start = t.costs.start.value
	}
	if t.costs.load.n > 0 {
		load = t.costs.load.value
	}
	return warm, warm + max(start, load), load
}

// learn takes note of how long a call took. Locked.
func (e *engine) learn(c *call, executed time.Duration) {
	t := c.target
	t = e.functions[t.number]
	if t == nil || c.on.outdated() {
		return
	}
	switch {
	case c.on.state != serverReady || len(c.on.calls) > 0:
		return // others ran beside it
	case c.found == residency.HostWarm:
		t.costs.load.add(max(executed-t.spec.Warm, 0))
	default:
		t.costs.warm.add(executed)
	}
	e.relearn(t)
}

// relearn tells the policy what a function costs, when that is another than it
// was told by a tenth and more, or its memory has changed. Locked.
func (e *engine) relearn(t *target) {
	warm, cold, load := e.expect(t)
	grown := slices.ContainsFunc(e.memory.gpus, func(m gpuMemory) bool { return m.changed(e.need(t, t.spec.Mem), t.spec.Need) })
	if !grown && near(warm, t.spec.Warm) && near(cold, t.spec.Cold) && near(load, t.spec.Load) {
		return
	}
	s := e.spec(t)
	t.spec.Warm, t.spec.Cold, t.spec.Load, t.spec.Need = s.Warm, s.Cold, s.Load, s.Need
	e.step(queue.Event{Kind: queue.Learned, Function: t.number, Spec: &s})
}

func near(a, b time.Duration) bool { return max(a-b, b-a) <= b/10 }

// recost tells the policy what functions cost after the file was read again.
func (e *engine) recost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.inOrder() {
		e.relearn(t)
	}
}
