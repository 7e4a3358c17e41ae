package dispatch

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/queue"
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
func starting(d *durations) *mean { return &d.start }
func loading(d *durations) *mean  { return &d.load }
func sharing(d *durations) *mean  { return &d.shared }

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
	for number := range d.cfg.GPUs { // if the GPUs are of several models, use the largest slice
		if slice, known := f.slice(number); known {
			s.Slice = max(s.Slice, area(slice))
		}
	}
	if f.scaling != nil {
		if s.Min, s.Idle = max(s.Min, int32(f.scaling.wanted)), beyondIdle; f.scaling.chooses {
			s.Idle = 0 // it names the instances to stop
		}
		s.Max = max(s.Min, 1) // waiting calls start none beyond
	}
	if !d.Known.IsSet() || d.Unsupported(*fn) != "" {
		s.Min = 0 // instances that are still to be adopted may satisfy it
	}
	if fn.Kind == function.Training { // the policy starts no jobs
		s.Min = 0
	}
	if f.delayed > 0 {
		s.Min = min(s.Min, int32(f.maxMin))
	}
	s.Placed = f.placed()
	if known, ok := d.settings.Costs[fn.Name]; ok && known.MemMiB > 0 {
		s.Mem = max(s.Mem, int64(gpu.FromMiB(known.MemMiB)))
	}
	s.MeasuredMem = d.memory.required(f, s.Mem)
	f.readProfileSlope()
	s.Warm, s.Cold, s.Load = f.expect(nil)
	if f.sharesInstance() {
		s.BatchSlope = f.batchSlope()
	}
	return s
}

// expect returns the expected duration of a warm call, which is alone on its instance if it may share it, and of a cold call, and the time to load parked
// memory. Unless it is nil, those measured on GPUs of a class take precedence. Locked.
func (f *Function) expect(class *durations) (warm, cold, load time.Duration) {
	warm, load = usualWarm, usualLoad
	start := usualStart
	settings := &f.d.settings
	if known, ok := settings.Costs[f.name]; ok {
		if settings.FixedCosts {
			return known.Warm, known.Cold, known.Load
		}
		warm, start, load = known.Warm, max(known.Cold-known.Warm, 0), known.Load
	}
	slope := 0.
	if f.sharesInstance() {
		slope = f.batchSlope()
	}
	for _, d := range []*durations{&f.costs.durations, class} {
		if d == nil {
			continue
		}
		if d.warm.n > 0 {
			warm = time.Duration(float64(d.warm.value) / d.usual(slope))
		}
		if d.start.n > 0 {
			start = d.start.value
		}
		if d.load.n > 0 {
			load = d.load.value
		}
	}
	if queue.OneAtATime(f.d.cfg.Policy.Policy) { // instances keep no memory on the host, so each load is a start (R18)
		load = start
	}
	return warm, warm + max(start, load), load
}

// relearn sends the function's costs to the policy if a duration differs by more than a
// tenth from the last one sent, or if the memory has changed. Locked.
func (f *Function) relearn() {
	f.relearnClasses()
	f.relearnShared()
	warm, cold, load := f.expect(nil)
	l := &f.d.memory
	grown := slices.ContainsFunc(l.gpus, func(m gpuMemory) bool { return m.changed(l.required(f, f.spec.Mem), f.spec.MeasuredMem) })
	slope := 0.
	if f.sharesInstance() {
		slope = f.batchSlope()
	}
	fullest := func(slope float64) time.Duration { return queue.InBatch(warm, slope, int(f.spec.Inflight)) }
	if !grown && near(warm, f.spec.Warm) && near(cold, f.spec.Cold) && near(load, f.spec.Load) && near(fullest(slope), fullest(f.spec.BatchSlope)) {
		return
	}
	f.spec.Warm, f.spec.Cold, f.spec.Load, f.spec.BatchSlope, f.spec.MeasuredMem = warm, cold, load, slope, l.required(f, f.spec.Mem)
	f.d.policy.step(&queue.Learned{Function: f.number, Spec: f.spec})
}

func near(a, b time.Duration) bool { return max(a-b, b-a) <= b/10 }
