package gfaas

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/function"
)

func newShow(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Print a function as it was applied",
		Long: `Prints one function as its file describes it, less what is at its default.
The YAML can be applied again.`,
		Example:           "  gfaas show resnet\n  gfaas show resnet -o json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: t.completeFunctions,
		RunE:              func(cmd *cobra.Command, args []string) error { return runShow(cmd.Context(), t, args[0]) },
	}
	t.env.Outputs(cmd, "yaml", "json")
	return cmd
}

func runShow(ctx context.Context, t *tool, name string) error {
	fn, err := t.function(ctx, name)
	if err != nil {
		return err
	}
	if t.env.Output == "yaml" {
		return t.showYAML([]function.Function{fn})
	}
	doc, err := asJSON(fn)
	if err != nil {
		return err
	}
	return t.env.Show(doc, nil)
}

// function finds one function in the state.
func (t *tool) function(ctx context.Context, name string) (function.Function, error) {
	state, err := t.store.Look(ctx)
	if err != nil {
		return function.Function{}, err
	}
	return state.Function(name)
}
