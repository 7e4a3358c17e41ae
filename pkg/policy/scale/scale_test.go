package scale

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
)

// measured is a measured configuration: its SM share in percent, its quota and its throughput in requests per second.
type measured struct {
	sm    float64
	quota float64
	rps   float64
}

func row(m measured) profile.Row {
	return profile.Row{Function: "f", Config: profile.Config{SMPct: m.sm, Quota: m.quota, Batch: 1}, ThroughputRPS: m.rps, P95MS: 10}
}

// profiled is a function with two usable SM shares and three quotas. Its unit is 24% at
// quota 0.2, with a limit of 24% at 0.6.
var profiled = []profile.Row{row(measured{sm: 50, quota: 0.2, rps: 16}), row(measured{sm: 24, quota: 0.6, rps: 30}), row(measured{sm: 24, quota: 0.2, rps: 10}), row(measured{sm: 12, quota: 0.2}), row(measured{sm: 50, quota: 1, rps: 80})}

func TestUnit(t *testing.T) {
	unit, err := Unit(profiled, 0)
	if err != nil || unit.Request.ThroughputRPS != 10 || unit.Limit.ThroughputRPS != 30 {
		t.Errorf("got %+v, %v; want a request of 10 rps and a limit of 30 rps", unit, err)
	}
	rows := slices.Clone(profiled)
	slices.Reverse(rows)
	if reversed, _ := Unit(rows, 0); reversed != unit {
		t.Errorf("rows in reverse order: got %+v, want %+v as before", reversed, unit)
	}
	if _, err := Unit([]profile.Row{row(measured{sm: 12, quota: 1})}, 0); err == nil {
		t.Error("a function without throughput: got a unit, want an error")
	}
}

// TestUnitMeetsObjective checks that the request is the smallest configuration that meets the
// objective, and not the smallest one.
func TestUnitMeetsObjective(t *testing.T) {
	small, large := row(measured{sm: 12, quota: 0.2, rps: 10}), row(measured{sm: 12, quota: 0.4, rps: 20})
	small.P95MS, large.P95MS = 80, 40
	rows := []profile.Row{small, large}
	for slo, want := range map[time.Duration]profile.Row{0: small, 80 * time.Millisecond: small, 79 * time.Millisecond: large} {
		if unit, err := Unit(rows, slo); err != nil || unit.Request != want || unit.Limit != large {
			t.Errorf("objective %v: got %+v, %v; want a request of %+v and a limit of %+v", slo, unit, err, want, large)
		}
	}
	if _, err := Unit(rows, 30*time.Millisecond); err == nil || !strings.Contains(err.Error(), "30ms") {
		t.Errorf("an objective that no configuration meets: got %v, want an error with 30ms", err)
	}
}

// host performs a scaler's actions at once: a started instance is ready immediately.
type host struct {
	s        *Scaler
	now      time.Duration
	deployed []Instance
	serial   int
}

// stepSecond advances time by a second with the given load, and performs the scaler's
// actions.
func (h *host) stepSecond(rps float64) []Action {
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
				events = append(events, Terminated{id})
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

// TestEagerFollows checks that eager deploys exactly the instances that each load needs.
func TestEagerFollows(t *testing.T) {
	unit, _ := Unit(profiled, 0)
	rapid.Check(t, func(t *rapid.T) {
		h := host{s: NewEager(unit, Last{}, Bounds{})}
		for _, rps := range loads().Draw(t, "loads") {
			h.stepSecond(rps)
			if want := int(math.Ceil(rps / 10)); len(h.deployed) != want {
				t.Fatalf("at %g rps: got %d instances, want %d", rps, len(h.deployed), want)
			}
		}
	})
}

// TestHeuristicCovers checks that the instances that the heuristic deploys sustain the
// load, and would not without the least efficient instance.
func TestHeuristicCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := host{s: NewHeuristic(profiled, Last{}, Bounds{})}
		for _, rps := range loads().Draw(t, "loads") {
			h.stepSecond(rps)
			if got := sustained(h.deployed); got < rps*(1-2*slack) {
				t.Fatalf("got instances that sustain %g rps, want at least %g", got, rps)
			}
			for range 2 {
				for _, a := range h.stepSecond(rps) {
					if _, start := a.(Start); start {
						t.Fatalf("got %+v for the same load, want no start", a)
					}
				}
			}
		}
	})
}

