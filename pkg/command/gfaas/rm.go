package gfaas

import (
	"errors"

	"github.com/spf13/cobra"
)

func newRm(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME…",
		Short: "Remove functions",
		Long: `Remove functions from the state file, and delete the logs of their failed starts.
Either all named functions are removed or none. A function that has instances cannot be removed:
stop them with gfaas down first.`,
		Example: `  # Stop the instances of a function, then remove it
  gfaas down resnet && gfaas rm resnet`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: t.completeFunctions,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := t.store.Remove(cmd.Context(), args...)
			if err == nil {
				for _, f := range failedOf(t.runDir, args, nil) {
					err = errors.Join(err, f.Remove())
				}
			}
			return err
		},
	}
}
