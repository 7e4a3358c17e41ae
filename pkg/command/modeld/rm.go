package modeld

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

func newRemove(t *tool) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "rm NAME",
		Short: "Forget a model",
		Long: `Forgets a model. Who holds it keeps it, and its memory is free when the last of
them is gone. The file stays.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return remove(cmd.Context(), t, args[0], tenant) },
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "whose model it is (default "+wire.DefaultTenant+")")
	return cmd
}

func remove(ctx context.Context, t *tool, name, tenant string) error {
	if err := checkModel(name, tenant); err != nil {
		return err
	}
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	if _, _, err := client.Call(ctx, wire.Request{Op: wire.OpRemove, Name: name, Tenant: tenant}); err != nil {
		return explain(fmt.Errorf("rm %s: %w", name, err))
	}
	return nil
}
