package gfaas

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// stopsAtOnce bounds how many instances are stopped at a time.
const stopsAtOnce = 32

func newDown(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "down [NAME…]",
		Short: "Stop instances",
		Long: `Stops instances and leaves nothing of them: no process or container, no
registration, no log, no shared memory. A NAME is a function, and stands for
all its instances, or an instance's id. Without names all instances are stopped.
Jobs of gfaas run are not stopped: they end with their command.

What an interrupted gfaas up left behind is stopped too and, without names, what
a gfaas-profile that was killed did; and what runs though the state file does not
know it, or cannot be read, which is exit 1 all the same. While a gfaas up or
another gfaas down is at work it waits, for three minutes at most (exit 6).`,
		Example: "  gfaas down\n  gfaas down resnet bert-1",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return without(t.instanceNames(cmd.Context()), args), cobra.ShellCompDirectiveNoFileComp
		},
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runDown(cmd.Context(), t, args) },
	}
}

func (t *tool) instanceNames(ctx context.Context) []string {
	state, err := t.store.Look(ctx)
	if err != nil {
		return nil
	}
	var names []string
	for _, r := range state.Instances {
		names = append(names, r.ID)
		if !slices.Contains(names, r.Function) {
			names = append(names, r.Function)
		}
	}
	return names
}

func runDown(ctx context.Context, t *tool, names []string) error {
	t.env.CleansUp()
	release, err := host.Exclusive(ctx, t.env, t.runDir)
	if err != nil {
		return err
	}
	defer release()
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	all, err := t.inventory(ctx, launcher)
	if err != nil {
		return err
	}
	records := all.records()
	failed := failedOf(t.runDir, names, nil)
	if len(names) > 0 {
		applied := func(name string) bool {
			return all.applied(name) || slices.ContainsFunc(failed, func(f host.FailedStart) bool { return f.ID == name || f.Function == name })
		}
		if records, err = pick(records, names, applied); err != nil {
			return explainJob(t.runDir, err)
		}
	}
	gone, err := t.stopAll(ctx, launcher, records)
	for _, f := range failed {
		err = errors.Join(err, f.Remove())
	}
	if all.broken == nil {
		// What is gone is forgotten even when the rest was interrupted.
		err = errors.Join(err, t.forget(context.WithoutCancel(ctx), gone))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(names) == 0 {
		err = errors.Join(err, host.StopMeasured(ctx, launcher, t.runDir))
	}
	return errors.Join(err, all.broken)
}

// pick returns the records that the names stand for. A function that is
// applied and has no instances stands for none.
func pick(records []instance.Record, names []string, applied func(string) bool) ([]instance.Record, error) {
	var out []instance.Record
	known := map[string]bool{}
	for _, r := range records {
		if slices.Contains(names, r.ID) || slices.Contains(names, r.Function) {
			out = append(out, r)
		}
		known[r.ID], known[r.Function] = true, true
	}
	var missing []string
	for _, name := range names {
		if !known[name] && !applied(name) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, &ports.NotFoundError{Kind: "function or instance", Names: missing}
	}
	return out, nil
}

// forget removes the records of what is gone. Those that could not be stopped
// stay in the state.
func (t *tool) forget(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return t.store.Forget(ctx, ids...)
}

// stopAll stops instances, and returns the ids of those that are gone. With
// nothing to stop it still removes what killed programs left of the simulated
// device.
func (t *tool) stopAll(ctx context.Context, launcher *launch.Launcher, records []instance.Record) (gone []string, err error) {
	if len(records) == 0 {
		return nil, simgpu.Sweep()
	}
	bar := t.env.Progress(len(records), "stopping", "instances")
	defer func() { _ = bar.Finish() }()
	errs := make([]error, len(records))
	slots := make(chan struct{}, stopsAtOnce)
	var wg sync.WaitGroup
	for i, r := range records {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if errs[i] = ctx.Err(); errs[i] == nil {
				errs[i] = launcher.Stop(ctx, r)
			}
			_ = bar.Add(1)
		})
	}
	wg.Wait()
	var failed []error
	for i, r := range records {
		if errs[i] != nil {
			failed = append(failed, errs[i])
			continue
		}
		gone = append(gone, r.ID)
	}
	return gone, errors.Join(failed...)
}
