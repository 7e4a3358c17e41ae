package gfaas

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/rollout"
)

type upOptions struct {
	node     string
	gpu      string
	parallel int
	timeout  time.Duration

	prune, dryRun, overcommit bool
}

func newUp(t *tool) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up PLAN.json|-",
		Short: "Reconcile running instances with a plan",
		Long: `Start the instances that a plan places on this machine, each in its slice of its
GPU, and return when all of them are ready to answer. They run until gfaas down.
Functions with an image run as containers, and the others as processes. All functions
must have been applied.

An instance of a training function (kind: training) is a job. gfaas up does not wait until
a job is complete; gfaas wait does. If a job of the plan has succeeded, it is kept. If it has
failed, it is started again.

The token daemon divides the time of a GPU into windows of equal length. A plan can
contain a timetable for each GPU, which divides each window into turns and assigns
each turn to an instance. The token daemon follows the timetable, and lends the time
that an instance does not use to instances that wait.

An instance that already runs as planned is not changed. If only its quota, memory
limit, turns or objective (slo) differ from the plan, the command changes them while
the instance runs. If anything else differs (its GPU, its SM share, the version of its
function), the command restarts the instance, and prints a note. It also restarts
instances of the plan that have exited. With --prune, it stops instances that are not
in the plan, except those that the gateway started. With --dry-run, it only prints
these steps.

A plan written by hand needs only {"version": 1, "gpus": [{"index": 0, "instances":
[{"id": "resnet-0", "function": "resnet"}]}]}: this instance has the whole GPU 0. The
page docs/files.md of the source describes the other keys.

If the memory limits in the plan sum to more than the memory of a GPU, the command
fails, because allocations would fail if instances used their whole limits.
--overcommit starts the instances in spite of this. If the limits exceed the memory of
the GPU only together with those of other slices, such as instances of gfaas serve and
jobs of gfaas run, the command prints a note and continues: the gateway stops idle
instances to make room for instances of a plan.

If an instance fails to start, if you press ^C, or if the terminal is closed, the
command stops all instances that it has started. It does not start instances again
that it has stopped.

While another gfaas up or gfaas down is working, the command waits. After three
minutes, it gives up with exit status 6.`,
		Example: `  # Start the instances of a plan
  gfaas up plan.json

  # Print the steps to reach the plan, including stopping all other instances
  gfaas up --dry-run --prune plan.json

  # Plan for 100 requests per second, and start the result
  gfaas-place plan --profile profile.csv --demand resnet=100 -o json | gfaas up -`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "`name` of this machine in the plan (default: the plan's only node)")
	f.StringVar(&o.gpu, "gpu", "", "with the value sim, use simulated GPUs instead of the GPUs of the plan (default: sim if there is no NVIDIA driver)")
	cli.CompleteWords(cmd, "gpu", "sim")
	f.IntVar(&o.parallel, "parallel", 8, "number of instances to start at a time")
	f.BoolVar(&o.prune, "prune", false, "stop instances that are not in the plan")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the steps without performing them")
	f.BoolVar(&o.overcommit, "overcommit", false, "start instances whose memory limits sum to more than the memory of their GPU")
	t.env.Outputs(cmd, "table", "json")
	f.DurationVar(&o.timeout, "timeout", launch.DefaultReadyTimeout, "how long an instance may take to become ready")
	return cmd
}

func (o *upOptions) run(ctx context.Context, t *tool, path string) error {
	if err := o.check(); err != nil {
		return err
	}
	p, err := cli.Load(t.env, path, plan.Read)
	if err != nil {
		if strings.HasSuffix(path, ".csv") || strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".yml") {
			err = cli.Fail(cli.ExitUsage, "create a plan from a profile and a demand with gfaas-place plan -o json", fmt.Errorf("%s is not a plan: %w", path, err))
		}
		return err
	}
	t.env.CleansUp()
	release, err := host.Exclusive(ctx, t.env, t.runDir)
	if err != nil {
		return err
	}
	defer release()
	list, err := o.assignments(ctx, t, p)
	if err != nil {
		return err
	}
	t.notes(rollout.Notes(p, list))
	if err := rollout.CheckLimits(p, list); err != nil && !o.overcommit {
		return err
	}
	noteBeyond(t.env, rollout.GPUs(list))
	if err := o.noteSharedGPUs(ctx, t, list); err != nil {
		return err
	}
	launcher := host.Launcher(t.env, t.runDir, o.timeout)
	if len(list) > 0 && !o.dryRun {
		if launcher, err = host.Starter(ctx, t.env, t.runDir, o.timeout); err != nil {
			return err
		}
	}
	defer launcher.Close()
	c := t.controller(launcher)
	steps, err := c.Steps(ctx, list, rollout.Options{Prune: o.prune, DryRun: o.dryRun})
	if err != nil {
		return err
	}
	if o.dryRun {
		steps = slices.DeleteFunc(steps, func(s rollout.Step) bool { return s.Action == rollout.ActionKeep })
		return t.env.Show(steps, func() [][]string { return stepRows(steps) })
	}
	return c.Apply(ctx, steps, o.parallel)
}

