package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/spf13/cobra"
)

const runLong = `Starts one instance of the function under each SM share and quota (request and
limit alike, so that the instance gets exactly its quota), waits until it is
ready, loads it, and writes one row of the profile. A file with several
functions has them measured one after the other; --function chooses one.

Load: closed:N keeps N requests outstanding. poisson:RPS sends at the times of
a Poisson process, whatever the instance does; latencies count from the time a
request was due, so a stall shows in every request it delayed. At most 512
requests are under way; what is due then waits. What is not answered one
--duration after the end, and at least 10 s, is an error. max is the closed
loop with the fewest workers, a power of two, that doubling does not improve
by 5%.

throughput_rps counts the answers within --duration, after --warmup. Latencies
and errors are of the requests that were due within it. cold_ms is from the
start of the instance to its first answer, warm_ms the median of 5 single
requests before the load. What could not be measured is left empty. Every
request carries its batch size as the header X-Gfaas-Batch.

Rows: each is written as soon as it is measured, to standard output or, under
--out-file or --resume, to that file, synced to the disk. --resume FILE skips
the configurations that FILE has and appends the others; a last line that was
torn by a crash is dropped. -o table and -o json print at the end.

A configuration that cannot be measured is reported, has no row, and is tried
again by --resume; the exit status is 1. Interrupted with rows in a file, the
status is 7.

--fail-if takes METRIC OP NUMBER, OP being > >= < <= == or !=, and optionally
"at" with function, sm_pct, quota or batch; it may be repeated. METRIC is a
column of the profile or efficacy (requests a second per whole GPU). When one
holds at any row, the status is 3.`

const runExample = `  gfaas-profile run function.yaml --out-file profile.csv
  gfaas-profile run function.yaml --resume profile.csv
  gfaas-profile run function.yaml --sm 12,24,50 --quota 0.2,0.6,1 --load max -o table
  gfaas-profile run function.yaml --load poisson:40 --sm 24 --quota 0.4 \
      --fail-if 'p95_ms > 69' --fail-if 'errors > 0 at sm_pct=24,quota=0.4'`

// newRun is gfaas-profile run.
func newRun(env *cli.Env, w world) *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:     "run FUNCTION.yaml",
		Short:   "Measure a function over a grid of slices",
		Long:    runLong,
		Example: runExample,
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, w, args[0]) },
	}
	f := cmd.Flags()
	f.Var(floats(&o.sm, 6, 12, 24, 50, 60, 80, 100), "sm", "SM shares to measure, in percent")
	f.Var(floats(&o.quota, 0.2, 0.4, 0.6, 0.8, 1), "quota", "quotas to measure, as fractions of a window")
	f.Var(ints(&o.batch, 1), "batch", "batch sizes to measure")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "length of the measured period of a trial")
	f.DurationVar(&o.warmup, "warmup", 2*time.Second, "time under load before the measured period")
	f.DurationVar(&o.startTimeout, "start-timeout", 2*time.Minute, "how long an instance may take to its first answer")
	f.StringVar(&o.load, "load", "closed:8", "load of a trial: closed:N, poisson:RPS or max")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the Poisson process")
	f.StringVar(&o.search, "search", "grid", "which configurations to measure: "+strings.Join(search.Names(), ", "))
	f.StringVar(&o.resume, "resume", "", "go on with this profile: skip what it has, append the rest")
	f.StringArrayVar(&o.failIf, "fail-if", nil, "exit with 3 when this holds at any row, like 'p95_ms > 69'")
	f.StringVar(&o.gpu, "gpu", "", "GPU to measure on: a number or sim (default 0, without an NVIDIA driver sim)")
	f.StringVar(&o.body, "body", "", "file that every request carries, - for standard input (default nothing)")
	f.StringVar(&o.function, "function", "", "the one function to measure of a file with several")
	_ = cmd.RegisterFlagCompletionFunc("search", cobra.FixedCompletions(search.Names(), cobra.ShellCompDirectiveNoFileComp))
	env.Outputs(cmd, "csv", "table", "json")
	return cmd
}

