package scale

import (
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// told is what a scaler was told at one instant, and what it said.
type told struct {
	at      time.Duration
	events  []Event
	actions []Action
}

// faulty is a host on which starts are slow, fail or never come to be, instances
// die, and one that should stop may stay. It counts by itself what is deployed.
type faulty struct {
	t        *rapid.T
	s        *Scaler
	now      time.Duration
	bounds   Bounds
	deployed []string
	ready    map[string]bool
	stopped  []string // by the scaler, gone in a while
	serial   int
	busy     time.Duration // when a load came last, or an instance was not ready
	log      []told
}

func (f *faulty) chance(what string, one int) bool {
	return rapid.IntRange(1, one).Draw(f.t, what) == 1
}

func (f *faulty) tell(events ...Event) []Action {
	actions := f.s.Step(f.now, events, nil)
	f.log = append(f.log, told{f.now, events, actions})
	return actions
}

// happen lets some of what can happen between two loads happen.
func (f *faulty) happen() {
	for _, id := range slices.Clone(f.deployed) {
		switch {
		case f.chance("dies or fails to start", 20):
			f.drop(id)
			f.tell(Gone{id})
		case !f.ready[id] && f.chance("becomes ready", 3):
			f.ready[id], f.busy = true, f.now
			f.tell(Ready{id})
		}
	}
	for _, id := range f.stopped {
		if f.chance("ends", 2) {
			f.tell(Gone{id})
		}
	}
	f.stopped = nil
	if f.chance("other bounds", 20) {
		f.bounds = drawBounds(f.t)
		f.tell(Configure{f.bounds})
	}
}

func (f *faulty) drop(id string) {
	f.deployed = slices.DeleteFunc(f.deployed, func(o string) bool { return o == id })
}

// second passes with a load: what the scaler says is held against the bounds,
// and then done, more or less.
func (f *faulty) second(rps float64) {
	f.now += time.Second
	starting := slices.ContainsFunc(f.deployed, func(id string) bool { return !f.ready[id] })
	if rps > 0 || starting || f.now == time.Second {
		f.busy = f.now
	}
	before, after := len(f.deployed), len(f.deployed)
	var events []Event
	for _, a := range f.tell(Load{rps}) {
		switch a := a.(type) {
		case Start:
			if a.Count <= 0 || a.Reason == "" || a.Like.Request.ThroughputRPS <= 0 {
				f.t.Fatalf("at %v: wrong %+v", f.now, a)
			}
			after += a.Count
			events = append(events, f.start(a)...)
		case Stop:
			if len(a.IDs) == 0 || a.Reason == "" {
				f.t.Fatalf("at %v: wrong %+v", f.now, a)
			}
			after -= len(a.IDs)
			for _, id := range a.IDs {
				if !slices.Contains(f.deployed, id) {
					f.t.Fatalf("at %v: %s, which is not deployed or stopped twice: %+v", f.now, id, a)
				}
				f.drop(id)
				if f.chance("stays", 10) {
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
	f.tell(events...)
	if s := f.s.Snapshot(); s.Deployed != len(f.deployed) || s.Why == "" || s.Load != rps || s.Bounds != f.bounds {
		f.t.Fatalf("at %v: %d are deployed: %+v", f.now, len(f.deployed), s)
	}
}

// start starts what the scaler asks for, but for some that never come to be.
func (f *faulty) start(a Start) (events []Event) {
	for range a.Count {
		if f.chance("no place", 10) {
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

// check holds how many there are when what was decided is done against the
// bounds.
func (f *faulty) check(before, after int) {
	b := f.bounds
	if after < b.Min || b.Max > 0 && after > b.Max {
		f.t.Fatalf("at %v: %d instances, %+v: %s", f.now, after, b, f.s.Snapshot().Why)
	}
	if b.Idle == 0 {
		return
	}
	switch quiet := f.now-f.busy >= b.Idle; {
	case quiet && after != b.Min:
		f.t.Fatalf("at %v: nothing came since %v, %d instances, %+v", f.now, f.busy, after, b)
	case !quiet && before > 0 && after == 0:
		f.t.Fatalf("at %v: all stop, something came at %v: %+v", f.now, f.busy, b)
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

// TestWithinBounds: whatever load comes and whatever becomes of instances, there
// are never fewer than min nor more than max, the last one stops when nothing has
// come for the idle time and not before, every action has a reason, and the same
// events lead to the same actions.
func TestWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := drawBounds(t)
		name := rapid.SampledFrom([]string{"lazy", "eager", "heuristic"}).Draw(t, "scaler")
		f := faulty{t: t, s: scalers(first)[name], bounds: first, ready: map[string]bool{}}
		for range rapid.IntRange(1, 40).Draw(t, "spells") {
			rps := rapid.SampledFrom([]float64{0, 0, 0, 1, 9.5, 25, 31, 77}).Draw(t, "rps")
			for range rapid.IntRange(1, 15).Draw(t, "seconds") {
				f.happen()
				f.second(rps)
			}
		}
		again := scalers(first)[name]
		for n, l := range f.log {
			if got := again.Step(l.at, l.events, nil); !reflect.DeepEqual(got, l.actions) {
				t.Fatalf("step %d at %v, %+v: %+v, first time %+v", n, l.at, l.events, got, l.actions)
			}
		}
	})
}
