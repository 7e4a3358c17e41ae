package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// runner measures what its job asks for, one trial at a time on each machine,
// and gathers what was measured and what was not.
type runner struct {
	job
	machines []machine
	progress *progress
	old      map[point]profile.Row // measured by an earlier run
	log      *trialLog             // of trials for goodputs; nil without

	mu         sync.Mutex
	journal    journal
	rows       []profile.Row // in the order of the search, old ones too
	failures   []failure
	selections []selection         // a function each; that of no name was not searched to the end
	parkings   map[string]*parking // by function
}

// selection is what a search has chosen for a function.
type selection struct {
	function function.Function
	trials   int
	choice   search.Choice
}

// run measures function by function. It stops early when the context ends and
// when nothing that follows could be measured or kept.
func (r *runner) run(ctx context.Context) error {
	var tasks []task
	var strategies []search.Strategy
	for i, fn := range r.functions {
		s, err := search.New(r.job.search, r.space, r.goalOf(fn))
		if err != nil {
			return err
		}
		strategies = append(strategies, s)
		if r.choosing() {
			tasks = append(tasks, func(ctx context.Context, m machine) error { return r.search(ctx, r.trial(fn, m), s, i) })
			continue
		}
		for _, c := range r.space.Configs() {
			tasks = append(tasks, func(ctx context.Context, m machine) error {
				_, _, err := r.measure(ctx, r.trial(fn, m), c)
				return err
			})
		}
	}
	r.selections, r.parkings = make([]selection, len(strategies)), map[string]*parking{}
	err := r.runTasks(ctx, tasks)
	r.sort()
	if err == nil && !r.choosing() {
		r.replay(strategies)
	}
	return err
}

// trial is one of a function on a machine.
func (r *runner) trial(fn function.Function, m machine) trial {
	return trial{job: r.job, machine: m, fn: fn, note: r.progress.note, trying: r.progress.trying, tried: r.progress.tried, keep: r.log.Append}
}

// task is trials that must follow each other, on one machine.
type task func(ctx context.Context, m machine) error