// slowLazy is a simple twin of lazy: it stores the loads, counts those above and below
// the capacity, and adds or removes one instance at a time.
type slowLazy struct {
	loads []float64
	LazyOptions
}

func (s *slowLazy) desired(rps float64, n int) int {
	s.loads = append(s.loads, rps)
	surging := s.Surge > 0 && len(s.loads) >= s.Surge
	for i := max(0, len(s.loads)-s.Surge); i < len(s.loads); i++ {
		surging = surging && s.loads[i] > 30*float64(n)
	}
	window := s.loads[max(0, len(s.loads)-s.Window):]
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
	target := n
	switch {
	case n == 0:
		for 10*float64(target) < rps {
			target++
		}
	case over(n) >= s.Out:
		for over(target) >= s.Out {
			target++
		}
	case surging:
		for rps > 30*float64(target) {
			target++
		}
	default:
		for target > 1 && under(target-1) > s.In {
			target--
		}
	}
	if target != n {
		s.loads = nil
	}
	return target
}

// TestLazyMatchesTwin compares the number of instances that lazy deploys with slowLazy's.
func TestLazyMatchesTwin(t *testing.T) {
	unit, _ := Unit(profiled, 0)
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
			want := twin.desired(rps, len(h.deployed))
			h.stepSecond(rps)
			if len(h.deployed) != want {
				t.Fatalf("load %d, %g rps: got %d instances, want %d", i, rps, len(h.deployed), want)
			}
		}
	})
}

// TestCheckRejectsInvalidOptions also checks that valid options are accepted.
func TestCheckRejectsInvalidOptions(t *testing.T) {
	for _, o := range []LazyOptions{{0, 1, 0, 0}, {40, 0, 30, 0}, {40, 41, 30, 0}, {40, 20, 40, 0}, {40, 20, -1, 0}, {2e6, 1, 1, 0}, {40, 20, 30, -1}} {
		if o.Check() == nil {
			t.Errorf("%+v: got no error, want one", o)
		}
	}
	if err := DefaultLazy().Check(); err != nil {
		t.Error(err)
	}
	for _, b := range []Bounds{{Min: -1}, {Max: -1}, {Min: 2, Max: 1}, {Idle: -1}} {
		if b.Check() == nil {
			t.Errorf("%+v: got no error, want one", b)
		}
	}
	for _, b := range []Bounds{{}, {Min: 2}, {Min: 2, Max: 2, Idle: time.Minute}} {
		if err := b.Check(); err != nil {
			t.Errorf("%+v: got %v, want no error", b, err)
		}
	}
}

func TestEstimators(t *testing.T) {
	loads := []float64{10, 20, 0, 0, 0}
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
		for i, v := range loads {
			if got := e.Observe(v); math.Abs(got-want[i]) > 1e-6 {
				t.Errorf("%s, value %d: got %v, want %v", name, i, got, want[i])
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
			t.Errorf("%+v: got no error, want one", bad)
		}
	}
}

// TestEstimatesStayWithin checks that an estimate lies between the least and the greatest
// load so far, and the estimate of a steady load converges to it.
func TestEstimatesStayWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(Estimators()).Draw(t, "estimator")
		e, err := NewEstimator(name, DefaultEstimator())
		if err != nil {
			t.Fatal(err)
		}
		lowest, highest := math.Inf(1), 0.0
		for _, v := range loads().Draw(t, "loads") {
			lowest, highest = min(lowest, v), max(highest, v)
			if got := e.Observe(v); got < lowest*(1-slack) || got > highest*(1+slack) {
				t.Fatalf("%s: got %g, want %g to %g", name, got, lowest, highest)
			}
		}
		var got float64
		for range 200 {
			got = e.Observe(50)
		}
		if math.Abs(got-50) > 1e-6 {
			t.Fatalf("%s: got %g after a steady load of 50, want 50", name, got)
		}
	})
}

