package gfaas

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/rollout"
	"github.com/gfaas/gfaas/pkg/wire"
)

type setOptions struct {
	quota string
	mem   gpu.Bytes
	sm    float64
}

func newSet(t *tool) *cobra.Command {
	var o setOptions
	cmd := &cobra.Command{
		Use:   "set NAME…",
		Short: "Change the slices of running instances and jobs",
		Long: `Change the quota or the memory limit of instances of gfaas up and of jobs of gfaas
run while they run. The change takes effect in the next scheduling window. A NAME is
one of these:

  - the id of an instance or of a job
  - the name of a function: the command changes all its instances
  - the name of a program: the command changes all its jobs

If NAME stands for several instances or jobs, a note lists them. A note is also printed
if the slices on a GPU now request more than the whole GPU.

If the new memory limit is below the memory that an instance holds, a note is printed.
The instance keeps that memory, but its allocations fail until it holds less than the
limit. --mem 0 removes the limit.

A plan can fix the parts of each window in which an instance may use the GPU (its
turns; see gfaas up). After a change of the quota, these turns no longer apply to the
instance: its quota alone decides when it uses the GPU. To get the slices of the plan
back, run gfaas up again.

The SM share cannot be changed while a process runs. If --sm differs from the share of
an instance, the command changes nothing, and its exit status is 4. The slices of
instances that the gateway started cannot be changed.`,
		Example: `  # Guarantee 30% of the time to each instance of resnet, and allow up to 60%
  gfaas set resnet --quota 0.3:0.6

  # Limit the memory of the job train
  gfaas set train --mem 2GiB`,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			names := t.instanceNames(cmd.Context())
			jobs, _ := tokend.Jobs(t.runDir) // complete as far as the jobs can be read
			names = append(names, lists.Map(jobs, func(j wire.Job) string { return j.Instance })...)
			return without(names, args), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, t, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.quota, "quota", "", "guaranteed and maximum fraction of each time window, as `REQUEST[:LIMIT]`, like 0.3:0.8 or 30%:80%")
	cli.Memory(f, &o.mem, "mem", "limit on GPU memory, as a `size` like 2GiB; 0 for no limit")
	f.Float64Var(&o.sm, "sm", 0, "expected share of the SMs, in percent: fail if an instance has another one")
	cli.Meaning(cmd, cli.ExitUnavailable, "the token daemon is unavailable, or an instance has another SM share than --sm")
	return cmd
}

// change returns the changes that the flags request.
func (o *setOptions) change(cmd *cobra.Command) (c wire.Change, err error) {
	f := cmd.Flags()
	if f.Changed("quota") {
		request, limit, err := parseQuota(o.quota)
		if err != nil {
			return c, err
		}
		c.QuotaRequest, c.QuotaLimit = &request, &limit
	}
	if f.Changed("mem") {
		c.MemLimit = &o.mem
	}
	switch {
	case f.Changed("sm") && !(o.sm > 0 && o.sm <= 100):
		return c, cli.Usagef("--sm %s: expected more than 0 and at most 100", number.Plain(o.sm))
	case !f.Changed("quota") && !f.Changed("mem") && !f.Changed("sm"):
		return c, cli.Usagef("nothing to change: expected --quota, --mem or both")
	}
	return c, nil
}

func (o *setOptions) run(cmd *cobra.Command, t *tool, names []string) error {
	c, err := o.change(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	t.env.CleansUp()
	release, err := host.Exclusive(ctx, t.env, t.runDir)
	if err != nil {
		return err
	}
	defer release()
	gpus, notes, err := rollout.Change(ctx, t.store, tokend.Dial(t.runDir), names, c, o.sm)
	if err != nil {
		return err
	}
	t.notes(notes)
	limits := map[string]gpu.Bytes{}
	for _, name := range gpus {
		limits[name] = o.mem
	}
	noteBeyond(t.env, limits)
	return nil
}
