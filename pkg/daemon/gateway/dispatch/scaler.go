package dispatch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Scalers returns the names of the autoscalers.
func Scalers() []string { return append([]string{"none"}, scale.Names()...) }

// autoscaling is a function's autoscaler with its state. Dispatcher.mu guards it. The
// policy keeps at least as many instances as the scaler wants, and chooses which surplus
// instances to stop.
type autoscaling struct {
	scaler  *scale.Scaler
	calls   int                   // since the last tick
	known   map[residency.ID]bool // instances that the scaler counts; the value reports whether it knows that they are ready
	surplus []residency.ID        // running instances that the scaler has asked to stop
	wanted  int
}

const (
	scaleEvery = time.Second
	// beyondIdle is how long an instance beyond the wanted number may be idle. It is long
	// enough for the scaler to have counted the instance.
	beyondIdle = 2 * scaleEvery
)

// rowOf returns the configuration of a function's instances, which meets the function's
// latency objective. For a scaler with uniform instances, it is the scaler's unit; otherwise
// it is the most efficient row. rowOf returns nil if the profile has no such row.
func rowOf(fn function.Function, rows []profile.Row, scaler string) *scale.Instance {
	kind, scales := scale.KindOf(scaler)
	if kind.Uniform {
		unit, err := scale.Unit(rows, fn.SLO)
		if err != nil {
			return nil
		}
		if !kind.Rises {
			unit.Limit = unit.Request
		}
		return &unit
	}
	able := slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool {
		return r.ThroughputRPS <= 0 || fn.SLO > 0 && r.P95MS > float64(fn.SLO)/float64(time.Millisecond)
	})
	if len(able) == 0 || fn.SLO == 0 && !scales {
		return nil
	}
	best := slices.MaxFunc(able, func(a, b profile.Row) int { return cmp.Compare(a.Efficacy(), b.Efficacy()) })
	return &scale.Instance{Request: best, Limit: best}
}

// rowOn returns the configuration of a function's instances on a GPU, or nil. Locked.
func rowOn(f *Function, number int) *scale.Instance {
	rows := profile.On(f.d.settings.Profile[f.name], f.d.cfg.GPUs[number].Model)
	return rowOf(f.definition, rows, f.d.cfg.Scaler)
}

// scaleUnit returns the configuration by which the function is scaled. If the GPUs are of
// several models, it is the configuration with the lowest throughput. scaleUnit returns nil
// if the profile has no configuration for any GPU. Locked.
func (f *Function) scaleUnit() (unit *scale.Instance) {
	for number := range f.d.cfg.GPUs {
		if row := rowOn(f, number); row != nil && (unit == nil || row.Request.ThroughputRPS < unit.Request.ThroughputRPS) {
			unit = row
		}
	}
	return unit
}

// slice returns the slice of a GPU for a new instance: the profile's row for the GPU's
// model or, without a row, all SMs and an equal share of the time. Locked.
func (f *Function) slice(number int) (s gpu.Slice, profiled bool) {
	s = gpu.Slice{SMPct: 100, QuotaRequest: 1 / float64(max(f.d.cfg.Concurrency, 1)), QuotaLimit: 1, Mem: f.definition.GPUMem}
	row := rowOn(f, number)
	if row == nil {
		return s, false
	}
	s.SMPct, s.QuotaRequest, s.QuotaLimit = row.Request.SMPct, row.Request.Quota, row.Limit.Quota
	return s, true
}

// newScaling returns the function's autoscaler, or nil if there is none or no configuration
// to scale by. Locked.
func (f *Function) newScaling() *autoscaling {
	unit := f.scaleUnit()
	kind, scales := scale.KindOf(f.d.cfg.Scaler)
	if unit == nil || !scales {
		return nil
	}
	o := scale.DefaultOptions()
	o.Bounds = bounds(f.definition)
	made := kind.New(scale.Setup{Rows: []profile.Row{unit.Request}, Unit: *unit, Load: scale.Last{}, Options: o})
	return &autoscaling{scaler: made, known: map[residency.ID]bool{}}
}

