package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// runner measures what its job asks for, on several lanes at a time, and keeps
// the books.
type runner struct {
	job      job
	lanes    int
	progress *progress
	trial    func(fn function.Function, lane int) trial
	old      map[cell]profile.Row // measured by an earlier run

	mu       sync.Mutex
	journal  journal
	rows     []profile.Row // in the order of the search, old ones too
	fresh    int           // measured by this run
	found    []outcome
	parkings map[string]*parking // by function
	failures []failure
}

// cell is a configuration of a function.
type cell struct {
	function string
	config   profile.Config
}

// outcome is what a search has chosen for a function.
type outcome struct {
	function function.Function
	trials   int
	choice   search.Choice
}

// goal is what configurations of the function must meet.
func (j job) goal(fn function.Function) search.Goal {
	slo := j.slo
	if slo == 0 {
		slo = fn.SLO
	}
	return search.Goal{SLOMS: millis(slo), Error: j.error, CheckQuota: j.checkQuota}
}

// choosing tells whether the search is for one configuration, not for all.
func (j job) choosing() bool { return j.search != "grid" }

// run measures function by function. It stops early when the context ends and
// when nothing that follows could be measured or kept.
func (r *runner) run(ctx context.Context) error {
	var chains []chain
	var strategies []search.Strategy
	for i, fn := range r.job.functions {
		s, err := search.New(r.job.search, r.job.space, r.job.goal(fn))
		if err != nil {
			return err
		}
		strategies = append(strategies, s)
		if r.job.choosing() {
			chains = append(chains, func(ctx context.Context, lane int) error { return r.search(ctx, r.trial(fn, lane), s, i) })
			continue
		}
		for _, c := range r.job.space.Configs() {
			chains = append(chains, func(ctx context.Context, lane int) error {
				_, _, err := r.one(ctx, r.trial(fn, lane), c)
				return err
			})
		}
	}
	r.found, r.parkings = make([]outcome, len(strategies)), map[string]*parking{}
	err := r.drive(ctx, chains)
	r.sort()
	if err == nil && !r.job.choosing() {
		r.retell(strategies)
	}
	return err
}

// chain is trials that must follow each other, on one lane.
type chain func(ctx context.Context, lane int) error

// drive runs the chains, on each lane one at a time; the first error ends all.
func (r *runner) drive(ctx context.Context, chains []chain) error {
	waiting := make(chan chain, len(chains))
	for _, c := range chains {
		waiting <- c
	}
	close(waiting)
	driven, ctx := errgroup.WithContext(ctx)
	for lane := range r.lanes {
		driven.Go(func() error {
			for c := range waiting {
				if err := c(ctx, lane); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return driven.Wait()
}

// sort puts rows that lanes measured side by side in the order of the job.
func (r *runner) sort() {
	rank := map[cell]int{}
	for i, fn := range r.job.functions {
		for k, c := range r.job.space.Configs() {
			if r.job.choosing() {
				k = 0 // as it was measured
			}
			rank[cell{fn.Name, c}] = i*r.job.space.Size() + k
		}
	}
	slices.SortStableFunc(r.rows, func(a, b profile.Row) int {
		return rank[cell{a.Function, a.Config}] - rank[cell{b.Function, b.Config}]
	})
	slices.SortStableFunc(r.failures, func(a, b failure) int { return rank[a.cell] - rank[b.cell] })
}

// retell tells strategies what was measured without asking them.
func (r *runner) retell(strategies []search.Strategy) {
	rows := map[cell]profile.Row{}
	for _, row := range r.rows {
		rows[cell{row.Function, row.Config}] = row
	}
	for i, fn := range r.job.functions {
		s, trials := strategies[i], 0
		for c, ok := s.Next(); ok; c, ok = s.Next() {
			row, measured := rows[cell{fn.Name, c}]
			s.Tell(c, row, measured)
			trials++
		}
		r.found[i] = outcome{fn, trials, s.Choice()}
	}
}

// search measures what the strategy asks for of one function, the i-th.
func (r *runner) search(ctx context.Context, t trial, s search.Strategy, i int) error {
	trials := 0
	for c, ok := s.Next(); ok; c, ok = s.Next() {
		r.progress.why(t.fn.Name, c, s.Why())
		row, measured, err := r.one(ctx, t, c)
		if err != nil {
			return err
		}
		s.Tell(c, row, measured)
		trials++
	}
	r.found[i] = outcome{t.fn, trials, s.Choice()}
	return nil
}

// one measures one configuration, or takes what an earlier run measured. An
// error ends the whole run; a configuration that cannot be measured does not.
func (r *runner) one(ctx context.Context, t trial, c profile.Config) (row profile.Row, measured bool, err error) {
	if row, ok := r.old[cell{t.fn.Name, c}]; ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.rows = append(r.rows, row)
		return row, true, nil
	}
	if err := ctx.Err(); err != nil {
		return row, false, err
	}
	r.progress.measuring(t.fn.Name, c)
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
		r.fresh++
		r.progress.measured(row)
		if e := r.journal.Append(row); e != nil {
			return row, false, fmt.Errorf("keep the row measured %s: %w", cellName(t.fn.Name, c), e)
		}
		return row, true, err
	case stuck, ctx.Err() != nil, hopeless(err):
		return row, false, err
	}
	r.failures = append(r.failures, failure{cell{t.fn.Name, c}, err})
	r.progress.failed(t.fn.Name, c, err)
	return row, false, nil
}

// hopeless tells whether the next configuration would fail in the same way:
// something that every instance needs is not there, or no instance takes what
// requests carry.
func hopeless(err error) bool {
	var body *bodyError
	return errors.As(err, &body) || cli.Unavailable(err)
}
