// Package profile implements the command gfaas-profile, which measures the load that one instance of a
// function sustains under each slice of a GPU.
//
// NewRoot builds the command tree. Each subcommand (run, search, load, report, import) is one file with its
// flags, validation and output. The use cases are in package measure and its subpackages; platform connects
// them to the GPUs and instances of this host. The main function of cmd/gfaas-profile calls Main.
package profile

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Main runs gfaas-profile and returns its exit status.
func Main() int { return cli.Main("gfaas-profile", NewRoot) }

// NewRoot builds the command tree.
func NewRoot(env *cli.Env) *cobra.Command { return newRoot(env, realPlatform(env)) }

func newRoot(env *cli.Env, p platform) *cobra.Command {
	root := &cobra.Command{
		Use:   "gfaas-profile",
		Short: "Measure functions under slices of a GPU",
		Long: `Measure the throughput and latency of a function under slices of a GPU.

gfaas-profile run starts instances of a function under one slice after the other,
sends requests to each, and writes a profile: throughput and latency by SM share,
quota and batch size. gfaas-place plans with profiles. gfaas-profile load sends
requests to a function or server that is already running.`,
		Example: `  # Measure a function under slices of a GPU
  gfaas-profile run function.yaml --out-file profile.csv
  # Find the best configuration with few trials
  gfaas-profile run function.yaml --search fast --batch 1,2,4,8
  # Send requests to an applied function
  gfaas-profile load resnet --load poisson:50 --duration 30s
  # Choose a configuration from a profile
  gfaas-profile search --table profile.csv --slo 69ms
  # Show a profile as an HTML page
  gfaas-profile report profile.csv --slo 69ms -o html --out-file profile.html`,
	}
	root.AddCommand(newRun(env, p), newLoad(env), newSearch(env), newReport(env), newImport(env))
	cli.UsesDaemons(root)
	return root
}
