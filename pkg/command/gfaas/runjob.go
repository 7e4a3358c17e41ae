package gfaas

import (
	"context"
	"errors"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/job"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

func (o *runOptions) training() bool { return o.kind == function.Training }

// checkKind checks --kind and the flags that depend on it.
func (o *runOptions) checkKind(restartsGiven bool) error {
	switch {
	case o.kind != function.DefaultKind && !o.training():
		return cli.Usagef("--kind %q: expected %s or %s", o.kind, function.DefaultKind, function.Training)
	case o.training() && o.slo > 0:
		return cli.Usagef("--slo %v: not allowed with --kind %s, because a job has no latency", o.slo, function.Training)
	case restartsGiven && !o.training():
		return cli.Usagef("--max-restarts: expected --kind %s as well", function.Training)
	case o.restarts < 0:
		return cli.Usagef("--max-restarts %d: expected 0 or more", o.restarts)
	}
	return nil
}

// toCompletion runs a command and, if it is a job, restarts it after failures. runOnce runs it once and returns
// its exit status. The result has the exit code and the number of restarts.
func (o *runOptions) toCompletion(ctx context.Context, t *tool, runOnce func() (int, error)) (r job.Result, err error) {
	short := 0
	for {
		began := time.Now()
		if r.ExitCode, err = runOnce(); err != nil || !o.training() {
			return r, err
		}
		r.Detail = job.Describe(r.ExitCode)
		if procfs.MayHaveDescendants() {
			r.ExitCode, r.Detail = job.AwaitRemaining(ctx, t.runDir, r.ExitCode, r.Detail)
		}
		if r.ExitCode == 0 || ctx.Err() != nil || r.Restarts >= o.restarts {
			return r, nil
		}
		if short++; time.Since(began) >= instance.SteadyRun {
			short = 1
		}
		pause := instance.RestartPause(short)
		t.env.Notef("note: the job %s; restart %d of %d in %v", r.Detail, r.Restarts+1, o.restarts, pause)
		select {
		case <-ctx.Done():
			return r, nil
		case <-time.After(pause):
		}
		r.Restarts++
	}
}

// store stores the result of the command for gfaas wait, if it has a name, is a job, or gfaas wait waits for it.
// failed is the error of gfaas run itself.
func (o *runOptions) store(t *tool, id, program string, r job.Result, failed error) {
	results := host.ResultsOf(t.runDir)
	if o.name == "" && !o.training() && !results.Expected(id) {
		return
	}
	r.Program = program
	if r.State, r.Ended = instance.Succeeded, time.Now(); r.Detail == "" {
		r.Detail = job.Describe(r.ExitCode)
	}
	if failed != nil {
		r.ExitCode, r.Detail = runStatus(asCommandError(failed)), failed.Error()
	}
	if r.ExitCode != 0 {
		r.State = instance.Failed
	}
	if err := results.Store(id, r); err != nil {
		t.env.Notef("warning: gfaas wait will not find the result of %s: %v", id, err)
	}
}

// asCommandError returns an error in the form that runStatus reads.
func asCommandError(err error) *cli.Error {
	if e, ok := errors.AsType[*cli.Error](err); ok {
		return e
	}
	return &cli.Error{Err: err}
}
