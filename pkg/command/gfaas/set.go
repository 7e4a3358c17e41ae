package gfaas

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/number"
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
		Short: "Change the slice of what runs",
		Long: `Changes the quota or the memory limit of instances while they run, of gfaas up's
and of gfaas run's: from the next window on. A NAME is an instance's id, or a
function's, and stands for all its instances. Others keep what they have; a note
says when a GPU's instances are promised more than there is of it.

A memory limit below what an instance holds takes nothing away from it: it gets no
more until it holds less. --mem 0 is no limit. Another quota takes away the turns
that a plan's timetable gave the instance; gfaas up gives back what its plan says.

The share of the SMs is fixed when a process starts: --sm is refused (exit 4) but
where it is as it was. Instances of the gateway are its own to change.`,
		Example: "  gfaas set resnet --quota 0.3:0.6\n  gfaas set train --mem 2GiB",
		Args:    cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			names := t.instanceNames(cmd.Context())
			jobs, _ := tokend.Jobs(t.runDir) // completion offers what can be read
			for _, j := range jobs {
				names = append(names, j.Instance)
			}
			return without(names, args), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, t, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.quota, "quota", "", "REQUEST[:LIMIT]: guaranteed and largest fraction of each window")
	cli.Memory(f, &o.mem, "mem", "limit on GPU memory, like `2GiB`; 0 is no limit")
	f.Float64Var(&o.sm, "sm", 0, "share of the SMs in percent, which takes a restart")
	return cmd
}

// change is what the flags ask for.
func (o *setOptions) change(cmd *cobra.Command) (c wire.Change, err error) {
	f := cmd.Flags()
	if f.Changed("quota") {
		request, limit, err := gpu.ParseQuota(o.quota)
		if err == nil {
			err = gpu.Slice{SMPct: 100, QuotaRequest: request, QuotaLimit: limit}.Validate()
		}
		if err != nil {
			return c, cli.Usagef("--quota: %w", err)
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
		return c, cli.Usagef("expected what to change: --quota, --mem or both")
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
	daemon := tokend.Dial(t.runDir)
	stands, err := daemon.Status(ctx)
	if err != nil {
		return err
	}
	ids, err := o.targets(stands, names)
	if err != nil {
		return err
	}
	state, err := t.store.Look(ctx)
	if err != nil {
		return err
	}
	records := map[string]instance.Record{}
	for _, r := range state.Instances {
		if !slices.Contains(ids, r.ID) {
			continue
		}
		if r.Owner == instance.Gateway {
			return cli.Fail(cli.ExitFailure, "scale its function, or change its profile: 'gfaas scale', 'gfaas serve --profile'",
				fmt.Errorf("instance %s is the gateway's, which gives it its slice", r.ID))
		}
		records[r.ID] = r
	}
	for _, id := range ids {
		if err := daemon.Change(ctx, id, c); err != nil {
			return err
		}
		if r, started := records[id]; started {
			if err := t.store.Update(ctx, changed(r, c)); err != nil {
				return fmt.Errorf("instance %s: %w", id, err)
			}
		}
	}
	if stands, err = daemon.Status(ctx); err != nil {
		return err
	}
	for _, text := range promised(stands) {
		t.env.Notef("note: %s", text)
	}
	limits := map[string]gpu.Bytes{}
	for _, g := range stands.GPUs {
		for _, c := range g.Clients {
			if slices.Contains(ids, c.Instance) {
				limits[g.GPU] = o.mem
			}
		}
	}
	noteBeyond(t.env, limits)
	return nil
}

// targets are the instances that the names stand for.
func (o *setOptions) targets(s wire.Status, names []string) ([]string, error) {
	var ids, missing []string
	for _, name := range names {
		found := false
		for _, g := range s.GPUs {
			for _, c := range g.Clients {
				if c.Instance != name && c.Function != name {
					continue
				}
				found = true
				if o.sm > 0 && c.SMPct != o.sm {
					return nil, cli.Fail(cli.ExitUnavailable, "of a plan: change it there, and 'gfaas up' starts the instance again; else stop it and start it again",
						fmt.Errorf("instance %s has %s%% of the SMs for as long as it runs: the driver takes the share when a process starts", c.Instance, number.Plain(c.SMPct)))
				}
				if !slices.Contains(ids, c.Instance) {
					ids = append(ids, c.Instance)
				}
			}
		}
		if !found {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, &ports.NotFoundError{Kind: "instance", Names: missing}
	}
	return ids, nil
}

// changed is the record of an instance after the change.
func changed(r instance.Record, c wire.Change) instance.Record {
	if c.QuotaRequest != nil {
		r.Slice.QuotaRequest, r.Slice.QuotaLimit, r.Turns, r.RPS = *c.QuotaRequest, *c.QuotaLimit, nil, 0
	}
	if c.MemLimit != nil {
		r.Slice.Mem = *c.MemLimit
	}
	return r
}

// promised names the GPUs of which more is promised than there is: requests of
// instances, each a share of the SMs for a share of the time.
func promised(s wire.Status) []string {
	var out []string
	for _, g := range s.GPUs {
		sum := 0.0
		var seen []string
		for _, c := range g.Clients {
			if !slices.Contains(seen, c.Instance) {
				seen = append(seen, c.Instance)
				sum += c.SMPct / 100 * c.QuotaRequest
			}
		}
		if sum > 1+1e-9 {
			out = append(out, fmt.Sprintf("%s of GPU %s is promised to %s: who asks at once gets less", number.Percent(sum, 1), g.GPU, strings.Join(seen, ", ")))
		}
	}
	return out
}
