package gfaas

import (
	"errors"

	"github.com/spf13/cobra"
)

func newRm(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME…",
		Short: "Remove functions",
		Long: `Removes functions from the state. A function that has instances stays: stop
them with gfaas down first. All that are named are removed, or none.`,
		Example:           "  gfaas down resnet && gfaas rm resnet",
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
