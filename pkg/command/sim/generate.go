package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/events"
	gen "github.com/gfaas/gfaas/pkg/sim/workload"
	"github.com/gfaas/gfaas/pkg/trace"
)

func newGenerate(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Generate traces, request rates and events to simulate",
		Long: `Generate input for the other commands of gfaas-sim: traces of invocations, costs of
functions, series of request rates, starts and stops of instances, and the workloads of
papers (docs/papers.md), as far as these papers describe them. The same seed
gives the same output.`,
		Example: `  # Run a policy on the workload of LALB
  gfaas-sim generate lalb --working-set 35 --costs-out costs.csv > trace.csv
  gfaas-sim queue --functions costs.csv --trace trace.csv --policy lalb-o3 --gpus 12 --gpu-mem 8GiB`,
	}
	cmd.AddCommand(newGenerateTrace(env), newGenerateRPS(env), newGenerateLALB(env), newGenerateAzure(env), newGenerateMQFQ(env), newGenerateKaaS(env), newGenerateCluster(env))
	return cmd
}

// addAction sets the action of a command that generates a trace, and adds the flags --costs-out and --seed. The function
// generate checks the other flags.
func addAction(env *cli.Env, cmd *cobra.Command, generate func(seed uint64) (gen.Workload, error)) *cobra.Command {
	var costsOut string
	var seed uint64
	cmd.RunE = func(*cobra.Command, []string) error {
		w, err := generate(seed)
		if err == nil {
			err = printWorkload(env, w, costsOut)
		}
		return err
	}
	cmd.Flags().StringVar(&costsOut, "costs-out", "", "write the costs of the functions to this file (CSV)")
	cli.CompleteFiles(cmd, "csv", "costs-out")
	seedFlag(cmd, &seed)
	return cmd
}

func seedFlag(cmd *cobra.Command, seed *uint64) {
	cmd.Flags().Uint64Var(seed, "seed", 1, "seed of the random numbers")
}

// printWorkload writes the trace and, with --costs-out, the costs.
func printWorkload(env *cli.Env, w gen.Workload, costsOut string) error {
	if err := env.CheckOutput("costs-out", costsOut); err != nil {
		return err
	}
	if costsOut != "" {
		var costs bytes.Buffer
		if err := trace.WriteFunctions(&costs, w.Functions); err != nil {
			return err
		}
		if err := env.WriteTo(costsOut, costs.Bytes()); err != nil {
			return err
		}
	}
	return env.Emit(func(out io.Writer) error {
		t := trace.NewWriter(out)
		for _, row := range w.Rows {
			if err := t.Write(w.Functions[row.Function].Name, row.At); err != nil {
				return err
			}
		}
		return t.Flush()
	})
}

// inRange returns an error if the number in a flag is out of range.
func inRange[N int | float64](name string, v N, low, high float64) error {
	if float64(v) >= low && float64(v) <= high {
		return nil
	}
	return cli.Usagef("--%s %v is out of range, expected %v to %v", name, v, low, high)
}

const patternHelp = `
    poisson   a constant rate; the gaps between arrivals have an exponential
              distribution
    gamma     a constant rate; the gaps have a gamma distribution with the
              coefficient of variation --cv (more than 1: burstier than poisson)
    bursty    one burst of length --burst at a random time in each --period; the rate
              in a burst is --factor times the rate between bursts
    periodic  a sine wave with the period --period, between 0.2 and 1.8 times the
              mean rate
    sporadic  bursts of length --burst, one per --period on average, after pauses of
              random length without arrivals

With all patterns, --rate is the mean rate over a long time.`

// patternOptions holds the flags that describe arrivals.
type patternOptions struct {
	gen.Pattern
	rate                    float64
	duration, period, burst time.Duration
}

