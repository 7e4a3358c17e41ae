package sim

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	gen "github.com/gfaas/gfaas/pkg/sim/workload"
	"github.com/gfaas/gfaas/pkg/trace"
)

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
