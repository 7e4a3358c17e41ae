package measure

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Point is a configuration of a function: the subject of one trial.
type Point struct {
	Function string
	Config   profile.Config
}

// PointOf returns the point that a row is about.
func PointOf(r profile.Row) Point { return Point{r.Function, r.Config} }

func (p Point) String() string {
	return fmt.Sprintf("%s at sm_pct %s, quota %s, batch %d", p.Function, number.Plain(p.Config.SMPct), number.Plain(p.Config.Quota), p.Config.Batch)
}

// gridSearch is the search that measures every configuration.
const gridSearch = "grid"

// Job describes what to measure. Its search name and space must be valid (see
// search.New).
type Job struct {
	Functions    []function.Function
	Space        search.Space
	Search       string        // name of the strategy
	SLO          time.Duration // objective of p95 for all functions; 0: each function's own
	Goal         search.Goal   // of every search; GoalOf adds the objective of latency
	Load         load.Options
	StartTimeout time.Duration // longest time from a start to the first answer
	ShareGPU     bool          // accept rows although other users of the GPUs are active
	Park         bool          // measure load_ms
	Goodput      bool          // measure goodput_rps for functions with an objective
	Body         []byte        // of a request of one; empty: a default body of the contract
	GPU          string        // model of the GPUs, for the rows
	Instances    int           // of each configuration that are measured at the same time; 0 means 1
}

// Objective returns the p95 latency that the function must keep, in ms; 0 if it
// has no objective.
func (j Job) Objective(name string) float64 {
	for _, fn := range j.Functions {
		if fn.Name == name && fn.Kind != function.Training { // an iteration of a job has no objective
			return figures.Millis(cmp.Or(j.SLO, fn.SLO))
		}
	}
	return 0
}

// GoalOf returns the goal of the search for a configuration of the function.
func (j Job) GoalOf(fn function.Function) search.Goal {
	g := j.Goal
	g.SLOMS, g.Goodput = j.Objective(fn.Name), j.Search == "fast" && j.measuresGoodput(fn.Name)
	return g
}

// measuresGoodput reports whether the goodput of the function is measured.
func (j Job) measuresGoodput(name string) bool { return j.Goodput && j.Objective(name) > 0 }

// Together returns the number of instances that are measured at the same time.
func (j Job) Together() int { return max(j.Instances, 1) }

// Chooses reports whether the search ends with one configuration of each
// function, instead of measuring all.
func (j Job) Chooses() bool { return j.Search != gridSearch }

// Points returns the set of points that the job may measure.
func (j Job) Points() map[Point]bool {
	all := map[Point]bool{}
	for _, fn := range j.Functions {
		for _, c := range j.Space.Configs() {
			all[Point{fn.Name, c}] = true
		}
	}
	return all
}

// Size returns the largest number of points that the job may measure.
func (j Job) Size() int { return len(j.Functions) * j.Space.Size() }

// Form returns the columns of the job's rows.
func (j Job) Form() profile.Form {
	return profile.Form{Instances: j.Together() > 1, Goodput: slices.ContainsFunc(j.Functions, func(fn function.Function) bool { return j.measuresGoodput(fn.Name) })}
}

// EarlierRows returns the rows of an earlier run that the job needs no trial for. It
// fails if a row is of another function or GPU than the job's, or of another number of instances: the results of a
// run do not belong into that file, whose path the error gives.
func (j Job) EarlierRows(rows []profile.Row, path string) (map[Point]profile.Row, error) {
	wanted, old := j.Points(), map[Point]profile.Row{}
	for _, row := range rows {
		if !slices.ContainsFunc(j.Functions, func(fn function.Function) bool { return fn.Name == row.Function }) {
			return nil, fmt.Errorf("%s:%d: function: %q, expected a function of this run", path, row.Line, row.Function)
		}
		if row.GPU != j.GPU {
			return nil, fmt.Errorf("%s:%d: gpu: %q, expected %q, on which this run measures", path, row.Line, row.GPU, j.GPU)
		}
		if row.Together() != j.Together() {
			return nil, fmt.Errorf("%s:%d: instances: %d, expected %d, the number that this run measures at the same time", path, row.Line, row.Together(), j.Together())
		}
		if at := PointOf(row); wanted[at] {
			old[at] = row
		}
	}
	return old, nil
}

// CountWithoutGoodput returns how many rows of an earlier run lack the goodput
// that the job measures.
func (j Job) CountWithoutGoodput(old map[Point]profile.Row) (n int) {
	for at, row := range old {
		if j.measuresGoodput(at.Function) && row.SLOMS != j.Objective(at.Function) {
			n++
		}
	}
	return n
}
