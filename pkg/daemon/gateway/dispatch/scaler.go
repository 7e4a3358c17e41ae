package dispatch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Scalers returns the names of the autoscalers.
func Scalers() []string { return append([]string{"none"}, scale.Names()...) }

// autoscaling is a function's autoscaler with its state. Dispatcher.mu guards it. The
// policy keeps as many instances as the scaler wants, and starts one for a waiting call if there is none. If the scaler chooses the
// configuration of each instance, it also chooses the instances to stop. Otherwise all
// instances are alike, and the policy stops surplus instances that are idle.
type autoscaling struct {
	scaler    *scale.Scaler
	rows      []profile.Row         // configurations that the scaler chooses from
	chooses   bool                  // the scaler chooses the configuration of each instance
	calls     int                   // since the last tick
	known     map[residency.ID]bool // instances that the scaler counts; the value reports whether it knows that they are ready
	surplus   []residency.ID        // alive instances that the scaler has asked to stop, in its order
	requested []scale.Start         // instances of the last tick that have not begun to start
	wanted    int
}

const (
	scaleEvery = time.Second
	// beyondIdle is how long an instance beyond the wanted number may be idle. It is long
	// enough for the scaler to have counted the instance.
	beyondIdle = 2 * scaleEvery
)

func bounds(fn function.Function) scale.Bounds {
	return scale.Bounds{Min: fn.Scale.Min, Max: fn.Scale.Max, Idle: fn.Scale.Idle}
}

// configure passes the bounds of a changed definition to the scaler.
func (s *autoscaling) configure(now time.Duration, fn function.Function) {
	s.scaler.Step(now, []scale.Event{scale.Configure{Bounds: bounds(fn)}}, nil)
}

// scale ticks all autoscalers, sends the policy the changed specs, and starts the missing
// instances of placed functions.
func (d *Dispatcher) scale() {
	d.mu.Lock()
	defer d.mu.Unlock()
	running := map[*Function][]*Instance{}
	for _, i := range d.Instances.byID {
		if i.alive() {
			running[i.function] = append(running[i.function], i)
		}
	}
	for _, f := range d.inOrder() {
		if f.scaling == nil || f.removed {
			continue
		}
		slices.SortFunc(running[f], func(a, b *Instance) int { return cmp.Compare(a.id, b.id) })
		now, before, rps := d.policy.now(), f.scaling.wanted, f.scaling.rps()
		why := f.scaling.tick(now, running[f], f.unit)
		d.policy.recorder.load(now, f.name, rps, f.scaling.wanted)
		retired := f.scaling.drainSurplus()
		for _, id := range retired {
			d.Instances.byID[id].retire()
		}
		if f.scaling.wanted != before {
			d.log.Info("scaled", "function", f.name, "scaler", d.cfg.Scaler, "from", before, "to", f.scaling.wanted, "why", why.String())
		}
		switch {
		case f.scaling.wanted != before:
			f.respec() // with the retired instances in one step: without them, there may be fewer than the old Min
		case len(retired) > 0:
			d.policy.step()
		}
	}
	d.placements.startMissing()
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
		for _, v := range running {
			if v.id == id && s.chooses {
				in = v.config
			}
			in.Pinned = in.Pinned || v.id == id && !v.own
		}
		in.ID = name(id)
		events = append(events, scale.Deployed{Instance: in})
	}
	s.surplus = slices.DeleteFunc(s.surplus, gone)
	reclaim := func() bool {
		if len(s.surplus) == 0 {
			return false
		}
		last := len(s.surplus) - 1
		id := s.surplus[last]
		s.surplus = s.surplus[:last]
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
	events = append(events, scale.Load{RPS: s.rps()})
	s.calls = 0
	more := 0
	s.requested = s.requested[:0]
	for _, a := range s.scaler.Step(now, events, nil) {
		switch a := a.(type) {
		case scale.Start:
			more, why = more+a.Count, a.Reason
			s.requested = append(s.requested, a)
		case scale.Stop:
			why = a.Reason
			for _, text := range a.IDs {
				for _, v := range running {
					if _, known := s.known[v.id]; known && name(v.id) == text {
						delete(s.known, v.id)
						s.surplus = append(s.surplus, v.id)
					}
				}
			}
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
	if why.IsZero() { // waiting calls have started instances
		why = s.scaler.Snapshot().Reason
	}
	return why
}

// rps returns the load since the last tick, in calls per second.
func (s *autoscaling) rps() float64 { return float64(s.calls) / scaleEvery.Seconds() }

// drainSurplus empties the list of surplus instances, and returns it, if the scaler chooses instances. For a
// uniform scaler it returns nil, because the policy stops idle instances beyond the wanted number by itself.
func (s *autoscaling) drainSurplus() (ids []residency.ID) {
	if s.chooses {
		ids, s.surplus = s.surplus, nil
	}
	return ids
}

// retire makes the next step of the policy stop the instance as soon as it is idle. Locked.
func (i *Instance) retire() {
	i.retired = true
	i.d.policy.add(&queue.Retired{Function: i.function.number, Instance: i.id})
}

// removeRequested removes the first requested instance whose configuration satisfies may, and returns this
// configuration. It returns false if there is none.
func (s *autoscaling) removeRequested(may func(profile.Row) bool) (like scale.Instance, ok bool) {
	for n := range s.requested {
		if g := &s.requested[n]; g.Count > 0 && may(g.Like.Request) {
			g.Count--
			return g.Like, true
		}
	}
	return scale.Instance{}, false
}
