// Package sim is the command tree of gfaas-sim, which runs policies on a
// virtual clock.
package sim

import (
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Main runs gfaas-sim and returns its exit status.
func Main() int { return cli.Main("gfaas-sim", NewRoot) }

// NewRoot is the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "gfaas-sim",
		Short: "Try policies on a virtual clock",
		Long: `gfaas-sim answers what-if questions about policies: it runs them, as they are,
on a virtual clock and counts what comes of it. It reads files and writes files,
and needs no GPU.`,
	}
	root.AddCommand(newCluster(env), newQueue(env), newScale(env), newGenerate(env), newCompare(env), newReplay(env), newPlan(env))
	return root
}
