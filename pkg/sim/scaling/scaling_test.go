package scaling

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
)

func row(quota, rps float64) profile.Row {
	return profile.Row{Config: profile.Config{SMPct: 24, Quota: quota, Batch: 1}, ThroughputRPS: rps, P95MS: 10}
}

var rows = []profile.Row{row(0.2, 10), row(0.6, 30)}

func unit(t interface{ Fatal(...any) }) scale.Instance {
	u, err := scale.Unit(rows, 0)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func cold(d time.Duration) func(profile.Row) time.Duration {
	return func(profile.Row) time.Duration { return d }
}

func repeat(unit scale.Instance, n int) []scale.Instance {
	out := make([]scale.Instance, n)
	for i := range out {
		out[i] = unit
	}
	return out
}

// TestByHand checks that instances started at the end of a second serve after their cold start,
// even within a second.
func TestByHand(t *testing.T) {
	u := unit(t)
	eager := scale.NewEager(u, scale.Last{}, scale.Bounds{})
	u.Limit = u.Request
	var decisions []Decision
	got, err := Run([]float64{10, 30, 30, 30, 10, 10}, Options{Scaler: eager, First: repeat(u, 1), Cold: cold(1500 * time.Millisecond),
		Decided: func(d Decision) { decisions = append(decisions, d) }})
	if err != nil {
		t.Fatal(err)
	}
	// Seconds 1 and 2, and half of second 3, lack 20 rps. Deployed: 1, 1, 3, 3, 3, 1.
	if want := (Result{ColdStarts: 2, SLOViolationRatio: 50.0 / 120, InstanceSeconds: 12, MaxInstances: 3, GPUSeconds: 0.576}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if len(decisions) != 2 || decisions[0].Second != 2 || decisions[0].Instances != 3 || decisions[1].Stop != 2 || decisions[1].Second != 5 {
		t.Errorf("got decisions %+v, want 3 instances at second 2, and a stop of 2 at second 5", decisions)
	}
}

func TestLazyRises(t *testing.T) {
	loads := []float64{10, 25, 25, 31, 10}
	published := scale.LazyOptions{Window: 40, Out: 20, In: 30}
	got, err := Run(loads, Options{Scaler: scale.NewLazy(unit(t), published, scale.Bounds{}), First: repeat(unit(t), 1), Cold: cold(0)})
	if want := (Result{SLOViolationRatio: 1.0 / 101, InstanceSeconds: 5, MaxInstances: 1, GPUSeconds: 0.24}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestTooMany(t *testing.T) {
	if _, err := Run([]float64{1, 1e9, 1e9}, Options{Scaler: scale.NewEager(unit(t), scale.Last{}, scale.Bounds{}), Cold: cold(0)}); err == nil {
		t.Error("a load that needs a hundred million instances: got no error, want one")
	}
	if got, err := Run(nil, Options{Scaler: scale.NewEager(unit(t), scale.Last{}, scale.Bounds{})}); err != nil || got != (Result{}) {
		t.Errorf("run without loads: got %+v, %v; want an empty result", got, err)
	}
}

// slow simulates the same run in steps of a millisecond.
func slow(loads []float64, o Options) (res Result) {
	type unit struct {
		scale.Instance
		ready int
	}
	var all []unit
	for i, in := range o.First {
		in.ID = string(rune('A' + i))
		all = append(all, unit{in, 0})
		o.Scaler.Step(0, []scale.Event{scale.Deployed{Instance: in}, scale.Ready{ID: in.ID}}, nil)
	}
	var requests, lateRequests float64
	for s, rps := range loads {
		for ms := s * 1000; ms < (s+1)*1000; ms++ {
			capacity := 0.0
			for _, u := range all {
				if u.ready == ms {
					o.Scaler.Step(time.Duration(ms)*time.Millisecond, []scale.Event{scale.Ready{ID: u.ID}}, nil)
				}
				if u.ready <= ms {
					capacity += u.Limit.ThroughputRPS
				}
			}
			requests += rps / 1000
			lateRequests += max(0, rps-capacity) / 1000
			res.InstanceSeconds += float64(len(all)) / 1000
			for _, u := range all {
				res.GPUSeconds += u.Request.SMPct / 100 * u.Request.Quota / 1000
			}
		}
		res.MaxInstances = max(res.MaxInstances, len(all))
		if s == len(loads)-1 {
			break
		}
		now := time.Duration(s+1) * time.Second
		for _, u := range all {
			if u.ready == (s+1)*1000 {
				o.Scaler.Step(now, []scale.Event{scale.Ready{ID: u.ID}}, nil)
			}
		}
		for _, a := range o.Scaler.Step(now, []scale.Event{scale.Load{RPS: rps}}, nil) {
			switch a := a.(type) {
			case scale.Start:
				for range a.Count {
					in := a.Like
					in.ID = "n" + string(rune('A'+res.ColdStarts))
					res.ColdStarts++
					all = append(all, unit{in, (s+1)*1000 + int(o.Cold(in.Request).Milliseconds())})
					o.Scaler.Step(now, []scale.Event{scale.Deployed{Instance: in}}, nil)
				}
			case scale.Stop:
				all = slices.DeleteFunc(all, func(u unit) bool { return slices.Contains(a.IDs, u.ID) })
			}
		}
	}
	if requests > 0 {
		res.SLOViolationRatio = lateRequests / requests
	}
	return res
}

func TestAgainstMilliseconds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loads := rapid.SliceOfN(rapid.SampledFrom([]float64{0, 5, 10, 15, 30, 45, 90}), 1, 20).Draw(t, "loads")
		name := rapid.SampledFrom([]string{"lazy", "eager", "heuristic"}).Draw(t, "scaler")
		bounds := scale.Bounds{Min: rapid.IntRange(0, 2).Draw(t, "min"), Max: rapid.SampledFrom([]int{0, 2, 5}).Draw(t, "max")}
		bounds.Idle = time.Duration(rapid.IntRange(0, 4).Draw(t, "idle")) * time.Second
		options := Options{
			First: repeat(unit(t), rapid.IntRange(0, 3).Draw(t, "first")),
			Cold:  cold(time.Duration(rapid.SampledFrom([]int{0, 300, 1000, 2500}).Draw(t, "cold")) * time.Millisecond),
		}
		newOptions := func() Options {
			o := options
			o.Scaler = map[string]*scale.Scaler{
				"lazy":      scale.NewLazy(unit(t), scale.LazyOptions{Window: 6, Out: 3, In: 4}, bounds),
				"eager":     scale.NewEager(unit(t), scale.Last{}, bounds),
				"heuristic": scale.NewHeuristic(rows, scale.Last{}, bounds),
			}[name]
			return o
		}
		got, err := Run(loads, newOptions())
		if err != nil {
			t.Fatal(err)
		}
		want := slow(loads, newOptions())
		if got.ColdStarts != want.ColdStarts || got.MaxInstances != want.MaxInstances ||
			math.Abs(got.InstanceSeconds-want.InstanceSeconds) > 1e-6 || math.Abs(got.GPUSeconds-want.GPUSeconds) > 1e-6 || math.Abs(got.SLOViolationRatio-want.SLOViolationRatio) > 1e-9 {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}
