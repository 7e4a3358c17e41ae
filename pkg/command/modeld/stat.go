package modeld

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

func newStat(t *tool) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "stat [NAME]",
		Short: "Show a model, or how the daemon stands",
		Long: "Shows one model or, without a name, how the daemon stands.\n\nJSON of a model: " + keys + `
JSON of the daemon: {"gpu","capacity_bytes","used_bytes","models","refs","hits",
"loads","evictions"}, counted since it began.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			return stat(cmd.Context(), t, name, tenant, len(args) == 1)
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "who asks (default "+wire.DefaultTenant+")")
	t.env.Outputs(cmd, "table", "wide", "json", "yaml", "csv")
	return cmd
}

func stat(ctx context.Context, t *tool, name, tenant string, named bool) error {
	if named {
		if err := checkModel(name, tenant); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	a, _, err := client.Call(ctx, wire.Request{Op: wire.OpStat, Name: name, Tenant: tenant})
	if err != nil {
		return explain(fmt.Errorf("stat: %w", err))
	}
	if named {
		return t.env.Show(a.Model, func() [][]string { return modelRows(t.env.Output, []wire.Status{*a.Model}) })
	}
	return t.env.Show(a.Daemon, func() [][]string { return totalRows(t.env.Output, *a.Daemon) })
}

func totalRows(form string, d wire.Totals) [][]string {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	if form == "csv" {
		return [][]string{
			{"gpu", "capacity_bytes", "used_bytes", "models", "refs", "hits", "loads", "evictions"},
			{d.GPU, number(d.Capacity), number(d.Used), strconv.Itoa(d.Models), strconv.Itoa(d.Refs), number(d.Hits), number(d.Loads), number(d.Evictions)},
		}
	}
	return [][]string{
		{"GPU", "USED", "CAPACITY", "MODELS", "REFS", "HITS", "LOADS", "EVICTIONS"},
		{d.GPU, mib(d.Used), mib(d.Capacity), strconv.Itoa(d.Models), strconv.Itoa(d.Refs), number(d.Hits), number(d.Loads), number(d.Evictions)},
	}
}
