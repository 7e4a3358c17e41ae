package queue

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// countVisits returns the average number of GPUs, copies of models and functions that an order
// examines per invocation, while invocations of 200 functions keep the given percentage of the
// GPUs busy.
func countVisits(t *testing.T, policy string, gpus, busy int) float64 {
	p, err := New(Config{Policy: policy, Pool: residency.Unlimited, Options: Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	count := func() int64 {
		switch o := p.(*engine).order.(type) {
		case *lalb:
			return o.copies.visits
		case *cfs:
			return o.visits
		}
		t.Fatalf("%s: policy does not count visits, want one that does", policy)
		return 0
	}
	var events []Event
	for g := range int32(gpus) {
		events = append(events, &GPUSet{GPU: g, Slots: 1, Mem: 1000})
	}
	r := rand.New(rand.NewPCG(1, 2))
	for f := range int32(200) {
		warm := time.Duration(10+r.IntN(90)) * time.Millisecond
		events = append(events, &FunctionSet{Function: f, Spec: Function{Warm: warm, Load: warm / 2, Cold: 2 * warm, Mem: 50 + r.Int64N(200), Weight: 1}})
	}
	popular := rand.NewZipf(r, 1.2, 3, 199)
	var running []timed
	var ids, ran int64
	now, start := time.Duration(0), int64(0)
	for ran < int64(12*gpus) {
		if ran < int64(6*gpus) {
			start = count() // start counting when instances are where they are needed
		}
		for ids-ran < int64(gpus*busy/100) {
			events = append(events, &Arrived{Function: int32(popular.Uint64()), ID: ids, At: now})
			ids++
		}
		for len(events) > 0 {
			actions := p.Step(now, events, nil)
			events = nil
			for i := range actions {
				a := &actions[i]
				if event, needed := a.Confirmation(); needed {
					events = append(events, event)
				}
				if a.Kind == Run {
					at := timed{now + a.Expected, a.GPU, a.ID, &Completed{Execution{Function: a.Function, Instance: a.Instance, ID: a.ID, Executed: a.Expected}}}
					i, _ := slices.BinarySearchFunc(running, at, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
					running = slices.Insert(running, i, at)
				}
			}
		}
		now = running[0].at
		events, running = append(events, running[0].Event), running[1:]
		ran++
	}
	return float64(count()-start) / float64(6*gpus)
}

// TestVisits checks that this number does not grow with the number of GPUs.
func TestVisits(t *testing.T) {
	for _, policy := range []string{"lalb-o3", "cfs-affinity"} {
		for _, busy := range []int{50, 90, 110} {
			small, large := countVisits(t, policy, 64, busy), countVisits(t, policy, 2048, busy)
			t.Logf("%s, %d%% busy: %.1f with 64 GPUs, %.1f with 2048", policy, busy, small, large)
			if large > 2*small+2 {
				t.Errorf("%s, %d%% busy: visits per decision: got %.1f with 2048 GPUs, want at most %.1f, twice as many as with 64 and 2 more", policy, busy, large, 2*small+2)
			}
		}
	}
}
