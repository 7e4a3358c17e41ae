package dispatch

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/trace"
)

// costs holds the measured costs of a function's calls.
type costs struct {
	durations

	slope  float64 // the last durations.slope
	fitted bool    // slope is known

	mem      int64 // the most bytes that an instance used on its GPU
	measured bool  // mem comes from an instance that has run a call
}

// durations holds the measured durations of a function's calls.
type durations struct {
	warm, start, load mean // of a warm call, of a start, and of loading memory from the host
	shared            mean // of a start on a GPU that has the weights already, see weights.go
	line              line // of warm calls, see batchtimes.go
}

// Kinds of durations.
func startDuration(d *durations) *mean { return &d.start }
func loadDuration(d *durations) *mean  { return &d.load }
func sharedStart(d *durations) *mean   { return &d.shared }

// mean is a moving average of durations, dominated by about the last `few` values.
type mean struct {
	value time.Duration
	n     int
}

// few is the number of values over which a mean averages.
const few = 32

func (m *mean) add(d time.Duration) {
	if m.n < few {
		m.n++
	}
	m.value += (d - m.value) / time.Duration(m.n)
}

// The assumed costs of a function without measurements.
const (
	usualWarm  = 100 * time.Millisecond
	usualStart = 2 * time.Second
	usualLoad  = 200 * time.Millisecond
)

// newSpec returns the function's spec for the policy. Locked.
func (f *Function) newSpec() queue.Function {
	d, fn := f.d, &f.definition
	s := queue.Function{
		Name: fn.Name, Mem: int64(fn.GPUMem), Weight: fn.Weight,
		Model: f.model, Tenant: d.tenants.Of(fn.Tenant), Queue: int32(f.queue),
		Inflight: int32(fn.Inflight), Min: int32(fn.Scale.Min), Max: int32(fn.Scale.Max), Idle: fn.Scale.Idle,
		BatchesItself: fn.Batcher == nil && fn.Inflight > 1,
	}
	if s.Weight <= 0 {
		s.Weight = 1
	}
	if f.idle != 0 {
		s.Idle = max(f.idle, 0) // 0 means that there is no limit
	}
	if s.Batches = fn.Inflight > 1; s.Batches {
		if s.BatchWindow = d.cfg.BatchWindow; fn.BatchWindow != nil {
			s.BatchWindow = *fn.BatchWindow
		}
	}
	for number := range d.GPUs.list { // if the GPUs are of several models, use the largest slice
		if slice, known := f.chooser().slice(number); known {
			s.Slice = max(s.Slice, area(slice))
		}
	}
	if f.scaling != nil {
		if s.Min, s.Idle = max(s.Min, int32(f.scaling.wanted)), beyondIdle; f.scaling.chooses {
			s.Idle = 0 // it names the instances to stop
		}
		s.Max = max(s.Min, 1) // waiting calls start none beyond
	}
	if !d.Known.IsSet() || d.cfg.whyUnsupported(*fn) != "" {
		s.Min = 0 // until Known, adopted instances may satisfy it; unsupported functions cannot start
	}
	if fn.Kind == function.Training { // the policy starts no jobs
		s.Min = 0
	}
	if f.delayed > 0 {
		s.Min = min(s.Min, int32(f.maxMin))
	}
	s.Placed = f.placing.byPlacer()
	if known, ok := d.settings.Costs[fn.Name]; ok && known.MemMiB > 0 {
		s.Mem = max(s.Mem, int64(gpu.FromMiB(known.MemMiB)))
	}
	s.MeasuredMem = d.memory.required(f, s.Mem)
	f.profileSlope = f.chooser().batchSlope()
	c := f.forecast()
	expected := c.expected(nil)
	s.Warm, s.Cold, s.Load, s.BatchSlope = expected.Warm, expected.Cold, expected.Load, c.sharedSlope()
	return s
}

