package scale

import (
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// stepRecord holds the events and actions of one step of a scaler.
type stepRecord struct {
	at      time.Duration
	events  []Event
	actions []Action
}

// unreliableHost is a host on which starts are slow or fail, or no instance is deployed
// at all, instances die, and an instance may ignore a stop. It keeps its own record of
// the deployed instances, to compare it with the scaler's.
type unreliableHost struct {
	t          *rapid.T
	s          *Scaler
	now        time.Duration
	bounds     Bounds
	deployed   []string
	ready      map[string]bool
	stopped    []string // instances that the scaler stopped and that have not terminated yet
	serial     int
	lastActive time.Duration // last time with a load, or with an instance that was not ready
	log        []stepRecord
}

// chance draws whether an event happens, with a probability of 1 in n.
func (f *unreliableHost) chance(event string, n int) bool {
	return rapid.IntRange(1, n).Draw(f.t, event) == 1
}

func (f *unreliableHost) step(events ...Event) []Action {
	actions := f.s.Step(f.now, events, nil)
	f.log = append(f.log, stepRecord{f.now, events, actions})
	return actions
}

// injectEvents passes random events to the scaler, as they may occur between two
// loads.
func (f *unreliableHost) injectEvents() {
	for _, id := range slices.Clone(f.deployed) {
		switch {
		case f.chance("dies or fails to start", 20):
			f.drop(id)
			f.step(Terminated{id})
		case !f.ready[id] && f.chance("becomes ready", 3):
			f.ready[id], f.lastActive = true, f.now
			f.step(Ready{id})
		}
	}
	for _, id := range f.stopped {
		if f.chance("ends", 2) {
			f.step(Terminated{id})
		}
	}
	f.stopped = nil
	if f.chance("new bounds", 20) {
		f.bounds = drawBounds(f.t)
		f.step(Configure{f.bounds})
	}
}

func (f *unreliableHost) drop(id string) {
	f.deployed = slices.DeleteFunc(f.deployed, func(o string) bool { return o == id })
}

// stepSecond advances time by a second with the given load. It checks the scaler's
// actions against the bounds and performs them, apart from those that fail at random.
func (f *unreliableHost) stepSecond(rps float64) {
	f.now += time.Second
	starting := slices.ContainsFunc(f.deployed, func(id string) bool { return !f.ready[id] })
	if rps > 0 || starting || f.now == time.Second {
		f.lastActive = f.now
	}
	before, after := len(f.deployed), len(f.deployed)
	var events []Event
	for _, a := range f.step(Load{rps}) {
		switch a := a.(type) {
		case Start:
			if a.Count <= 0 || Reasons.Check(a.Reason) != nil || a.Like.Request.ThroughputRPS <= 0 {
				f.t.Fatalf("at %v: got %+v, want a count above 0, a reason and a profile row", f.now, a)
			}
			after += a.Count
			events = append(events, f.start(a)...)
		case Stop:
			if len(a.IDs) == 0 || Reasons.Check(a.Reason) != nil {
				f.t.Fatalf("at %v: got %+v, want instances and a reason", f.now, a)
			}
			after -= len(a.IDs)
			for _, id := range a.IDs {
				if !slices.Contains(f.deployed, id) {
					f.t.Fatalf("at %v: stop of %s: it is not deployed, want a deployed instance: %+v", f.now, id, a)
				}
				f.drop(id)
				if f.chance("ignores the stop", 10) {
					f.deployed = append(f.deployed, id)
					f.ready[id] = false
					events = append(events, Deployed{Instance{ID: id, Request: profiled[2], Limit: profiled[1]}})
				} else {
					f.stopped = append(f.stopped, id)
				}
			}
		}
	}
	f.check(before, after)
	f.step(events...)
	if s := f.s.Snapshot(); s.Deployed != len(f.deployed) || Reasons.Check(s.Reason) != nil || s.Load != rps || s.Bounds != f.bounds {
		f.t.Fatalf("at %v: got the state %+v, want %d deployed, a reason, load %g and bounds %+v", f.now, s, len(f.deployed), rps, f.bounds)
	}
}

// start performs an action of the scaler. At random, it does not deploy some of the
// instances.
func (f *unreliableHost) start(a Start) (events []Event) {
	for range a.Count {
		if f.chance("is not deployed", 10) {
			continue
		}
		in := a.Like
		in.ID = strconv.Itoa(f.serial)
		f.serial++
		f.deployed, f.ready[in.ID] = append(f.deployed, in.ID), false
		events = append(events, Deployed{in})
	}
	return events
}

// check compares the number of instances before and after the scaler's actions with the
// bounds.
func (f *unreliableHost) check(before, after int) {
	b := f.bounds
	if after < b.Min || b.Max > 0 && after > b.Max {
		f.t.Fatalf("at %v: got %d instances, want bounds %+v; reason of the scaler: %s", f.now, after, b, f.s.Snapshot().Reason)
	}
	if b.Idle == 0 {
		return
	}
	switch idle := f.now-f.lastActive >= b.Idle; {
	case idle && after != b.Min:
		f.t.Fatalf("at %v: got %d instances without load since %v, want the minimum; bounds %+v", f.now, after, f.lastActive, b)
	case !idle && before > 0 && after == 0:
		f.t.Fatalf("at %v: got no instances, want at least one, since there was load at %v; bounds %+v", f.now, f.lastActive, b)
	}
}

func drawBounds(t *rapid.T) (b Bounds) {
	b.Min = rapid.IntRange(0, 3).Draw(t, "min")
	if rapid.Bool().Draw(t, "bounded") {
		b.Max = rapid.IntRange(max(1, b.Min), 8).Draw(t, "max")
	}
	b.Idle = time.Duration(rapid.SampledFrom([]int{0, 1, 3, 10}).Draw(t, "idle")) * time.Second
	return b
}

// TestWithinBounds checks that for any load and any faults, the number of instances
// stays between min and max. The last instance stops when there was no load for the idle
// time, and not earlier. Every action has a reason, and equal events lead to equal
// actions.
func TestWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := drawBounds(t)
		name := rapid.SampledFrom([]string{"lazy", "eager", "infless", "heuristic"}).Draw(t, "scaler")
		f := unreliableHost{t: t, s: scalers(first)[name], bounds: first, ready: map[string]bool{}}
		for range rapid.IntRange(1, 40).Draw(t, "phases") {
			rps := rapid.SampledFrom([]float64{0, 0, 0, 1, 9.5, 25, 31, 77}).Draw(t, "rps")
			for range rapid.IntRange(1, 15).Draw(t, "seconds") {
				f.injectEvents()
				f.stepSecond(rps)
			}
		}
		replayed := scalers(first)[name]
		for n, l := range f.log {
			if got := replayed.Step(l.at, l.events, nil); !reflect.DeepEqual(got, l.actions) {
				t.Fatalf("step %d at %v, events %+v: got %+v in the replay, want %+v", n, l.at, l.events, got, l.actions)
			}
		}
	})
}
