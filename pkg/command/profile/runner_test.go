package profile

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// aRunner measures functions on fake machines, one for each lane.
func aRunner(t *testing.T, how string, lanes []*fake, fns ...function.Function) *runner {
	j := job{functions: fns, search: how, space: search.Space{SMPct: []float64{10, 20, 50}, Quota: []float64{0.5, 1}, Batch: []int{1}}}
	r := &runner{job: j, lanes: len(lanes), journal: discard{}, progress: newProgress(&cli.Env{Err: t.Output(), Quiet: true}, j.cells(), time.Second)}
	r.trial = func(fn function.Function, lane int) trial {
		tr := aTrial(lanes[lane], "")
		tr.fn, tr.load.Warmup, tr.load.Duration = fn, 0, time.Second
		return tr
	}
	return r
}

func named(name, fault string) function.Function {
	return function.Function{Name: name, Env: map[string]string{"FAKE_MS": "4", "FAKE_FAULT": fault}}
}

// On several lanes everything is measured once, one instance on each at a time,
// in a part of the time, and told in the order of the job.
func TestLanesShareTheWork(t *testing.T) {
	for _, how := range []string{"grid", "hybrid"} {
		var alone, took time.Duration
		var first, rows []profile.Row
		for _, n := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				lanes := make([]*fake, n)
				for i := range lanes {
					lanes[i] = &fake{}
				}
				r := aRunner(t, how, lanes, named("b", ""), named("a", ""), named("c", ""))
				begun := time.Now()
				err := r.run(t.Context())
				r.progress.close()
				alone, took = took, time.Since(begun)
				first, rows = rows, r.rows
				if err != nil || len(r.found) != 3 || !r.found[2].choice.OK || r.found[0].function.Name != "b" {
					t.Errorf("%v, found %+v", err, r.found)
				}
				for _, f := range lanes {
					if f.most != 1 || f.running != 0 {
						t.Errorf("%d instances at once, %d left", f.most, f.running)
					}
				}
			})
		}
		if took > alone*4/10 {
			t.Errorf("%s: %v on three lanes, %v on one", how, took, alone)
		}
		if len(rows) != len(first) {
			t.Fatalf("%s: %d rows, on one lane %d", how, len(rows), len(first))
		}
		for i := range rows {
			if rows[i].Function != first[i].Function || rows[i].Config != first[i].Config {
				t.Errorf("%s: row %d is %+v, on one lane %+v", how, i, rows[i], first[i])
			}
		}
	}
}

// What ends one lane ends all, and nothing is left on any.
func TestLanesEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes := []*fake{{}, {}}
		r := aRunner(t, "hybrid", lanes, named("slow", ""), named("stuck", "stop"))
		err := r.run(t.Context())
		r.progress.close()
		var stuck *stopError
		if !errors.As(err, &stuck) || lanes[0].running+lanes[1].running != 0 {
			t.Errorf("%v; %d and %d run", err, lanes[0].running, lanes[1].running)
		}
	})
}