// forecast predicts the durations of a function's calls from the given and the measured costs. It refers to the measured
// costs, so it may only be used while Dispatcher.mu is held.
type forecast struct {
	given   trace.Function // zero if none are given
	known   bool           // costs are given
	fixed   bool           // they are not updated from measurements
	costs   *costs
	profile *float64 // slope of batches according to the profile; nil if it has none
	batches bool     // calls form batches
	shares  bool     // calls execute together on an instance, in batches that its server forms
	reload  bool     // instances keep no memory on the host, so each load is a start (R18)
}

// forecast returns the forecast of the durations of the function's calls. Locked.
func (f *Function) forecast() forecast {
	given, known := f.d.settings.Costs[f.name]
	return forecast{
		given: given, known: known, fixed: known && f.d.settings.FixedCosts, costs: &f.costs, profile: f.profileSlope,
		batches: f.definition.MaxBatch() > 1, shares: f.definition.Inflight > 1 && f.definition.Batcher == nil,
		reload: queue.OneAtATime(f.d.cfg.Policy.Policy),
	}
}

// expected returns a spec with only Warm (of a call that is alone on its instance), Cold and Load. The durations in
// class, which were measured on GPUs of a class, take precedence; it may be nil.
func (c forecast) expected(class *durations) queue.Function {
	if c.fixed {
		return queue.Function{Warm: c.given.Warm, Cold: c.given.Cold, Load: c.given.Load}
	}
	warm, start, load := usualWarm, usualStart, usualLoad
	if c.known {
		warm, start, load = c.given.Warm, max(c.given.Cold-c.given.Warm, 0), c.given.Load
	}
	for _, d := range []*durations{&c.costs.durations, class} {
		if d == nil {
			continue
		}
		if d.warm.n > 0 {
			warm = time.Duration(float64(d.warm.value) / d.usual(c.sharedSlope()))
		}
		if d.start.n > 0 {
			start = d.start.value
		}
		if d.load.n > 0 {
			load = d.load.value
		}
	}
	if c.reload {
		load = start
	}
	return queue.Function{Warm: warm, Cold: warm + max(start, load), Load: load}
}

// slope returns how much longer an inference takes for each further one in its batch: according to the
// profile, or else to measurements, or else to the given costs. It is 0 if that is unknown or there are no batches.
func (c forecast) slope() float64 {
	switch {
	case !c.batches:
		return 0
	case c.fixed:
	case c.profile != nil:
		return *c.profile
	case c.costs.fitted:
		return c.costs.slope
	}
	return c.given.BatchSlope
}

// sharedSlope returns slope if calls execute together on an instance, and otherwise 0.
func (c forecast) sharedSlope() float64 {
	if !c.shares {
		return 0
	}
	return c.slope()
}

// relearn sends the function's costs to the policy if a duration differs by more than a
// tenth from the last one sent, or if the memory has changed. Locked.
func (f *Function) relearn() {
	f.relearnClasses()
	f.relearnShared()
	c := f.forecast()
	s := c.expected(nil)
	l := &f.d.memory
	grown := slices.ContainsFunc(l.gpus, func(m gpuMemory) bool { return m.changed(l.required(f, f.spec.Mem), f.spec.MeasuredMem) })
	slope := c.sharedSlope()
	fullest := func(slope float64) time.Duration { return queue.InBatch(s.Warm, slope, int(f.spec.Inflight)) }
	if !grown && sameCosts(&s, &f.spec) && near(fullest(slope), fullest(f.spec.BatchSlope)) {
		return
	}
	f.spec.Warm, f.spec.Cold, f.spec.Load, f.spec.BatchSlope = s.Warm, s.Cold, s.Load, slope
	f.spec.MeasuredMem = l.required(f, f.spec.Mem)
	f.d.policy.step(&queue.Learned{Function: f.number, Spec: f.spec})
}

// sameCosts reports whether no duration differs by more than a tenth.
func sameCosts(a, b *queue.Function) bool {
	return near(a.Warm, b.Warm) && near(a.Cold, b.Cold) && near(a.Load, b.Load)
}

func near(a, b time.Duration) bool { return max(a-b, b-a) <= b/10 }
