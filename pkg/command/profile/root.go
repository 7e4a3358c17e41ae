// Package profile is the command tree of gfaas-profile, which measures what one instance
// of a function sustains under each slice of a GPU. It has the flags, the validation and
// the output of each command and wires adapters; the use cases are in package measure.
package profile

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Main runs gfaas-profile and returns its exit status.
func Main() int { return cli.Main("gfaas-profile", NewRoot) }

// NewRoot returns the command tree.
func NewRoot(env *cli.Env) *cobra.Command { return newRoot(env, realPlatform(env)) }

func newRoot(env *cli.Env, p platform) *cobra.Command {
	root := &cobra.Command{
		Use:   "gfaas-profile",
		Short: "Measure what a function sustains under slices of a GPU",
		Long: `gfaas-profile starts a function under one slice of a GPU after the other, loads
each instance with requests, and writes a profile: throughput and latency by
SM share, quota and batch size. gfaas-place plans with it. What runs already
is loaded as it is by gfaas-profile load.`,
		Example: `  gfaas-profile run function.yaml --out-file profile.csv
  gfaas-profile run function.yaml --search fast --batch 1,2,4,8
  gfaas-profile load resnet --load poisson:50 --duration 30s
  gfaas-profile search --table profile.csv --slo 69ms
  gfaas-profile report profile.csv --slo 69ms -o html --out-file profile.html`,
	}
	root.AddCommand(newRun(env, p), newLoad(env), newSearch(env), newReport(env), newImport(env))
	return root
}