func (o *upOptions) check() error {
	switch {
	case o.gpu != "" && o.gpu != "sim":
		return cli.Usagef("--gpu %q: expected sim; real GPUs are chosen by the plan", o.gpu)
	case o.parallel < 1:
		return cli.Usagef("--parallel %d: expected 1 or more", o.parallel)
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v: expected more than 0", o.timeout)
	}
	return nil
}

// assignments returns the plan's instances on this node.
func (o *upOptions) assignments(ctx context.Context, t *tool, p plan.Plan) ([]rollout.Assignment, error) {
	unsound, notes := rollout.Verify(p)
	t.notes(notes)
	node, err := rollout.ChooseNode(p, o.node)
	if err != nil {
		return nil, err
	}
	state, err := t.store.List(ctx)
	if err != nil {
		return nil, err
	}
	simulated := o.gpu == "sim" || devices.Default() == "sim"
	name := func(index int) string { return gpu.Device{Index: index, Simulated: simulated}.String() }
	list, err := rollout.Assign(p, node, state.Functions, name, unsound)
	if err != nil {
		return nil, err
	}
	if err := checkDevices(p, node, simulated); err != nil {
		return nil, err
	}
	var gpus []string
	for _, a := range list {
		gpus = append(gpus, a.GPUs...)
	}
	return list, devices.Permitted("the plan places instances on", gpus)
}

// checkDevices returns an error if a plan needs more GPUs than this host has.
func checkDevices(p plan.Plan, node string, simulated bool) error {
	count, hint := devices.Count(simulated), "plan for the GPUs of this machine: gfaas-place plan --gpus N"
	if simulated {
		hint = devices.SimShapeHint
	}
	for _, g := range p.GPUs {
		if g.Node == node && len(g.Instances) > 0 && g.Index >= count {
			return cli.Fail(cli.ExitUnavailable, hint,
				fmt.Errorf("the plan places instances on GPU %d: this machine has %d GPU(s), counted from 0", g.Index, count))
		}
	}
	return nil
}

// noteSharedGPUs prints a note for each GPU whose memory is smaller than the sum of the limits of the plan's
// instances and of other slices, such as instances of the gateway and jobs. This is no error, because the
// gateway stops idle instances to make room for a plan.
func (o *upOptions) noteSharedGPUs(ctx context.Context, t *tool, list []rollout.Assignment) error {
	state, err := t.store.List(ctx)
	if err != nil {
		return err
	}
	occupancy := devices.NewOccupancy()
	defer occupancy.Close()
	for _, b := range rollout.SharedGPUs(list, state.Instances, t.gpus(ctx), o.prune) {
		if _, total, err := occupancy.Free(b.GPU); err == nil && total > 0 && b.Planned+b.Other > total {
			t.env.Notef("note: the memory limits on GPU %s exceed its memory of %v: %v for the plan's instances, and %v for other slices (%s)",
				b.GPU, total, b.Planned, b.Other, strings.Join(b.IDs, ", "))
		}
	}
	return nil
}

// noteBeyond prints a note for each GPU whose memory is smaller than a limit.
func noteBeyond(env *cli.Env, limits map[string]gpu.Bytes) {
	occupancy := devices.NewOccupancy()
	defer occupancy.Close()
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if text := occupancy.Beyond(name, limits[name]); text != "" {
			env.Notef("note: %s", text)
		}
	}
}

// stepRows returns the table of the steps of a dry run.
func stepRows(steps []rollout.Step) [][]string {
	return cli.Rows(steps, func(s rollout.Step) []cli.Cell {
		return []cli.Cell{{"ACTION", s.Action}, {"INSTANCE", s.ID}, {"FUNCTION", s.Function}, {"GPU", s.GPU}, {"WHY", cmp.Or(s.Why, "-")}}
	})
}
