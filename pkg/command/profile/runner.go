package profile

import (
	"context"
	"errors"
	"fmt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// runner measures what its job asks for and keeps the books.
type runner struct {
	job      job
	journal  journal
	progress *progress
	trial    func(function.Function) trial
	old      map[cell]profile.Row // measured by an earlier run

	rows   []profile.Row // in the order of the search, old ones too
	fresh  int           // measured by this run
	failed int
}

// cell is a configuration of a function.
type cell struct {
	function string
	config   profile.Config
}

// strategies are the job's searches, one a function.
func (j job) strategies() ([]search.Strategy, error) {
	out := make([]search.Strategy, len(j.functions))
	for i := range j.functions {
		s, err := search.New(j.search, j.space)
		if err != nil {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}

// run measures function by function. It stops early when the context ends and
// when nothing that follows could be measured or kept.
func (r *runner) run(ctx context.Context) error {
	strategies, err := r.job.strategies()
	if err != nil {
		return err
	}
	for i, fn := range r.job.functions {
		t := r.trial(fn)
		for c, ok := strategies[i].Next(); ok; c, ok = strategies[i].Next() {
			row, measured, err := r.one(ctx, t, c)
			if err != nil {
				return err
			}
			strategies[i].Tell(c, row, measured)
		}
	}
	return nil
}

// one measures one configuration, or takes what an earlier run measured. An
// error ends the whole run; a configuration that cannot be measured does not.
func (r *runner) one(ctx context.Context, t trial, c profile.Config) (row profile.Row, measured bool, err error) {
	if row, ok := r.old[cell{t.fn.Name, c}]; ok {
		r.rows = append(r.rows, row)
		return row, true, nil
	}
	if err := ctx.Err(); err != nil {
		return row, false, err
	}
	r.progress.measuring(t.fn.Name, c)
	row, err = t.measure(ctx, c)
	var lingering *stopError
	stuck := errors.As(err, &lingering)
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
	r.failed++
	r.progress.failed(t.fn.Name, c, err)
	return row, false, nil
}

// hopeless tells whether the next configuration would fail in the same way:
// something that every instance needs is not there.
func hopeless(err error) bool {
	var missing interface{ Unavailable() bool }
	return errors.As(err, &missing) && missing.Unavailable()
}