// slowINFless is a simple twin of infless: it stores the loads and looks for all pauses of each instance
// in them.
type slowINFless struct{ loads []float64 }

func (s *slowINFless) desired(rps float64) (instances int) {
	s.loads = append(s.loads, rps)
	type ended struct{ at, seconds int }
	var pauses []ended
	var current []int
	for n := range 100 {
		last := -1
		for at, load := range s.loads {
			if load > 10*float64(n) {
				if last >= 0 && at-last > 1 {
					pauses = append(pauses, ended{at, at - last - 1})
				}
				last = at
			}
		}
		if last < 0 {
			break
		}
		current = append(current, len(s.loads)-1-last)
	}
	slices.SortStableFunc(pauses, func(a, b ended) int { return a.at - b.at })
	// The hundredth part of the pauses, rounded down, is longer than the percentile.
	longest := func(pauses []ended) int {
		var seconds []int
		for _, p := range pauses {
			seconds = append(seconds, p.seconds)
		}
		slices.Sort(seconds)
		return seconds[len(seconds)-1-len(seconds)/100]
	}
	stay := 60.0
	if len(pauses) > 0 {
		stay = float64(longest(pauses)+longest(pauses[max(0, len(pauses)-10):])) / 2
	}
	for _, c := range current {
		if float64(c) <= stay {
			instances++
		}
	}
	return instances
}

// TestINFlessMatchesTwin compares the number of instances that infless deploys with slowINFless's.
func TestINFlessMatchesTwin(t *testing.T) {
	unit, _ := Unit(profiled, 0)
	rapid.Check(t, func(t *rapid.T) {
		h, twin := host{s: NewINFless(unit, Bounds{})}, slowINFless{}
		for i, rps := range loads().Draw(t, "loads") {
			want := twin.desired(rps)
			h.stepSecond(rps)
			if len(h.deployed) != want {
				t.Fatalf("load %d, %g rps: got %d instances, want %d", i, rps, len(h.deployed), want)
			}
		}
	})
}

// slowHeuristic is a simple twin of heuristic for the rows of profiled: it adds and removes one instance at a
// time. have has the configurations of the instances, oldest first.
func slowHeuristic(have []profile.Row, rps float64) []profile.Row {
	have, missing := slices.Clone(have), rps
	for _, r := range have {
		missing -= r.ThroughputRPS
	}
	const rounding = 1e-6
	adding := missing > rounding
	for adding && missing >= 30-rounding { // 24% at 0.6 is the most efficient, and has a larger quota than 24% at 0.2
		have, missing = append(have, profiled[1]), missing-30
	}
	if adding && missing > rounding {
		covers := -1
		for i, r := range profiled {
			if r.ThroughputRPS >= missing-rounding && (covers < 0 || r.ThroughputRPS < profiled[covers].ThroughputRPS) {
				covers = i
			}
		}
		have = append(have, profiled[covers])
	}
	for !adding {
		worst := -1
		for i, r := range have {
			if worst < 0 || r.Efficacy() <= have[worst].Efficacy() { // the newest of equal ones
				worst = i
			}
		}
		if worst < 0 || have[worst].ThroughputRPS > -missing+rounding {
			break
		}
		missing += have[worst].ThroughputRPS
		have = slices.Delete(have, worst, worst+1)
	}
	return have
}

// TestHeuristicMatchesTwin compares the instances that heuristic deploys with slowHeuristic's.
func TestHeuristicMatchesTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, want := host{s: NewHeuristic(profiled, Last{}, Bounds{})}, []profile.Row(nil)
		for i, rps := range loads().Draw(t, "loads") {
			want = slowHeuristic(want, rps)
			h.stepSecond(rps)
			var got []profile.Row
			for _, in := range h.deployed {
				got = append(got, in.Request)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("load %d, %g rps: got %v, want %v", i, rps, got, want)
			}
		}
	})
}