// runTasks runs the tasks, on each machine one at a time; the first error ends all.
func (r *runner) runTasks(ctx context.Context, tasks []task) error {
	waiting := make(chan task, len(tasks))
	for _, t := range tasks {
		waiting <- t
	}
	close(waiting)
	workers, ctx := errgroup.WithContext(ctx)
	for _, m := range r.machines {
		workers.Go(func() error {
			for t := range waiting {
				if err := t(ctx, m); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return workers.Wait()
}

// sort puts rows that several machines measured in the order of the job.
func (r *runner) sort() {
	rank := map[point]int{}
	for i, fn := range r.functions {
		for k, c := range r.space.Configs() {
			if r.choosing() {
				k = 0 // as it was measured
			}
			rank[point{fn.Name, c}] = i*r.space.Size() + k
		}
	}
	slices.SortStableFunc(r.rows, func(a, b profile.Row) int {
		return rank[pointOf(a)] - rank[pointOf(b)]
	})
	slices.SortStableFunc(r.failures, func(a, b failure) int { return rank[a.at] - rank[b.at] })
}

// replay gives the strategies the rows that were measured without them, for what
// they choose.
func (r *runner) replay(strategies []search.Strategy) {
	rows := map[point]profile.Row{}
	for _, row := range r.rows {
		rows[pointOf(row)] = row
	}
	for i, fn := range r.functions {
		s, trials := strategies[i], 0
		for c, ok := s.Next(); ok; c, ok = s.Next() {
			row, measured := rows[point{fn.Name, c}]
			s.Tell(c, row, measured)
			trials++
		}
		r.selections[i] = selection{fn, trials, s.Choice()}
	}
}

// search measures what the strategy asks for of one function, the i-th.
func (r *runner) search(ctx context.Context, t trial, s search.Strategy, i int) error {
	trials := 0
	for c, ok := s.Next(); ok; c, ok = s.Next() {
		r.progress.why(point{t.fn.Name, c}, s.Why())
		row, measured, err := r.measure(ctx, t, c)
		if err != nil {
			return err
		}
		s.Tell(c, row, measured)
		trials++
	}
	r.selections[i] = selection{t.fn, trials, s.Choice()}
	return nil
}

// measure measures one configuration, or takes what an earlier run measured. An
// error ends the whole run; a configuration that cannot be measured does not.
func (r *runner) measure(ctx context.Context, t trial, c profile.Config) (row profile.Row, measured bool, err error) {
	at := point{t.fn.Name, c}
	if row, ok := r.old[at]; ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.rows = append(r.rows, row)
		return row, true, nil
	}
	if err := ctx.Err(); err != nil {
		return row, false, err
	}
	r.progress.measuring(at)
	// First, so that a row is complete, and written, as soon as it is measured.
	ms, err := r.loadMS(ctx, t, c.Batch)
	if err != nil {
		return row, false, err
	}
	row, err = t.measure(ctx, c)
	row.LoadMS = ms
	var lingering *stopError
	stuck := errors.As(err, &lingering)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil, stuck && row.Samples > 0:
		r.rows = append(r.rows, row)
		r.progress.measured(row)
		if e := r.journal.Append(row); e != nil {
			return row, false, fmt.Errorf("keep the row measured for %s: %w", at, e)
		}
		return row, true, err
	case stuck, ctx.Err() != nil, endsRun(err):
		return row, false, err
	}
	r.failures = append(r.failures, failure{at, err})
	r.progress.failed(at, err)
	return row, false, nil
}

// endsRun says whether the next configuration would fail in the same way:
// something that every instance needs is not there, or no instance takes what
// requests carry.
func endsRun(err error) bool {
	var body *bodyError
	return errors.As(err, &body) || cli.Unavailable(err)
}

// progress shows where the run is: on a terminal a bar of the configurations, with
// the time left once one is measured, under --verbose a line for each. How many there
// are a grid knows; of the other searches nobody does.
type progress struct {
	env   *cli.Env
	bar   *cli.Bar
	stop  chan struct{}
	ended sync.WaitGroup

	mu   sync.Mutex
	last string // the last result
}

// newProgress is for so many configurations, -1 where nobody knows.
func newProgress(env *cli.Env, points int) *progress {
	p := &progress{env: env, stop: make(chan struct{})}
	if points == 0 {
		points = -1
	}
	p.bar = env.Progress(points, "measuring", "configurations")
	p.ended.Go(p.tick)
	return p
}

// tick shows the time while a configuration is measured.
func (p *progress) tick() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.mu.Lock()
			_ = p.bar.Begin()
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// measuring shows the configuration that is measured from now on.
func (p *progress) measuring(at point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.Describe(at.String() + p.last)
}

// trying shows what is tried of the configuration now, beside its first load.
func (p *progress) trying(at point, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.Describe(fmt.Sprintf("%s: %s", at, text))
}

// tried tells what was seen.
func (p *progress) tried(at point, text string) {
	if p.env.Verbose {
		p.note(fmt.Sprintf("for %s: %s", at, text))
	}
}

// why says why a configuration is measured next.
func (p *progress) why(at point, reason string) {
	if p.env.Verbose {
		p.note(fmt.Sprintf("next for %s: %s", at, reason))
	}
}

// measured shows a result.
func (p *progress) measured(r profile.Row) {
	p.step(fmt.Sprintf(" (last %.4g rps, p95 %.4g ms)", r.ThroughputRPS, r.P95MS))
	p.env.Debugf("for %s: %s rps, p95 %s ms, %d requests, %d errors", pointOf(r),
		number.Plain(r.ThroughputRPS), number.Plain(r.P95MS), r.Samples, r.Errors)
}

// note tells of something beside the result.
func (p *progress) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.bar.Clear()
	p.env.Notef("%s", text)
}

// failed says that a configuration could not be measured, even when quiet.
func (p *progress) failed(at point, err error) {
	p.step(" (last failed)")
	fmt.Fprintf(p.env.Err, "%s: failed for %s: %v\n", p.env.Prog, at, err)
}

// step counts a configuration and clears the line for what is said of it.
func (p *progress) step(last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = last
	_ = p.bar.Add(1)
	_ = p.bar.Clear()
}

// close takes the bar away.
func (p *progress) close() {
	close(p.stop)
	p.ended.Wait()
	_ = p.bar.Close()
}
