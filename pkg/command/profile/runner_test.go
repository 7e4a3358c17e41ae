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

// aRunner measures functions on fake machines.
func aRunner(t *testing.T, how string, fakes []*fake, fns ...function.Function) *runner {
	j := aTrial(nil, "").job
	j.functions, j.search, j.load.Warmup, j.load.Duration = fns, how, 0, time.Second
	j.space = search.Space{SMPct: []float64{10, 20, 50}, Quota: []float64{0.5, 1}, Batch: []int{1}}
	r := &runner{job: j, journal: discard{}, progress: newProgress(&cli.Env{Err: t.Output(), Quiet: true}, j.points())}
	for _, f := range fakes {
		r.machines = append(r.machines, f)
	}
	return r
}

func named(name, fault string) function.Function {
	return function.Function{Name: name, Env: map[string]string{"FAKE_MS": "4", "FAKE_FAULT": fault}}
}

// On several machines everything is measured once, one instance on each at a time,
// in a part of the time, and told in the order of the job.
func TestMachinesShareTheWork(t *testing.T) {
	for _, how := range []string{"grid", "hybrid"} {
		var alone, took time.Duration
		var first, rows []profile.Row
		for _, n := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				machines := make([]*fake, n)
				for i := range machines {
					machines[i] = &fake{}
				}
				r := aRunner(t, how, machines, named("b", ""), named("a", ""), named("c", ""))
				begun := time.Now()
				err := r.run(t.Context())
				r.progress.close()
				alone, took = took, time.Since(begun)
				first, rows = rows, r.rows
				if err != nil || len(r.selections) != 3 || !r.selections[2].choice.OK || r.selections[0].function.Name != "b" {
					t.Errorf("%v, found %+v", err, r.selections)
				}
				for _, f := range machines {
					if f.most != 1 || f.running != 0 {
						t.Errorf("%d instances at once, %d left", f.most, f.running)
					}
				}
			})
		}
		if took > alone*4/10 {
			t.Errorf("%s: %v on three machines, %v on one", how, took, alone)
		}
		if len(rows) != len(first) {
			t.Fatalf("%s: %d rows, on one machine %d", how, len(rows), len(first))
		}
		for i := range rows {
			if rows[i].Function != first[i].Function || rows[i].Config != first[i].Config {
				t.Errorf("%s: row %d is %+v, on one machine %+v", how, i, rows[i], first[i])
			}
		}
	}
}

// What ends one machine's trials ends all, and nothing is left on any.
func TestMachinesEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := []*fake{{}, {}}
		r := aRunner(t, "hybrid", machines, named("slow", ""), named("stuck", "stop"))
		err := r.run(t.Context())
		r.progress.close()
		var stuck *stopError
		if !errors.As(err, &stuck) || machines[0].running+machines[1].running != 0 {
			t.Errorf("%v; %d and %d run", err, machines[0].running, machines[1].running)
		}
	})
}
