package sim

import (
	"bytes"
	"io"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	gen "github.com/gfaas/gfaas/pkg/sim/workload"
	"github.com/gfaas/gfaas/pkg/trace"
)

func newGenerate(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make traces, loads and events to simulate",
		Long: `Makes input for the other commands: traces of invocations with costs, series of
loads, and the workloads of papers as far as they print them. The same seed
gives the same bytes.`,
		Example: `  gfaas-sim generate lalb --working-set 35 --costs-out costs.csv > trace.csv
  gfaas-sim queue --functions costs.csv --trace trace.csv --policy lalb-o3 --gpus 12 --gpu-mem 8GiB`,
	}
	cmd.AddCommand(newGenerateTrace(env), newGenerateRPS(env), newGenerateLALB(env), newGenerateMQFQ(env), newGenerateCluster(env))
	return cmd
}

// generated is what generators of traces have in common.
type generated struct {
	env      *cli.Env
	costsOut string
	seed     uint64
}

func (g *generated) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&g.costsOut, "costs-out", "", "write what the functions cost to this file (CSV)")
	cli.Files(cmd, "csv", "costs-out")
	seedFlag(cmd, &g.seed)
}

func seedFlag(cmd *cobra.Command, seed *uint64) {
	cmd.Flags().Uint64Var(seed, "seed", 1, "what is drawn by chance is drawn by this number")
}

// print writes the trace, and the costs where they were asked for.
func (g *generated) print(w gen.Workload) error {
	if err := g.env.CheckOutput("costs-out", g.costsOut); err != nil {
		return err
	}
	if g.costsOut != "" {
		var costs bytes.Buffer
		if err := trace.WriteFunctions(&costs, w.Functions); err != nil {
			return err
		}
		if err := g.env.WriteTo(g.costsOut, costs.Bytes()); err != nil {
			return err
		}
	}
	return g.env.Emit(func(out io.Writer) error {
		t := trace.NewWriter(out)
		for _, row := range w.Rows {
			if err := t.Write(w.Functions[row.Function].Name, row.At); err != nil {
				return err
			}
		}
		return t.Flush()
	})
}

// inRange checks a flag's number.
func inRange(name string, v, low, high float64) error {
	if v >= low && v <= high {
		return nil
	}
	return cli.Usagef("--%s %v is out of range, expected %v to %v", name, v, low, high)
}
