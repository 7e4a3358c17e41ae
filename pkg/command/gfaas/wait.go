package gfaas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/adapter/job"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/rollout"
	"github.com/gfaas/gfaas/pkg/wire"
)

type waitOptions struct{ timeout time.Duration }

func newWait(t *tool) *cobra.Command {
	var o waitOptions
	cmd := &cobra.Command{
		Use:   "wait NAME…",
		Short: "Wait until jobs are complete",
		Long: `Wait until jobs have succeeded or failed, and print their results. A NAME is the ID of
a job, the name of a training function, which stands for all its jobs at this time,
or the name of a slice of gfaas run (--name). Jobs may already be complete.

A job has succeeded if its command has ended with exit status 0. A job is not complete while it
waits for its restart after a failure.

gfaas run with --name or --kind training stores the result of its command for seven days,
or until another command has this name. Without these flags, it stores the result only if
gfaas wait is waiting for it. gfaas wait finds a command once gfaas run has registered its
slice. Before that, it prints the stored result of an earlier command with this name, or an
error, so a script that has just started gfaas run in the background should use the shell's own wait.

JSON is a list of {"id", "function", "state", "exit_code", "restarts", "detail"}. The
state is succeeded or failed, and "exit_code" is missing if the exit status is unknown,
for example because gfaas run was killed. Such a job has failed.`,
		Example: `  # Wait for the jobs of a training function, up to two hours
  gfaas wait tune-resnet --timeout 2h

  # Wait for a command that was started elsewhere with gfaas run --name train
  gfaas wait train`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: t.completeInstances,
		RunE: func(cmd *cobra.Command, names []string) error {
			if cmd.Flags().Changed("timeout") && o.timeout <= 0 {
				return cli.Usagef("--timeout %v: expected more than 0", o.timeout)
			}
			return o.run(cmd.Context(), t, names)
		},
	}
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "how long to wait, like 2h (default no limit)")
	t.env.Outputs(cmd, "table", "json", "jsonl", "csv", "yaml")
	cli.Meaning(cmd, cli.ExitNo, "a job has failed")
	cli.Meaning(cmd, cli.ExitTimeout, "a job was not complete within --timeout")
	return cmd
}

// outcome is the result of a job.
type outcome struct {
	ID       string `json:"id"`
	Function string `json:"function"`
	State    string `json:"state"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Restarts int    `json:"restarts"`
	Detail   string `json:"detail"`
}

// awaited is a job to wait for.
type awaited struct {
	id, function string
	wait         func(ctx context.Context) (rollout.State, error)
}

func (o *waitOptions) run(ctx context.Context, t *tool, names []string) error {
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	jobs, err := t.awaited(ctx, t.controller(launcher), names)
	if err != nil {
		return err
	}
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	outcomes := make([]outcome, len(jobs))
	group, inner := errgroup.WithContext(ctx)
	for i, j := range jobs {
		group.Go(func() error {
			s, err := j.wait(inner)
			outcomes[i] = outcome{j.id, j.function, s.Name, s.ExitCode, s.Restarts, s.Detail}
			return err
		})
	}
	err = group.Wait()
	if errors.Is(err, context.DeadlineExceeded) && o.timeout > 0 {
		return cli.Fail(cli.ExitTimeout, "'gfaas ps' shows the state of the jobs, and 'gfaas logs' their output", fmt.Errorf("the jobs are not complete after %v", o.timeout))
	}
	if err == nil {
		err = t.env.Show(outcomes, func() [][]string { return outcomeRows(outcomes, t.env.Output == "csv") })
	}
	if err == nil {
		err = failedJobs(outcomes)
	}
	return err
}

// awaited returns the jobs with the given names.
func (t *tool) awaited(ctx context.Context, c *rollout.Controller, names []string) (jobs []awaited, err error) {
	state, err := t.store.List(ctx)
	if err != nil {
		return nil, err
	}
	running, err := tokend.Jobs(t.runDir)
	if err != nil {
		return nil, err
	}
	results, found := host.ResultsOf(t.runDir), map[string]bool{}
	var runs []awaited
	for _, s := range running {
		if name := named(names, s); name != "" {
			runs = append(runs, awaited{s.Instance, s.Function, func(ctx context.Context) (rollout.State, error) { return awaitRun(ctx, results, s) }})
			found[name], found[s.Instance] = true, true
		}
	}
	for _, name := range names {
		if r, err := results.Read(name); !found[name] && instance.ValidID(name) && err == nil {
			runs = append(runs, awaited{name, r.Program, func(context.Context) (rollout.State, error) { return stateOfRun(r), nil }})
			found[name] = true
		}
	}
	records, err := rollout.SelectJobs(state, names, func(name string) bool { return found[name] })
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		jobs = append(jobs, awaited{r.ID, r.Function, func(ctx context.Context) (rollout.State, error) {
			return c.AwaitJob(ctx, r, func() bool { return host.AtWork(t.runDir) })
		}})
	}
	return append(jobs, runs...), nil
}

// named returns the name among names that stands for a slice of gfaas run, or "".
func named(names []string, s wire.Job) string {
	if i := slices.IndexFunc(names, func(name string) bool { return name == s.Instance || name == s.Function }); i >= 0 {
		return names[i]
	}
	return ""
}

// awaitRun waits until a command of gfaas run has ended.
func awaitRun(ctx context.Context, results host.Results, s wire.Job) (rollout.State, error) {
	if err := results.Expect(s.Instance); err != nil {
		return rollout.State{}, err
	}
	owner, err := procfs.Open(s.OwnerPID, s.OwnerStart)
	if err == nil { // otherwise it has ended
		defer owner.Close()
		if err := owner.Wait(ctx); err != nil {
			return rollout.State{}, err
		}
	}
	r, err := results.Read(s.Instance)
	if err != nil && !host.Missing(err) {
		return rollout.State{}, err
	}
	return stateOfRun(r), nil
}

// stateOfRun returns the state of a command of gfaas run that has ended. A command without a result was
// killed together with gfaas run, or ended before gfaas wait began.
func stateOfRun(r job.Result) rollout.State {
	s := rollout.StateOf(&instance.Record{Job: true}, r.StateOf(false))
	if !r.Over() {
		s.Detail = "ended without a result: gfaas run was killed, or had ended before"
	}
	return s
}

func outcomeRows(outcomes []outcome, csv bool) [][]string {
	return cli.Rows(outcomes, func(o outcome) []cli.Cell {
		if csv {
			return []cli.Cell{{"id", o.ID}, {"function", o.Function}, {"state", o.State}, {"exit_code", exitText(o.ExitCode)}, {"restarts", strconv.Itoa(o.Restarts)}, {"detail", o.Detail}}
		}
		return []cli.Cell{{"ID", o.ID}, {"FUNCTION", cmp.Or(o.Function, "-")}, {"STATE", o.State}, {"EXIT", cmp.Or(exitText(o.ExitCode), "-")},
			{"RESTARTS", strconv.Itoa(o.Restarts)}, {"DETAIL", cmp.Or(o.Detail, "-")}}
	})
}

// failedJobs returns an error if a job has failed.
func failedJobs(outcomes []outcome) error {
	failed := slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return o.State == instance.Succeeded })
	switch {
	case len(failed) == 0:
		return nil
	case len(failed) == 1:
		return cli.Fail(cli.ExitNo, "", fmt.Errorf("job %s failed: %s", failed[0].ID, failed[0].Detail))
	}
	return cli.Fail(cli.ExitNo, "", fmt.Errorf("%d of %d jobs failed; job %s: %s", len(failed), len(outcomes), failed[0].ID, failed[0].Detail))
}
