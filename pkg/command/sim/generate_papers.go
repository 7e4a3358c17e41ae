package sim

import (
	"cmp"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/events"
	gen "github.com/gfaas/gfaas/pkg/sim/workload"
)

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
