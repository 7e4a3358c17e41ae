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
		Long: `Print a function as the keys and values of its file. Keys that have their default
value are omitted. The YAML output can be applied again.`,
		Example: `  # Print a function as YAML
  gfaas show resnet

  # Print a function as JSON
  gfaas show resnet -o json`,
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

// function returns a function from the state file.
func (t *tool) function(ctx context.Context, name string) (function.Function, error) {
	state, err := t.store.List(ctx)
	if err != nil {
		return function.Function{}, err
	}
	return state.Function(name)
}
