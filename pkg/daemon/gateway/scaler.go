package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Scalers returns the names of the ways in which the number of a function's instances may
// follow its load.
func Scalers() []string { return append([]string{"none"}, scale.Names()...) }

// autoscaling is a function's scaler, and what it knows. The engine's, under its lock.
// What the scaler wants is the least number of instances that the policy keeps;
// which of those beyond stops is for the policy to say.
type autoscaling struct {
	scaler *scale.Scaler
	came   int                   // calls since the last tick
	known  map[residency.ID]bool // instances that it counts; true when it knows that they are ready
	beyond []residency.ID        // those that it does not want any more and that run still
	wanted int
}

const (
	scaleEvery = time.Second
	// beyondIdle is for how long an instance that no scaler asked for may idle: it
	// hears of it by then.
	beyondIdle = 2 * scaleEvery
)

// rowOf returns the configuration that a function's instances have: the unit of a scaler
// whose instances are all alike, or else the most efficient that is within its objective.
// It returns nil where the profile has none.
func rowOf(fn function.Function, rows []profile.Row, scaler string) *scale.Instance {
	kind, scales := scale.KindOf(scaler)
	if kind.Uniform {
		unit, err := scale.Unit(rows)
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

// rows returns the rows of the profile for a function on a GPU.
func (e *engine) rows(name string, number int) []profile.Row {
	return profile.On(e.g.settings.Load().Profile[name], e.g.cfg.GPUs[number].Model)
}

// unitOf returns the configuration by which a function is scaled: that of its
// instances, of several GPU models the one that sustains least. It returns nil where the
// profile has none for any of the GPUs.
func (e *engine) unitOf(fn function.Function) (unit *scale.Instance) {
	for number := range e.g.cfg.GPUs {
		row := rowOf(fn, e.rows(fn.Name, number), e.g.cfg.Scaler)
		if row != nil && (unit == nil || row.Request.ThroughputRPS < unit.Request.ThroughputRPS) {
			unit = row
		}
	}
	return unit
}

// sliceOf returns the slice that an instance gets of a GPU: its profile's row for the
// GPU's model, or else all SMs and at least its part of the time. Locked.
func (e *engine) sliceOf(t *target, number int) (s gpu.Slice, profiled bool) {
	fn := t.function
	s = gpu.Slice{SMPct: 100, QuotaRequest: 1 / float64(max(e.g.cfg.Concurrency, 1)), QuotaLimit: 1, Mem: fn.GPUMem}
	row := rowOf(fn, e.rows(fn.Name, number), e.g.cfg.Scaler)
	if row == nil {
		return s, false
	}
	s.SMPct, s.QuotaRequest, s.QuotaLimit = row.Request.SMPct, row.Request.Quota, row.Limit.Quota
	return s, true
}

// newScaling is that of a function; nil where nothing says how it scales. Locked.
func (e *engine) newScaling(t *target) *autoscaling {
	unit := e.unitOf(t.function)
	if unit == nil {
		return nil
	}
	kind, scales := scale.KindOf(e.g.cfg.Scaler)
	if !scales {
		return nil
	}
	o := scale.DefaultOptions()
	o.Bounds = bounds(t.function)
	made := kind.New(scale.Setup{Rows: []profile.Row{unit.Request}, Unit: *unit, Load: scale.Last{}, Options: o})
	return &autoscaling{scaler: made, known: map[residency.ID]bool{}}
}

func bounds(fn function.Function) scale.Bounds {
	return scale.Bounds{Min: fn.Scale.Min, Max: fn.Scale.Max, Idle: fn.Scale.Idle}
}

// scale has the scalers decide once a second, until the context ends.
func (g *Gateway) scale(ctx context.Context) {
	if g.cfg.Scaler == "" || g.cfg.Scaler == "none" {
		return
	}
	for pause(ctx, scaleEvery) {
		g.engine.scale()
	}
}

func (e *engine) scale() {
	e.mu.Lock()
	defer e.mu.Unlock()
	there := map[*target][]*server{}
	for _, s := range e.servers {
		if (s.state == serverStarts || s.state == serverReady) && !s.outdated() {
			there[s.target] = append(there[s.target], s)
		}
	}
	for _, t := range e.inOrder() {
		if t.scaling == nil || t.gone {
			continue
		}
		slices.SortFunc(there[t], func(a, b *server) int { return cmp.Compare(a.id, b.id) })
		before := t.scaling.wanted
		why := t.scaling.tick(e.now(), there[t], t.unit)
		if t.scaling.wanted != before {
			e.g.log.Info("scaled", "function", t.name, "scaler", e.g.cfg.Scaler, "from", before, "to", t.scaling.wanted, "why", why)
			e.respec(t)
		}
	}
}

// tick tells the scaler of a second that has passed and counts what it wants. What
// it would stop is told to be there again when another went in its place, or when
// it wants more after all.
func (s *autoscaling) tick(now time.Duration, there []*server, unit scale.Instance) (why string) {
	name := func(id residency.ID) string { return fmt.Sprint(int64(id)) }
	var events []scale.Event
	gone := func(id residency.ID) bool {
		return !slices.ContainsFunc(there, func(v *server) bool { return v.id == id })
	}
	deploy := func(id residency.ID) {
		s.known[id] = false
		in := unit
		in.ID = name(id)
		events = append(events, scale.Deployed{Instance: in})
	}
	s.beyond = slices.DeleteFunc(s.beyond, gone)
	reclaim := func() bool {
		if len(s.beyond) == 0 {
			return false
		}
		id := s.beyond[0]
		s.beyond = s.beyond[1:]
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
		events = append(events, scale.Gone{ID: name(id)})
		reclaim()
	}
	for _, v := range there {
		if _, known := s.known[v.id]; !known && !slices.Contains(s.beyond, v.id) {
			deploy(v.id)
		}
	}
	for _, v := range there {
		if ready, known := s.known[v.id]; known && !ready && v.state == serverReady {
			s.known[v.id] = true
			events = append(events, scale.Ready{ID: name(v.id)})
		}
	}
	events = append(events, scale.Load{RPS: float64(s.came) / scaleEvery.Seconds()})
	s.came = 0
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
					s.beyond = append(s.beyond, id)
				}
			}
			slices.Sort(s.beyond)
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
	return strings.TrimSpace(why)
}