// run does what the flags ask for.
func (o *runOptions) run(ctx context.Context, env *cli.Env, w world, path string) error {
	j, err := o.check(env, path)
	if err != nil {
		return err
	}
	if o.gpu == "" {
		o.gpu = w.DefaultGPU()
	}
	model, err := gpuModel(o.gpu)
	if err != nil {
		return err
	}
	out, old, err := o.openOutput(env, j, model)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	gpus := gpusOf(o.gpu, j.functions)
	release, err := lockGPUs(w.RunDir(), gpus)
	if err != nil {
		return err
	}
	defer release()
	m, err := w.Open(ctx, gpus, o.startTimeout)
	if err != nil {
		return err
	}
	o.announce(ctx, env, j, m, old)
	r := &runner{job: j, journal: out, old: old, progress: newProgress(env, j.cells()-len(old), j.each())}
	r.trial = func(fn function.Function) trial {
		return trial{
			machine: m, fn: fn, gpus: gpuNames(o.gpu, fn.GPUs), model: model,
			body: j.body, load: j.load, startTimeout: o.startTimeout, note: r.progress.note,
		}
	}
	err = r.run(ctx)
	r.progress.close()
	return o.conclude(env, r, ctx.Err() != nil, err)
}

// cells is how many configurations the job has at most.
func (j job) cells() int { return len(j.functions) * j.space.Size() }

// each is how long one configuration is under load, at least.
func (j job) each() time.Duration { return j.load.Warmup + j.load.Duration }

// announce says what the run is about to do and what its figures are worth.
func (o *runOptions) announce(ctx context.Context, env *cli.Env, j job, m machine, old map[cell]profile.Row) {
	if others := m.Others(ctx); len(others) > 0 {
		env.Notef("%s run on this GPU too: the figures will show their load", strings.Join(others, ", "))
	}
	left := j.cells() - len(old)
	about := "about"
	if j.load.Spec.Kind == load.Max {
		about = "at least"
	}
	env.Debugf("configurations: %d to measure, %d measured before; %v and a start each: %s %v",
		left, len(old), j.each(), about, time.Duration(left)*j.each())
}

// conclude prints what is printed at the end and turns the outcome into an
// exit status.
func (o *runOptions) conclude(env *cli.Env, r *runner, interrupted bool, ended error) error {
	if env.Output != "csv" {
		if err := show(env, r.rows); err != nil {
			return errors.Join(ended, err)
		}
	}
	file := o.file(env)
	again := ""
	if file != "" {
		again = "go on with: --resume " + file
	}
	switch {
	case ended != nil && interrupted && file != "" && len(r.rows) > 0:
		var stuck *stopError
		if errors.As(ended, &stuck) {
			env.Notef("%v", stuck)
		}
		return cli.Fail(cli.ExitPartial, again, fmt.Errorf("interrupted: %d of %d configurations are in %s",
			len(r.rows), r.job.cells(), file))
	case ended != nil && len(r.rows) > 0:
		return withHint(ended, again)
	case ended != nil:
		return ended
	}
	tripped, unknown := r.gates()
	switch {
	case r.failed > 0:
		for _, text := range slices.Concat(tripped, unknown) {
			env.Notef("--fail-if %s", text)
		}
		return cli.Fail(cli.ExitFailure, again, fmt.Errorf("%d of %d configurations could not be measured", r.failed, r.job.cells()))
	case len(unknown) > 0:
		return fmt.Errorf("--fail-if cannot be judged:\n  %s", strings.Join(slices.Concat(unknown, tripped), "\n  "))
	case len(tripped) > 0:
		return cli.Fail(cli.ExitNo, "", fmt.Errorf("--fail-if tripped:\n  %s", strings.Join(tripped, "\n  ")))
	}
	return nil
}

// gates judges every row by every gate.
func (r *runner) gates() (tripped, unknown []string) {
	for _, g := range r.job.gates {
		for _, row := range r.rows {
			trip, miss := g.judge(row)
			if trip != "" {
				tripped = append(tripped, trip)
			}
			if miss != "" {
				unknown = append(unknown, miss)
			}
		}
	}
	return tripped, unknown
}