func (o *patternOptions) flags(cmd *cobra.Command) {
	o.Pattern = gen.Defaults()
	f := cmd.Flags()
	cli.Choice(cmd, &o.Shape, "pattern", "pattern of arrivals over time", gen.Shapes()...)
	f.Float64Var(&o.rate, "rate", 10, "mean arrivals per second")
	f.DurationVar(&o.duration, "duration", 10*time.Minute, "time that the output covers")
	f.Float64Var(&o.CV, "cv", o.CV, "for gamma: standard deviation of the gaps divided by their mean")
	f.DurationVar(&o.period, "period", seconds(o.Period), "for bursty and periodic: length of a period, with one burst or wave; for sporadic: mean time from one burst to the next")
	f.DurationVar(&o.burst, "burst", seconds(o.Burst), "for bursty and sporadic: length of a burst")
	f.Float64Var(&o.Factor, "factor", o.Factor, "for bursty: rate in a burst divided by the rate between bursts")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (o *patternOptions) check() error {
	o.Period, o.Burst = o.period.Seconds(), o.burst.Seconds()
	if err := o.Check(); err != nil {
		return cli.Fail(cli.ExitUsage, "set the pattern with --cv, --period, --burst and --factor", err)
	}
	if err := inRange("rate", o.rate, 1e-6, 1e9); err != nil {
		return err
	}
	if o.duration < time.Second || o.duration > trace.MaxSeconds*time.Second {
		return cli.Usagef("--duration %v is out of range, expected 1s to %v", o.duration, trace.MaxSeconds*time.Second)
	}
	return checkRows(o.rate * o.duration.Seconds())
}

// checkRows returns an error if the expected number of invocations would need too much memory.
func checkRows(rows float64) error {
	if rows <= gen.MaxRows {
		return nil
	}
	return cli.Fail(cli.ExitUsage, "generate several shorter traces",
		fmt.Errorf("the trace could have %.3g invocations, expected at most %d", rows, gen.MaxRows))
}

func newGenerateTrace(env *cli.Env) *cobra.Command {
	var o patternOptions
	m := gen.Mixed{Functions: 20}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Generate a trace of invocations",
		Long: `Generate a trace (CSV: function,invoke_time_ms). The arrival times of each function are
random and independent of the other functions. All functions have the same pattern of
arrivals over time (--pattern):
` + patternHelp + `
--rate is divided among the functions by Zipf's law: with --zipf S, the rate of the k-th
function is 1/k^S of the rate of the first one. With --zipf 1, for example, the second
function has half the rate of the first one; with 0, all functions have the same rate.

--costs-out writes the costs of the functions, which are random. A gpu-warm invocation
takes 20 ms to 2 s, and a cold one 1 to 10 s more. An instance has 100 MiB to 4 GiB of
memory; a host-warm start copies it from the host to the GPU at 12 GiB/s. The costs have a log-uniform distribution: for
example, gpu-warm invocations of 20 to 200 ms are as frequent as those of 200 ms to 2 s.`,
		Example: `  # Generate bursts of 50 functions
  gfaas-sim generate trace --pattern bursty --functions 50 --rate 20 --zipf 1.5 --costs-out costs.csv > trace.csv`,
	}
	o.flags(cmd)
	cmd.Flags().IntVar(&m.Functions, "functions", m.Functions, "number of functions")
	cmd.Flags().Float64Var(&m.Zipf, "zipf", 1, "exponent S of Zipf's law: the k-th function has 1/k^S of the rate of the first one")
	return addAction(env, cmd, func(seed uint64) (w gen.Workload, err error) {
		if err := cmp.Or(o.check(), inRange("functions", m.Functions, 1, 1e6), inRange("zipf", m.Zipf, 0, 10)); err != nil {
			return w, err
		}
		m.Pattern, m.Rate, m.Duration = o.Pattern, o.rate, o.duration.Seconds()
		return m.Generate(seed), nil
	})
}

func newGenerateRPS(env *cli.Env) *cobra.Command {
	var o patternOptions
	var seed uint64
	cmd := &cobra.Command{
		Use:   "rps",
		Short: "Generate a series of request rates",
		Long: `Generate a series of request rates as CSV (second,rps): the number of requests that
arrive in each second, for gfaas-sim scale. Arrivals are random, with the mean rate --rate and one of these patterns
(--pattern):
` + patternHelp,
		Example: `  # Generate a wave around 50 requests/s
  gfaas-sim generate rps --pattern periodic --rate 50 > series.csv`,
		RunE: func(*cobra.Command, []string) error {
			if err := o.check(); err != nil {
				return err
			}
			s := trace.Series{RPS: o.Series(o.rate, int(o.duration.Seconds()), seed)}
			return env.Emit(s.WriteCSV)
		},
	}
	o.flags(cmd)
	seedFlag(cmd, &seed)
	return cmd
}

func newGenerateCluster(env *cli.Env) *cobra.Command {
	var seed uint64
	instances := 3200
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Generate the starts and stops of instances in the Dilu paper's cluster",
		Long: `Generate the starts and stops of instances in the cluster that the Dilu paper simulates
(section 5.5; docs/papers.md), as events for gfaas-sim cluster. One instance starts per
second. On average, of ten instances, two train a model, two serve a large language model, and six
serve another model. Of all instances, 60% stop after 1 to 3 minutes and 10% after 10 to
15 minutes; the others never stop.`,
		Example: `  # Simulate Dilu's scheduler on the events
  gfaas-sim generate cluster > events.csv
  gfaas-sim cluster --events events.csv --scheduler dilu --nodes 1000 --gpus-per-node 4 --gpu-mem 40GiB`,
		RunE: func(*cobra.Command, []string) error {
			if err := inRange("instances", instances, 1, 1e7); err != nil {
				return err
			}
			return env.Emit(func(w io.Writer) error { return events.Write(w, events.Mix(seed, instances)) })
		},
	}
	cmd.Flags().IntVar(&instances, "instances", instances, "number of instances that start")
	seedFlag(cmd, &seed)
	return cmd
}
