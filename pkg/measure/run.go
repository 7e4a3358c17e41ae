package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Request is a job with the testbeds that measure it and the receivers of its
// results.
type Request struct {
	Job
	Testbeds []testbed.GPUs        // at least one
	Earlier  map[Point]profile.Row // rows of an earlier run, which are not measured again
	Journal  RowWriter
	TrialLog TrialWriter // of trials for the goodput; nil discards them
	Progress Progress
}

// RowWriter receives each row as soon as it is measured. An error ends the run.
type RowWriter interface{ Append(row profile.Row) error }

// TrialWriter receives each trial for the goodput. An error ends the run.
// Append is called from several goroutines.
type TrialWriter interface {
	Append(trial profile.Trial) error
}

// Progress observes a run. Its methods are called from several goroutines and
// must return soon.
type Progress interface {
	// Next gives the reason of the search to measure a point next.
	Next(at Point, reason string)
	// Measuring announces that the trial of a point begins.
	Measuring(at Point)
	// Trying and Tried describe a trial for the goodput, before and after it.
	Trying(at Point, trial string)
	Tried(at Point, trial string)
	// Measured and Failed give the outcome of a point.
	Measured(row profile.Row)
	Failed(at Point, err error)
	// Note gives a remark for the user.
	Note(text string)
}

// Result is the outcome of a run.
type Result struct {
	Rows       []profile.Row // in the order of the search, including rows of an earlier run
	Failures   []Failure
	Selections []Selection // one for each function; without a name if its search did not end
}

// Failure is a point that could not be measured.
type Failure struct {
	At  Point
	Err error
}

// Selection is the configuration that a search chose for a function.
type Selection struct {
	Function function.Function
	Trials   int
	Choice   search.Choice
}

// Run measures the job, one trial at a time on each testbed. The result is
// valid, though incomplete, if the error is not nil: ctx ended, an instance could
// not be stopped (*StopError), a result could not be written, or an error
// occurred that every further trial would meet.
func Run(ctx context.Context, request Request) (Result, error) {
	r := &runner{Request: request}
	err := r.run(ctx)
	return r.Result, err
}

// runner measures the points of a request and collects the result.
type runner struct {
	Request

	mu sync.Mutex // guards the rest, and calls of Journal
	Result
	reloads map[string]*reload // by function
}

func (r *runner) run(ctx context.Context) error {
	var tasks []task
	var strategies []search.Strategy
	for i, fn := range r.Functions {
		s, err := search.New(r.Search, r.Space, r.GoalOf(fn))
		if err != nil {
			return err
		}
		strategies = append(strategies, s)
		if r.Chooses() {
			tasks = append(tasks, func(ctx context.Context, on testbed.GPUs) error { return r.search(ctx, r.trial(fn, on), s, i) })
			continue
		}
		for _, c := range r.Space.Configs() {
			tasks = append(tasks, func(ctx context.Context, on testbed.GPUs) error {
				_, _, err := r.measure(ctx, r.trial(fn, on), c)
				return err
			})
		}
	}
	r.Selections, r.reloads = make([]Selection, len(strategies)), map[string]*reload{}
	err := r.runTasks(ctx, tasks)
	r.sort()
	if err == nil && !r.Chooses() {
		r.replay(strategies)
	}
	return err
}

// trial returns a trial of the function on a testbed.
func (r *runner) trial(fn function.Function, on testbed.GPUs) trial {
	if fn.Kind == function.Training { // a failure is to be reported
		fn.Restart, fn.MaxRestarts, fn.Deadline = function.DefaultRestart, 0, 0
	}
	return trial{Job: r.Job, testbed: on, fn: fn, progress: r.Progress, log: r.TrialLog}
}

// task is a sequence of trials on one testbed.
type task func(ctx context.Context, on testbed.GPUs) error

// runTasks runs the tasks, on each testbed one at a time. The first error ends
// all of them.
func (r *runner) runTasks(ctx context.Context, tasks []task) error {
	queue := make(chan task, len(tasks))
	for _, t := range tasks {
		queue <- t
	}
	close(queue)
	workers, ctx := errgroup.WithContext(ctx)
	for _, on := range r.Testbeds {
		workers.Go(func() error {
			for t := range queue {
				if err := t(ctx, on); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return workers.Wait()
}

// sort puts the results of several testbeds into the order of the job.
func (r *runner) sort() {
	rank := map[Point]int{}
	for i, fn := range r.Functions {
		for k, c := range r.Space.Configs() {
			if r.Chooses() {
				k = 0 // keeps the order in which they were measured
			}
			rank[Point{fn.Name, c}] = i*r.Space.Size() + k
		}
	}
	slices.SortStableFunc(r.Rows, func(a, b profile.Row) int {
		return rank[PointOf(a)] - rank[PointOf(b)]
	})
	slices.SortStableFunc(r.Failures, func(a, b Failure) int { return rank[a.At] - rank[b.At] })
}

// replay feeds the measured rows to the strategies and records their choices.
func (r *runner) replay(strategies []search.Strategy) {
	rows := map[Point]profile.Row{}
	for _, row := range r.Rows {
		rows[PointOf(row)] = row
	}
	for i, fn := range r.Functions {
		s, trials := strategies[i], 0
		for c, ok := s.Next(); ok; c, ok = s.Next() {
			row, measured := rows[Point{fn.Name, c}]
			s.Record(c, row, measured)
			trials++
		}
		r.Selections[i] = Selection{fn, trials, s.Choice()}
	}
}

// search measures the configurations that the strategy asks for of the i-th
// function.
func (r *runner) search(ctx context.Context, t trial, s search.Strategy, i int) error {
	trials := 0
	for c, ok := s.Next(); ok; c, ok = s.Next() {
		r.Progress.Next(Point{t.fn.Name, c}, s.Reason())
		row, measured, err := r.measure(ctx, t, c)
		if err != nil {
			return err
		}
		s.Record(c, row, measured)
		trials++
	}
	r.Selections[i] = Selection{t.fn, trials, s.Choice()}
	return nil
}

// measure measures one configuration, or returns the row of an earlier run. An
// error ends the run; a configuration that cannot be measured is recorded as a
// failure, and measured is false.
func (r *runner) measure(ctx context.Context, t trial, c profile.Config) (row profile.Row, measured bool, err error) {
	at := Point{t.fn.Name, c}
	if row, ok := r.Earlier[at]; ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.Rows = append(r.Rows, row)
		return row, true, nil
	}
	if err := ctx.Err(); err != nil {
		return row, false, err
	}
	r.Progress.Measuring(at)
	// First, so that a row is complete, and written, as soon as it is measured.
	ms, err := r.loadMS(ctx, t, c.Batch)
	if err != nil {
		return row, false, err
	}
	row, err = t.measure(ctx, c)
	row.LoadMS = ms
	_, stuck := errors.AsType[*StopError](err)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil, stuck && row.Samples > 0:
		r.Rows = append(r.Rows, row)
		r.Progress.Measured(row)
		if e := r.Journal.Append(row); e != nil {
			return row, false, fmt.Errorf("write the row for %s: %w", at, e)
		}
		return row, true, err
	case stuck, ctx.Err() != nil, endsRun(err):
		return row, false, err
	}
	r.Failures = append(r.Failures, Failure{at, err})
	r.Progress.Failed(at, err)
	return row, false, nil
}

// endsRun reports whether every further trial would meet the same error:
// something that all instances need is unavailable, or no instance accepts the
// body.
func endsRun(err error) bool {
	_, badBody := errors.AsType[*testbed.BodyError](err)
	return badBody || ports.Unavailable(err)
}
