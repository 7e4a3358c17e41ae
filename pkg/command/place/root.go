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
		Long: `Plan the placement of function instances on GPUs. The input is a profile (the
throughput and latency of instances under slices of a GPU) and a demand (the
requests/s of each function). gfaas-place only reads and writes files, and needs no
GPU.`,
		Example: `  # Plan instances for a demand
  gfaas-place plan --profile profile.csv --demand resnet=250,bert=40
  # Pack slices, as rectangles of quota × SM share, onto as few GPUs as possible
  gfaas-place pack --items items.csv
  # Check a plan
  gfaas-place verify plan.json --profile profile.csv
  # Start a plan on Kubernetes
  gfaas-place export hami plan.json --functions functions.yaml | kubectl apply -f -`,
	}
	root.AddCommand(newPlan(env), newPack(env), newVerify(env), newDiff(env), newExport(env))
	return root
}
