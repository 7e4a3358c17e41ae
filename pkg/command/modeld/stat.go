package modeld

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

func newStat(t *tool) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "stat [NAME]",
		Short: "Show a model, or the state of the daemon",
		Long: "Show one model or, without a name, the state of the daemon.\n\nJSON of a model: " + keys + `

JSON of the daemon: {"gpu","capacity_bytes","used_bytes","models","refs","hits",
"loads","evictions"}. hits, loads and evictions are counted since the daemon started.`,
		Example: `  # show how much of the capacity is in use
  gfaas-modeld stat
  # show one model
  gfaas-modeld stat resnet50 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			return stat(cmd.Context(), t, name, tenant, len(args) == 1)
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "use the models of this tenant (default: the tenant that is named "+wire.DefaultTenant+")")
	t.env.Outputs(cmd, "table", "wide", "json", "yaml", "csv")
	return cmd
}

func stat(ctx context.Context, t *tool, name, tenant string, named bool) error {
	if named {
		if err := checkModel(name, tenant, 0); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	a, err := t.call(ctx, "stat", wire.Request{Op: wire.OpStat, Name: name, Tenant: tenant})
	if err != nil {
		return err
	}
	if named {
		return t.env.Show(a.Model, func() [][]string { return modelRows(t.env.Output, []wire.Status{*a.Model}) })
	}
	return t.env.Show(a.Daemon, func() [][]string { return totalRows(t.env.Output, *a.Daemon) })
}

func totalRows(form string, d wire.Totals) [][]string {
	counts := []string{strconv.Itoa(d.Models), strconv.Itoa(d.Refs), number(d.Hits), number(d.Loads), number(d.Evictions)}
	if form == "csv" {
		return [][]string{
			{"gpu", "capacity_bytes", "used_bytes", "models", "refs", "hits", "loads", "evictions"},
			append([]string{d.GPU, number(d.Capacity), number(d.Used)}, counts...),
		}
	}
	return [][]string{
		{"GPU", "USED", "CAPACITY", "MODELS", "REFS", "HITS", "LOADS", "EVICTIONS"},
		append([]string{d.GPU, mib(d.Used), mib(d.Capacity)}, counts...),
	}
}
