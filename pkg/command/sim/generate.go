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

const patternHelp = `
  poisson   a steady rate: exponential gaps
  gamma     a steady rate, gaps of the coefficient of variation --cv
  bursty    one burst of --burst in every --period, at --factor times the rate
            between bursts
  periodic  a wave of --period, from a fifth of the mean rate to nine fifths
  sporadic  nothing but visits of --burst, one in --period on average

The mean rate is the same for all.`

// patternOptions are the flags that describe arrivals, as given.
type patternOptions struct {
	gen.Pattern
	rate                    float64
	duration, period, burst time.Duration
}

func (o *patternOptions) flags(cmd *cobra.Command) {
	o.Pattern = gen.Defaults()
	f := cmd.Flags()
	cli.Choice(cmd, &o.Shape, "pattern", "how arrivals go over time", gen.Shapes()...)
	f.Float64Var(&o.rate, "rate", 10, "arrivals a second on average")
	f.DurationVar(&o.duration, "duration", 10*time.Minute, "how long it lasts")
	f.Float64Var(&o.CV, "cv", o.CV, "gamma: standard deviation of the gaps over their mean")
	f.DurationVar(&o.period, "period", seconds(o.Period), "bursty, periodic, sporadic: from one to the next")
	f.DurationVar(&o.burst, "burst", seconds(o.Burst), "bursty, sporadic: how long one lasts")
	f.Float64Var(&o.Factor, "factor", o.Factor, "bursty: the rate in a burst over that between")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (o *patternOptions) check() error {
	o.Period, o.Burst = o.period.Seconds(), o.burst.Seconds()
	if err := o.Check(); err != nil {
		return cli.Fail(cli.ExitUsage, "--cv, --period, --burst and --factor say how a pattern goes", err)
	}
	if err := inRange("rate", o.rate, 1e-6, 1e9); err != nil {
		return err
	}
	if o.duration < time.Second || o.duration > trace.MaxSeconds*time.Second {
		return cli.Usagef("--duration %v is out of range, expected 1s to %v", o.duration, trace.MaxSeconds*time.Second)
	}
	return most(o.rate * o.duration.Seconds())
}

// most refuses what would take all memory.
func most(rows float64) error {
	if rows <= gen.MaxRows {
		return nil
	}
	return cli.Fail(cli.ExitUsage, "make several shorter ones",
		fmt.Errorf("it could have %.3g invocations, expected at most %d", rows, gen.MaxRows))
}

func newGenerateTrace(env *cli.Env) *cobra.Command {
	g := generated{env: env}
	var o patternOptions
	m := gen.Mixed{Functions: 20}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Make a trace of invocations",
		Long: `Makes a trace (CSV: function,invoke_time_ms) of functions whose arrivals follow a
pattern, each function on its own.
` + patternHelp + ` --zipf S gives the k-th function 1/k^S of the
first one's share; 0 gives all the same.

What the functions cost goes to --costs-out: 20 ms to 2 s warm, 1 to 10 s more
for a new container, 100 MiB to 4 GiB of memory that loads at 12 GiB/s, drawn
evenly over the orders of magnitude.`,
		Example: `  gfaas-sim generate trace --pattern bursty --functions 50 --rate 20 --zipf 1.5 --costs-out costs.csv > trace.csv`,
		RunE: func(*cobra.Command, []string) error {
			if err := cmp.Or(o.check(), inRange("functions", float64(m.Functions), 1, 1e6), inRange("zipf", m.Zipf, 0, 10)); err != nil {
				return err
			}
			m.Pattern, m.Rate, m.Duration = o.Pattern, o.rate, o.duration.Seconds()
			return g.print(m.Make(g.seed))
		},
	}
	o.flags(cmd)
	g.flags(cmd)
	cmd.Flags().IntVar(&m.Functions, "functions", m.Functions, "how many functions")
	cmd.Flags().Float64Var(&m.Zipf, "zipf", 1, "how steeply shares fall by rank")
	return cmd
}

