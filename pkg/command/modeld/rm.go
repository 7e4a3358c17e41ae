package modeld

import (
	"context"

	"github.com/spf13/cobra"

	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

func newRemove(t *tool) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "rm NAME",
		Short: "Remove a model from the daemon",
		Long: `Remove a model from the daemon. Processes that use the model keep it; its GPU memory is freed
when the last of them ends or releases it. The file is not removed.`,
		Example: `  # free the memory of a model that is no longer needed
  gfaas-modeld rm resnet50`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return remove(cmd.Context(), t, args[0], tenant) },
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant that owns the model (default: the tenant with the name "+wire.DefaultTenant+")")
	return cmd
}

func remove(ctx context.Context, t *tool, name, tenant string) error {
	if err := checkModel(name, tenant, 0); err != nil {
		return err
	}
	_, err := t.call(ctx, "rm "+name, wire.Request{Op: wire.OpRemove, Name: name, Tenant: tenant})
	return err
}
