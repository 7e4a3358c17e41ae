// Package place implements the commands of gfaas-place, which makes, changes, checks and exports
// plans. Each command reads files, calls a library package (policy/place and its subpackages, or
// manifest) and prints the result. The command gfaas-place calls Main.
package place

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Main runs gfaas-place and returns its exit status.
func Main() int { return cli.Main("gfaas-place", NewRoot) }

// NewRoot returns the root command with all subcommands.
func NewRoot(env *cli.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "gfaas-place",
		Short: "Plan instances on slices of GPUs for a demand",
		Long: `Plan how many instances of each function to run, and on which GPUs. Each instance gets
a slice of a GPU: a share of the SMs, a quota of the GPU time, and memory. The input is
a profile (the measured throughput and latency of an instance under each slice) and a
demand (the requests/s of each function). gfaas-place only reads and writes files, and
needs no GPU.`,
		Example: `  # Plan instances for a demand
  gfaas-place plan --profile profile.csv --demand resnet=250,bert=40
  # Pack slices onto as few GPUs as possible; a slice is a rectangle of quota × SM share
  gfaas-place pack --items items.csv
  # Check a plan
  gfaas-place verify plan.json --profile profile.csv
  # Start a plan on Kubernetes
  gfaas-place export hami plan.json --functions functions.yaml | kubectl apply -f -`,
	}
	root.AddCommand(newPlan(env), newPack(env), newVerify(env), newDiff(env), newExport(env))
	return root
}
