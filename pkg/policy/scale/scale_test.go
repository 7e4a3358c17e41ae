package scale

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
)

func row(sm, quota, rps float64) profile.Row {
	return profile.Row{Function: "f", Config: profile.Config{SMPct: sm, Quota: quota, Batch: 1}, ThroughputRPS: rps, P95MS: 10}
}

// profiled is a function of two SM shares and three quotas; the unit is 24% at
// 0.2 and may rise to 24% at 0.6.
var profiled = []profile.Row{row(50, 0.2, 16), row(24, 0.6, 30), row(24, 0.2, 10), row(12, 0.2, 0), row(50, 1, 80)}

func TestUnit(t *testing.T) {
	unit, err := Unit(profiled)
	if err != nil || unit.Request.ThroughputRPS != 10 || unit.Limit.ThroughputRPS != 30 {
		t.Errorf("got %+v, %v", unit, err)
	}
	turned := slices.Clone(profiled)
	slices.Reverse(turned)
	if again, _ := Unit(turned); again != unit {
		t.Errorf("the order of the rows decides: %+v", again)
	}
	if _, err := Unit([]profile.Row{row(12, 1, 0)}); err == nil {
		t.Error("a function that sustains nothing has a unit")
	}
}

// host does at once what a scaler says: what is started serves.
type host struct {
	s        *Scaler
	now      time.Duration
	deployed []Instance
	serial   int
}

// second passes with a load, and what the scaler says about it is done.
func (h *host) second(rps float64) []Action {
	h.now += time.Second
	actions := h.s.Step(h.now, []Event{Load{rps}}, nil)
	var events []Event
	for _, a := range actions {
		switch a := a.(type) {
		case Start:
			for range a.Count {
				in := a.Like
				in.ID = strconv.Itoa(h.serial)
				h.serial++
				h.deployed = append(h.deployed, in)
				events = append(events, Deployed{in}, Ready{in.ID})
			}
		case Stop:
			for _, id := range a.IDs {
				h.drop(id)
				events = append(events, Gone{id})
			}
		}
	}
	h.s.Step(h.now, events, nil)
	return actions
}

func (h *host) drop(id string) {
	h.deployed = slices.DeleteFunc(h.deployed, func(in Instance) bool { return in.ID == id })
}

func loads() *rapid.Generator[[]float64] {
	return rapid.SliceOfN(rapid.SampledFrom([]float64{0, 1, 9.5, 10, 10.5, 20, 29, 30, 31, 77, 1000}), 1, 150)
}

// TestEagerFollows: eager has just what each load needs.
func TestEagerFollows(t *testing.T) {
	unit, _ := Unit(profiled)
	rapid.Check(t, func(t *rapid.T) {
		h := host{s: NewEager(unit, Last{}, Bounds{})}
		for _, rps := range loads().Draw(t, "loads") {
			h.second(rps)
			if want := int(math.Ceil(rps / 10)); len(h.deployed) != want {
				t.Fatalf("%d instances at %g rps, want %d", len(h.deployed), rps, want)
			}
		}
	})
}

// TestHeuristicCovers: what the heuristic deploys suffices, and stopping its
// least efficient instance would not.
func TestHeuristicCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := host{s: NewHeuristic(profiled, Last{}, Bounds{})}
		for _, rps := range loads().Draw(t, "loads") {
			h.second(rps)
			if got := sustained(h.deployed); got < rps*(1-2*slack) {
				t.Fatalf("%g rps sustained, %g wanted", got, rps)
			}
			for range 2 {
				for _, a := range h.second(rps) {
					if _, start := a.(Start); start {
						t.Fatalf("starts more for the same load: %+v", a)
					}
				}
			}
		}
	})
}

// slowLazy is lazy scaling by counting, one instance at a time.
type slowLazy struct {
	seen []float64
	LazyOptions
}

func (s *slowLazy) wanted(rps float64, n int) int {
	s.seen = append(s.seen, rps)
	surging := s.Surge > 0 && len(s.seen) >= s.Surge
	for i := max(0, len(s.seen)-s.Surge); i < len(s.seen); i++ {
		surging = surging && s.seen[i] > 30*float64(n)
	}
	window := s.seen[max(0, len(s.seen)-s.Window):]
	over := func(n int) (c int) {
		for _, v := range window {
			if v > 10*float64(n) {
				c++
			}
		}
		return c
	}
	under := func(n int) (c int) {
		for _, v := range window {
			if v < 10*float64(n) {
				c++
			}
		}
		return c
	}
	wanted := n
	switch {
	case n == 0:
		for 10*float64(wanted) < rps {
			wanted++
		}
	case over(n) >= s.Out:
		for over(wanted) >= s.Out {
			wanted++
		}
	case surging:
		for rps > 30*float64(wanted) {
			wanted++
		}
	default:
		for wanted > 1 && under(wanted-1) > s.In {
			wanted--
		}
	}
	if wanted != n {
		s.seen = nil
	}
	return wanted
}

