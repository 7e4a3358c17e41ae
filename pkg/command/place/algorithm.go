package place

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
)

// algorithm is a way to plan.
type algorithm struct {
	name  string
	plan  func(o *planOptions, in policy.Input) (plan.Plan, error)
	flags []string // those of special that it knows
}

// algorithms are the ways to plan, by the name that --algorithm takes; the
// first is the default.
var algorithms = []algorithm{
	{"joint", (*planOptions).joint, []string{"share-models", "functions"}},
	{"fast", (*planOptions).fast, []string{"share-models", "tie-break", "order", "functions"}},
	{"dilu", (*planOptions).dilu, []string{"order", "omega", "gamma", "alpha", "beta", "functions"}},
}

// special are the flags that only some algorithms know. A seed and a time limit
// are none: what does not search keeps both.
func special() (flags []string) {
	for _, a := range algorithms {
		flags = append(flags, a.flags...)
	}
	slices.Sort(flags)
	return slices.Compact(flags)
}

func algorithmNames() (names []string) {
	for _, a := range algorithms {
		names = append(names, a.name)
	}
	return names
}

func (o *planOptions) chosen() algorithm {
	i := slices.IndexFunc(algorithms, func(a algorithm) bool { return a.name == o.algorithm })
	return algorithms[i] // the flag takes no other name
}

// checkAlgorithm refuses flags that would change nothing.
func (o *planOptions) checkAlgorithm(cmd *cobra.Command) error {
	switch ordered := cmd.Flags().Changed("order"); {
	case ordered && !cmd.Flags().Changed("algorithm"):
		o.algorithm = "fast" // joint has no order
	case !ordered && o.algorithm == "dilu":
		o.order = string(policy.Arrival)
	}
	a := o.chosen()
	for _, name := range special() {
		if cli.Given(cmd.Flags(), name) && !slices.Contains(a.flags, name) {
			return cli.Usagef("--%s means nothing to --algorithm %s", name, a.name)
		}
	}
	o.share = o.share && slices.Contains(a.flags, "share-models") // a setting may say so
	if o.limit < 0 {
		return cli.Usagef("--time-limit %s: expected 0 or more, like 2s", o.limit)
	}
	if o.algorithm == "dilu" {
		return o.checkDilu()
	}
	return nil
}

// checkSpans refuses functions that the algorithm cannot place.
func (o *planOptions) checkSpans(in policy.Input) error {
	if o.algorithm != "fast" {
		return nil
	}
	for _, fn := range in.Functions {
		wanted := slices.ContainsFunc(in.Demand, func(d plan.Demand) bool { return d.Function == fn.Name })
		if wanted && fn.GPUs > 1 {
			return cli.Usagef("--algorithm fast has each instance on one GPU: %s spans %d (joint and dilu place such)", fn.Name, fn.GPUs)
		}
	}
	return nil
}

func (o *planOptions) joint(in policy.Input) (plan.Plan, error) {
	p, why, err := policy.Joint(in, policy.JointOptions{
		Model: o.model, ShareModels: o.share, Seed: o.seed,
		Expired: o.over, Spend: o.spend,
	})
	for _, r := range why {
		o.env.Debugf("%s", r)
	}
	return p, err
}

func (o *planOptions) fast(in policy.Input) (plan.Plan, error) {
	return o.timetabled(policy.Fast(in, policy.FastOptions{
		TieBreak: policy.TieBreak(o.tieBreak), Order: policy.Order(o.order), ShareModels: o.share,
	}))
}

func (o *planOptions) dilu(in policy.Input) (plan.Plan, error) {
	return o.timetabled(policy.Dilu(in, policy.DiluOptions{DiluOptions: o.diluted, Order: policy.Order(o.order)}))
}

// timetabled turns a plan of rectangles into one of the model that was asked
// for.
func (o *planOptions) timetabled(p plan.Plan, err error) (plan.Plan, error) {
	if o.model == plan.ModelTokens {
		p = policy.Timetabled(p)
	}
	return p, err
}

// diluFlags are the parameters of --algorithm dilu.
func (o *planOptions) diluFlags(f *pflag.FlagSet) {
	d := &o.diluted
	f.Float64Var(&d.Omega, "omega", d.Omega, "dilu: most that SM requests on a GPU sum to, at most 1")
	f.Float64Var(&d.Gamma, "gamma", d.Gamma, "dilu: most that SM limits on a GPU sum to")
	f.Float64Var(&d.Alpha, "alpha", d.Alpha, "dilu: weight of SMs left over, 0 to 1")
	f.Float64Var(&d.Beta, "beta", d.Beta, "dilu: weight of memory left over, 0 to 1")
}

func (o *planOptions) checkDilu() error {
	if o.diluted.Omega > 1 {
		return cli.Usagef("--omega %v: expected at most 1, since the rectangles of a plan do not overlap", o.diluted.Omega)
	}
	if err := o.diluted.Validate(); err != nil {
		return cli.Usagef("--%w", err)
	}
	return nil
}