func newGenerateRPS(env *cli.Env) *cobra.Command {
	var o patternOptions
	var seed uint64
	cmd := &cobra.Command{
		Use:   "rps",
		Short: "Make a series of loads",
		Long: `Makes a series of loads (CSV: second,rps): the arrivals of a pattern, counted in
each second.
` + patternHelp,
		Example: `  gfaas-sim generate rps --pattern periodic --rate 50 > series.csv`,
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

func newGenerateLALB(env *cli.Env) *cobra.Command {
	g := generated{env: env}
	l := gen.DefaultLALB()
	cmd := &cobra.Command{
		Use:   "lalb",
		Short: "Make the workload of LALB",
		Long: `Makes the workload of LALB (section V.A) for its 12 GPUs of 8 GiB: 325 requests a
minute for 6 minutes over a working set of 15, 25 or 35 functions, each with a
model of its own from the paper's Table I.

The paper takes popularity from the Azure trace and prints only that it is very
uneven: here the k-th function has 1/k^S of the first one's share (--zipf S).
Models are taken at even steps through the table by size and dealt to the ranks
by the seed.`,
		Example: `  gfaas-sim generate lalb --working-set 35 --costs-out costs.csv > trace.csv
  gfaas-sim queue --functions costs.csv --trace trace.csv --policy lalb-o3 --gpus 12 --gpu-mem 8GiB`,
		RunE: func(*cobra.Command, []string) error {
			err := cmp.Or(inRange("working-set", float64(l.WorkingSet), 1, 1e6), inRange("minutes", float64(l.Minutes), 1, 1e6),
				inRange("per-minute", float64(l.PerMinute), 1, 1e9), inRange("zipf", l.Zipf, 0, 10))
			if err == nil {
				err = most(float64(l.Minutes) * float64(l.PerMinute))
			}
			if err != nil {
				return err
			}
			return g.print(l.Make(g.seed))
		},
	}
	f := cmd.Flags()
	f.IntVar(&l.WorkingSet, "working-set", l.WorkingSet, "how many functions, each with a model of its own")
	f.IntVar(&l.Minutes, "minutes", l.Minutes, "how long it lasts")
	f.IntVar(&l.PerMinute, "per-minute", l.PerMinute, "requests in each minute")
	f.Float64Var(&l.Zipf, "zipf", l.Zipf, "how steeply shares fall by rank")
	g.flags(cmd)
	return cmd
}

func newGenerateMQFQ(env *cli.Env) *cobra.Command {
	g := generated{env: env}
	q := gen.DefaultMQFQ()
	duration := 10 * time.Minute
	cmd := &cobra.Command{
		Use:   "mqfq",
		Short: "Make a mix of MQFQ-Sticky's functions",
		Long: `Makes a mix like that of MQFQ-Sticky's comparison of policies (section 6.2): 19
copies of the functions of its Table 1 and 2.69 requests a second that keep a
GPU busy for 70% of the time when all start warm.

The paper samples arrival rates from the Azure trace and does not print them:
here gaps are exponential and the k-th function's rate is 1/k^S of the first
one's (--zipf S; the paper's own Zipfian workload has 1.5). Which function each
rank is a copy of is drawn by the seed so that both printed figures are met.`,
		Example: `  gfaas-sim generate mqfq --costs-out costs.csv > trace.csv
  gfaas-sim compare --functions costs.csv --trace trace.csv --pool 16 --policy fcfs,mqfq-sticky`,
		RunE: func(*cobra.Command, []string) error {
			q.Duration = duration.Seconds()
			err := cmp.Or(inRange("functions", float64(q.Functions), 1, 1e4), inRange("utilization", q.Utilization, 1e-3, 1e3),
				inRange("zipf", q.Zipf, 0, 10), inRange("duration", q.Duration, 1, 1e7), inRange("rate", q.Rate, 1e-6, 1e9))
			if err == nil {
				err = most(q.Duration * q.Rate)
			}
			if err != nil {
				return err
			}
			return g.print(q.Make(g.seed))
		},
	}
	f := cmd.Flags()
	f.IntVar(&q.Functions, "functions", q.Functions, "how many functions")
	f.DurationVar(&duration, "duration", duration, "how long it lasts")
	f.Float64Var(&q.Rate, "rate", q.Rate, "requests a second")
	f.Float64Var(&q.Utilization, "utilization", q.Utilization, "how much of one GPU's time warm executions take")
	f.Float64Var(&q.Zipf, "zipf", q.Zipf, "how steeply rates fall by rank")
	g.flags(cmd)
	return cmd
}

func newGenerateCluster(env *cli.Env) *cobra.Command {
	var seed uint64
	instances := 3200
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Make the events of Dilu's large cluster",
		Long: `Makes the events of Dilu's simulated cluster (section 5.5): one instance starts a
second, training to LLM inference to other inference as 2 to 2 to 6; 60% of them
stop after 1 to 3 minutes, 10% after 10 to 15, the rest stay.`,
		Example: `  gfaas-sim generate cluster > events.csv
  gfaas-sim cluster --events events.csv --scheduler dilu --nodes 1000 --gpus-per-node 4 --gpu-mem 40GiB`,
		RunE: func(*cobra.Command, []string) error {
			if err := inRange("instances", float64(instances), 1, 1e7); err != nil {
				return err
			}
			return env.Emit(func(w io.Writer) error { return events.Write(w, events.Mix(seed, instances)) })
		},
	}
	cmd.Flags().IntVar(&instances, "instances", instances, "how many instances start")
	seedFlag(cmd, &seed)
	return cmd
}
