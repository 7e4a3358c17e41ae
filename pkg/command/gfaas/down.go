package gfaas

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/rollout"
)

func newDown(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "down [NAME…]",
		Short: "Stop instances",
		Long: `Stop instances, and remove their registrations, logs and shared memory. A NAME is
the ID of an instance, or the name of a function, which stands for all instances
of the function. Without names, all instances are stopped. Jobs of gfaas run are
not stopped; a job ends with its command.

The command also stops instances that an interrupted gfaas up left behind, and
running instances that are not in the state file, which gfaas ps shows as lost.
Without names, it also stops the processes of a gfaas-profile that was killed. If
the state file cannot be read, the command finds the instances through the run
directory, the running processes and the containers, and stops them; the exit
status is then 1.

While gfaas up or another gfaas down is working, the command waits. After three
minutes, it gives up with exit status 6.`,
		Example: `  # Stop all instances
  gfaas down

  # Stop all instances of resnet, and a single instance of bert
  gfaas down resnet bert-1`,
		ValidArgsFunction: t.completeInstances,
		Args:              cobra.ArbitraryArgs,
		RunE:              func(cmd *cobra.Command, args []string) error { return runDown(cmd.Context(), t, args) },
	}
}

// completeInstances completes an argument with the IDs of instances and their functions.
func (t *tool) completeInstances(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return without(t.instanceNames(cmd.Context()), args), cobra.ShellCompDirectiveNoFileComp
}

// instanceNames returns the IDs of instances and their functions, as far as the state can be read.
func (t *tool) instanceNames(ctx context.Context) []string {
	state, err := t.store.List(ctx)
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
	c := t.controller(launcher)
	inventory, err := c.Inventory(ctx)
	if err != nil {
		return err
	}
	records := inventory.Records()
	failed := failedOf(t.runDir, names, nil)
	if len(names) > 0 {
		known := func(name string) bool {
			return inventory.Applied(name) || slices.ContainsFunc(failed, func(f host.FailedStart) bool { return f.ID == name || f.Function == name })
		}
		if records, err = rollout.Select(records, names, known); err != nil {
			jobs, _ := tokend.Jobs(t.runDir) // if that fails, report err without the explanation
			return rollout.ExplainJob(err, jobs)
		}
	}
	if len(records) == 0 {
		err = simgpu.Sweep() // otherwise Stop of the launcher calls it
	} else if inventory.Damaged == nil {
		err = c.Remove(ctx, records)
	} else {
		_, err = c.Stop(ctx, records)
	}
	for _, f := range failed {
		err = errors.Join(err, f.Remove())
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(names) == 0 {
		err = errors.Join(err, rollout.StopMeasured(ctx, launcher, t.runDir))
	}
	return errors.Join(err, inventory.Damaged)
}