func bounds(fn function.Function) scale.Bounds {
	return scale.Bounds{Min: fn.Scale.Min, Max: fn.Scale.Max, Idle: fn.Scale.Idle}
}

// configure passes the bounds of a changed definition to the scaler.
func (s *autoscaling) configure(now time.Duration, fn function.Function) {
	s.scaler.Step(now, []scale.Event{scale.Configure{Bounds: bounds(fn)}}, nil)
}

// scale ticks all autoscalers and sends the policy the changed specs.
func (d *Dispatcher) scale() {
	d.mu.Lock()
	defer d.mu.Unlock()
	running := map[*Function][]*Instance{}
	for _, i := range d.instances {
		if i.alive() {
			running[i.function] = append(running[i.function], i)
		}
	}
	for _, f := range d.inOrder() {
		if f.scaling == nil || f.removed {
			continue
		}
		slices.SortFunc(running[f], func(a, b *Instance) int { return cmp.Compare(a.id, b.id) })
		before := f.scaling.wanted
		why := f.scaling.tick(d.policy.now(), running[f], f.unit)
		if f.scaling.wanted != before {
			d.log.Info("scaled", "function", f.name, "scaler", d.cfg.Scaler, "from", before, "to", f.scaling.wanted, "why", why.String())
			f.respec()
		}
	}
}

// tick sends the scaler the events and the load of the past second, and counts the
// instances that the scaler wants. It returns the scaler's reason. An instance that the
// scaler has asked to stop is reported as deployed again if another one ended instead, or
// if the scaler then wants more.
func (s *autoscaling) tick(now time.Duration, running []*Instance, unit scale.Instance) (why reason.Reason) {
	name := func(id residency.ID) string { return fmt.Sprint(int64(id)) }
	var events []scale.Event
	gone := func(id residency.ID) bool {
		return !slices.ContainsFunc(running, func(v *Instance) bool { return v.id == id })
	}
	deploy := func(id residency.ID) {
		s.known[id] = false
		in := unit
		in.ID = name(id)
		events = append(events, scale.Deployed{Instance: in})
	}
	s.surplus = slices.DeleteFunc(s.surplus, gone)
	reclaim := func() bool {
		if len(s.surplus) == 0 {
			return false
		}
		id := s.surplus[0]
		s.surplus = s.surplus[1:]
		deploy(id)
		return true
	}
	var lost []residency.ID
	for id := range s.known {
		if gone(id) {
			lost = append(lost, id)
		}
	}
	slices.Sort(lost)
	for _, id := range lost {
		delete(s.known, id)
		events = append(events, scale.Terminated{ID: name(id)})
		reclaim()
	}
	for _, v := range running {
		if _, known := s.known[v.id]; !known && !slices.Contains(s.surplus, v.id) {
			deploy(v.id)
		}
	}
	for _, v := range running {
		if ready, known := s.known[v.id]; known && !ready && v.state == instanceReady {
			s.known[v.id] = true
			events = append(events, scale.Ready{ID: name(v.id)})
		}
	}
	events = append(events, scale.Load{RPS: float64(s.calls) / scaleEvery.Seconds()})
	s.calls = 0
	more := 0
	for _, a := range s.scaler.Step(now, events, nil) {
		switch a := a.(type) {
		case scale.Start:
			more, why = more+a.Count, a.Reason
		case scale.Stop:
			why = a.Reason
			for id := range s.known {
				if slices.Contains(a.IDs, name(id)) {
					delete(s.known, id)
					s.surplus = append(s.surplus, id)
				}
			}
			slices.Sort(s.surplus)
		}
	}
	events = events[:0]
	for more > 0 && reclaim() {
		more--
	}
	if len(events) > 0 {
		s.scaler.Step(now, events, nil)
	}
	s.wanted = len(s.known) + more
	return why
}