func TestLazyAgainstCounting(t *testing.T) {
	unit, _ := Unit(profiled)
	rapid.Check(t, func(t *rapid.T) {
		o := LazyOptions{Window: rapid.IntRange(1, 40).Draw(t, "window")}
		o.Out = rapid.IntRange(1, o.Window).Draw(t, "out")
		o.In = rapid.IntRange(0, o.Window-1).Draw(t, "in")
		o.Surge = rapid.IntRange(0, 3).Draw(t, "surge")
		if err := o.Check(); err != nil {
			t.Fatal(err)
		}
		h, twin := host{s: NewLazy(unit, o, Bounds{})}, slowLazy{LazyOptions: o}
		for i, rps := range loads().Draw(t, "loads") {
			want := twin.wanted(rps, len(h.deployed))
			h.second(rps)
			if len(h.deployed) != want {
				t.Fatalf("value %d, %g rps: %d instances, want %d", i, rps, len(h.deployed), want)
			}
		}
	})
}

func TestOptionsChecked(t *testing.T) {
	for _, o := range []LazyOptions{{0, 1, 0, 0}, {40, 0, 30, 0}, {40, 41, 30, 0}, {40, 20, 40, 0}, {40, 20, -1, 0}, {2e6, 1, 1, 0}, {40, 20, 30, -1}} {
		if o.Check() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	if err := DefaultLazy().Check(); err != nil {
		t.Error(err)
	}
	for _, b := range []Bounds{{Min: -1}, {Max: -1}, {Min: 2, Max: 1}, {Idle: -1}} {
		if b.Check() == nil {
			t.Errorf("%+v is accepted", b)
		}
	}
	for _, b := range []Bounds{{}, {Min: 2}, {Min: 2, Max: 2, Idle: time.Minute}} {
		if err := b.Check(); err != nil {
			t.Errorf("%+v: %v", b, err)
		}
	}
}

func TestEstimators(t *testing.T) {
	seen := []float64{10, 20, 0, 0, 0}
	for name, want := range map[string][]float64{
		"last":   {10, 20, 0, 0, 0},
		"window": {10, 20, 20, 20, 0},
		"ewma":   {10, 15, 7.5, 3.75, 1.875},
		"kalman": {10.000000, 16.000000, 7.619048, 3.764706, 1.876833},
	} {
		e, err := NewEstimator(name, EstimatorOptions{Window: 3, Alpha: 0.5, Process: 1, Noise: 2})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range seen {
			if got := e.Observe(v); math.Abs(got-want[i]) > 1e-6 {
				t.Errorf("%s, value %d: %v, want %v", name, i, got, want[i])
			}
		}
	}
	for _, bad := range []struct {
		name string
		EstimatorOptions
	}{
		{"none", DefaultEstimator()}, {"window", EstimatorOptions{}}, {"ewma", EstimatorOptions{Alpha: 1.5}},
		{"ewma", EstimatorOptions{Alpha: math.NaN()}}, {"kalman", EstimatorOptions{Process: 1}},
	} {
		if _, err := NewEstimator(bad.name, bad.EstimatorOptions); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// TestEstimatesStayWithin: an estimate lies between the least and the largest
// load seen, and a steady load is estimated as it is.
func TestEstimatesStayWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(Estimators()).Draw(t, "estimator")
		e, err := NewEstimator(name, DefaultEstimator())
		if err != nil {
			t.Fatal(err)
		}
		least, most := math.Inf(1), 0.0
		for _, v := range loads().Draw(t, "loads") {
			least, most = min(least, v), max(most, v)
			if got := e.Observe(v); got < least*(1-slack) || got > most*(1+slack) {
				t.Fatalf("%s: %g is not within %g and %g", name, got, least, most)
			}
		}
		var got float64
		for range 200 {
			got = e.Observe(50)
		}
		if math.Abs(got-50) > 1e-6 {
			t.Fatalf("%s: %g after a steady 50", name, got)
		}
	})
}
