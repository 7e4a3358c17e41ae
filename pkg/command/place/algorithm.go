package place

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
)

// algorithmHelp lists the algorithms for the command's help.
func algorithmHelp() string {
	return cli.Entries(lists.Map(policy.Kinds(), func(k policy.Kind) cli.Entry { return cli.Entry{Name: k.Name, Help: k.Help} }))
}

// kind returns the algorithm of --algorithm.
func (o *planOptions) kind() policy.Kind {
	kinds := policy.Kinds()
	return kinds[slices.IndexFunc(kinds, func(k policy.Kind) bool { return k.Name == o.algorithm })] // the flag accepts no other name
}

// checkAlgorithm returns a usage error for flags that have no effect with the chosen algorithm.
func (o *planOptions) checkAlgorithm(cmd *cobra.Command) error {
	if cmd.Flags().Changed("order") && !cmd.Flags().Changed("algorithm") {
		o.algorithm = "fast" // joint has no order
	}
	k := o.kind()
	for _, p := range policy.Parameters() {
		if cli.OnCommandLine(cmd.Flags(), p.Key) && !k.Has(p.Key) {
			return cli.Usagef("--%s has no effect with --algorithm %s", p.Key, k.Name)
		}
	}
	if cli.OnCommandLine(cmd.Flags(), "share-models") && !k.SharesModels {
		return cli.Usagef("--share-models has no effect with --algorithm %s", k.Name)
	}
	o.options.ShareModels = o.options.ShareModels && k.SharesModels // the value may be from the settings
	if o.limit < 0 {
		return cli.Usagef("--time-limit %s: expected 0 or more, like 2s", o.limit)
	}
	if err := o.options.Check(); err != nil {
		return cli.Usagef("--%w", err)
	}
	return nil
}

// checkMultiGPUFunctions returns a usage error if the algorithm cannot place a wanted function that spans GPUs.
func (o *planOptions) checkMultiGPUFunctions(in policy.Input) error {
	if o.kind().SpansGPUs {
		return nil
	}
	for _, fn := range in.Functions {
		demanded := slices.ContainsFunc(in.Demand, func(d plan.Demand) bool { return d.Function == fn.Name })
		if demanded && fn.GPUs > 1 {
			return cli.Usagef("--algorithm %s places each instance on one GPU, but %s spans %d: expected --algorithm %s",
				o.algorithm, fn.Name, fn.GPUs, strings.Join(policy.Spanning(), " or "))
		}
	}
	return nil
}

// runAlgorithm plans with the chosen algorithm, and prints the reasons for its configurations.
func (o *planOptions) runAlgorithm(in policy.Input) (plan.Plan, error) {
	p, reasons, err := o.kind().Plan(in, o.options)
	for _, r := range reasons {
		o.env.Debugf("%s", r)
	}
	return p, err
}
