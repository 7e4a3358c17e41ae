// Package sim implements the commands of gfaas-sim, which runs policies on a virtual clock. Each
// command is one file: it reads flags and files, runs a simulation of pkg/sim, and prints the
// result. cmd/gfaas-sim calls Main.
package sim

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Main runs gfaas-sim and returns its exit status.
func Main() int { return cli.Main("gfaas-sim", NewRoot) }

// NewRoot returns the root of the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "gfaas-sim",
		Short: "Simulate scheduling policies on a virtual clock",
		Long: `Simulate queueing, placement and scaling policies on a virtual clock. gfaas-sim runs the
same code of the policies as the gateway and the planners, and prints latencies, starts
of instances and other results. It only reads and writes files, and needs no GPU.`,
	}
	root.AddCommand(newCluster(env), newQueue(env), newScale(env), newGenerate(env), newCompare(env), newReplay(env), newPlan(env), newFigure(env))
	return root
}
