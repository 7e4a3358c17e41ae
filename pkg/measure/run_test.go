package measure

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/measure/testbed/testbedtest"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// newRunner returns a runner that measures the functions on simulated GPUs, with the default job of
// the trial tests except for the functions, the strategy, the load and the space.
func newRunner(t *testing.T, strategy string, fakes []*testbedtest.GPUs, fns ...function.Function) *runner {
	j := newTrial(nil, "").Job
	j.Functions, j.Search, j.Load.Warmup, j.Load.Duration = fns, strategy, 0, time.Second
	j.Space = search.Space{SMPct: []float64{10, 20, 50}, Quota: []float64{0.5, 1}, Batch: []int{1}}
	r := &runner{Request: Request{Job: j, Journal: discard{}, Progress: &recorder{note: func(text string) { t.Log(text) }}}}
	for _, f := range fakes {
		r.Testbeds = append(r.Testbeds, f)
	}
	return r
}

// discard is a RowWriter.
type discard struct{}

func (discard) Append(profile.Row) error { return nil }

// named returns a function whose requests take 4 ms on a whole GPU. fault selects a fault of the
// simulated GPUs (testbedtest.GPUs), for example "stop": an instance that cannot be stopped; "": none.
func named(name, fault string) function.Function {
	return function.Function{Name: name, Env: map[string]string{"FAKE_MS": "4", "FAKE_FAULT": fault}}
}

// TestTestbedsShareTheWork checks that three testbeds together measure the same configurations as
// one testbed does, with one instance at a time on each, in at most 40% of the time, and that the
// result is in the order of the job.
func TestTestbedsShareTheWork(t *testing.T) {
	for _, strategy := range []string{"grid", "hybrid"} {
		var alone, elapsed time.Duration // with one testbed and with three, after both passes of the loop
		var first, rows []profile.Row    // likewise
		for _, n := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				gpus := make([]*testbedtest.GPUs, n)
				for i := range gpus {
					gpus[i] = &testbedtest.GPUs{}
				}
				r := newRunner(t, strategy, gpus, named("b", ""), named("a", ""), named("c", ""))
				started := time.Now()
				err := r.run(t.Context())
				alone, elapsed = elapsed, time.Since(started)
				first, rows = rows, r.Rows
				// Choice.OK: a configuration meets the goal.
				if err != nil || len(r.Selections) != 3 || !r.Selections[2].Choice.OK || r.Selections[0].Function.Name != "b" {
					t.Errorf("%v, found %+v", err, r.Selections)
				}
				for _, f := range gpus {
					if f.MostRunning != 1 || f.Running != 0 {
						t.Errorf("%d instances at once, %d left", f.MostRunning, f.Running)
					}
				}
			})
		}
		if elapsed > alone*4/10 {
			t.Errorf("%s: %v on three machines, %v on one", strategy, elapsed, alone)
		}
		if len(rows) != len(first) {
			t.Fatalf("%s: %d rows, on one machine %d", strategy, len(rows), len(first))
		}
		for i := range rows {
			if rows[i].Function != first[i].Function || rows[i].Config != first[i].Config {
				t.Errorf("%s: row %d is %+v, on one machine %+v", strategy, i, rows[i], first[i])
			}
		}
	}
}

// TestTestbedsEndTogether checks that an error on one testbed, here of an instance that cannot be
// stopped, ends the trials on all testbeds, and that each instance was told to stop: the simulated
// GPUs count an instance as stopped even if its Stop returns an error.
func TestTestbedsEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gpus := []*testbedtest.GPUs{{}, {}}
		r := newRunner(t, "hybrid", gpus, named("slow", ""), named("stuck", "stop"))
		err := r.run(t.Context())
		var stuck *StopError
		if !errors.As(err, &stuck) || gpus[0].Running+gpus[1].Running != 0 {
			t.Errorf("%v; %d and %d run", err, gpus[0].Running, gpus[1].Running)
		}
	})
}
