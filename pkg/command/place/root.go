// Package place is the command tree of gfaas-place, which plans what runs
// where and checks plans.
package place

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Main runs gfaas-place and returns its exit status.
func Main() int { return cli.Main("gfaas-place", NewRoot) }

// NewRoot is the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "gfaas-place",
		Short: "Plan which slices of which GPUs serve a demand",
		Long: `gfaas-place is a calculator: from what instances of functions sustain (a
profile) and how many requests a second are wanted (a demand) it makes a plan
of instances on GPUs. It reads files and writes files, and needs no GPU.`,
		Example: `  gfaas-place plan --profile profile.csv --demand resnet=250,bert=40
  gfaas-place pack --items items.csv
  gfaas-place verify plan.json --profile profile.csv
  gfaas-place export hami plan.json --functions functions.yaml | kubectl apply -f -`,
	}
	root.AddCommand(newPlan(env), newPack(env), newVerify(env), newDiff(env), newExport(env))
	return root
}
