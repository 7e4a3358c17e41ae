package sim

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	gen "github.com/gfaas/gfaas/pkg/sim/workload"
)

func newGenerateLALB(env *cli.Env) *cobra.Command {
	l := gen.DefaultLALB()
	cmd := &cobra.Command{
		Use:   "lalb",
		Short: "Generate the workload of the LALB paper",
		Long: `Generate the workload of the LALB paper (section V.A; docs/papers.md), which uses 12
GPUs of 8 GiB: 325 requests per minute for 6 minutes, distributed over a working set of
15, 25 or 35 functions. Each function has its own model from Table I of the paper.

The popularity of the functions in the paper is that of a trace of Azure Functions. The
paper states only that it is very uneven. In the output of this command, the k-th most
popular function gets 1/k^S of the requests of the most popular one (--zipf S). The
models are those at equal distances in the table when it is sorted by size; the seed
determines which function has which model.`,
		Example: `  # Run a policy on the workload
  gfaas-sim generate lalb --working-set 35 --costs-out costs.csv > trace.csv
  gfaas-sim queue --functions costs.csv --trace trace.csv --policy lalb-o3 --gpus 12 --gpu-mem 8GiB`,
	}
	f := cmd.Flags()
	f.IntVar(&l.WorkingSet, "working-set", l.WorkingSet, "number of functions, each with its own model")
	f.IntVar(&l.Minutes, "minutes", l.Minutes, "length of the trace in minutes")
	f.IntVar(&l.PerMinute, "per-minute", l.PerMinute, "requests per minute")
	f.Float64Var(&l.Zipf, "zipf", l.Zipf, "exponent S: the k-th most popular function gets 1/k^S of the requests of the most popular one")
	return addAction(env, cmd, func(seed uint64) (w gen.Workload, err error) {
		if err := cmp.Or(inRange("working-set", l.WorkingSet, 1, 1e6), inRange("minutes", l.Minutes, 1, 1e6),
			inRange("per-minute", l.PerMinute, 1, 1e9), inRange("zipf", l.Zipf, 0, 10),
			checkRows(float64(l.Minutes)*float64(l.PerMinute))); err != nil {
			return w, err
		}
		return l.Generate(seed), nil
	})
}

func newGenerateAzure(env *cli.Env) *cobra.Command {
	a := gen.DefaultAzure()
	cmd := &cobra.Command{
		Use:   "azure",
		Short: "Generate the workload of the LALB paper with the published facts about its trace",
		Long: `Generate a synthetic workload with the facts that the LALB paper prints about its trace of
Azure Functions (section V.A; docs/papers.md): the trace has 46,413 functions, the 15
most popular of them receive 56% of the invocations, and each other function receives
less than 0.01%. The output has the most popular functions (--working-set), reduced to 325
requests per minute for 6 minutes, and mapped to the models in Table I of the paper.

The paper does not print the shares of the single functions. Here, the k-th of the most
popular functions (--top) gets 1/k^S of the requests of the first (--zipf S), and all
others have equal shares. After the reduction, these are less than one request per
minute, so each function of the working set gets at least --least requests per minute.

gfaas-sim generate lalb has the same models, but a popularity without this gap.`,
		Example: `  # Run a policy on the workload
  gfaas-sim generate azure --working-set 35 --costs-out costs.csv > trace.csv
  gfaas-sim queue --functions costs.csv --trace trace.csv --policy lalb-o3 --gpus 12 --gpu-mem 8GiB`,
	}
	f := cmd.Flags()
	f.IntVar(&a.Functions, "functions", a.Functions, "number of functions in the trace")
	f.IntVar(&a.Top, "top", a.Top, "number of the most popular functions, which receive --top-share")
	f.Float64Var(&a.TopShare, "top-share", a.TopShare, "fraction of the requests that the most popular functions receive")
	f.Float64Var(&a.Zipf, "zipf", a.Zipf, "exponent S: the k-th of the most popular functions gets 1/k^S of the requests of the first one")
	f.IntVar(&a.Least, "least", a.Least, "least number of requests per minute of each function in the working set")
	f.IntVar(&a.WorkingSet, "working-set", a.WorkingSet, "number of functions in the output, each with its own model")
	f.IntVar(&a.Minutes, "minutes", a.Minutes, "length of the trace in minutes")
	f.IntVar(&a.PerMinute, "per-minute", a.PerMinute, "requests per minute")
	return addAction(env, cmd, func(seed uint64) (w gen.Workload, err error) {
		if err := cmp.Or(inRange("functions", a.Functions, 1, 1e6), inRange("working-set", a.WorkingSet, 1, 1e6),
			inRange("minutes", a.Minutes, 1, 1e6), inRange("per-minute", a.PerMinute, 1, 1e9),
			inRange("zipf", a.Zipf, 0, 10), inRange("top", a.Top, 1, float64(a.Functions-1)), inRange("top-share", a.TopShare, 0, 1),
			inRange("least", a.Least, 0, 1e6), checkRows(float64(a.Minutes)*float64(a.PerMinute))); err != nil {
			return w, err
		}
		if err := a.Check(); err != nil {
			return w, cli.Fail(cli.ExitUsage, "set the workload with --working-set, --functions, --least and --per-minute", err)
		}
		return a.Generate(seed), nil
	})
}

func newGenerateMQFQ(env *cli.Env) *cobra.Command {
	q := gen.DefaultMQFQ()
	duration := 10 * time.Minute
	cmd := &cobra.Command{
		Use:   "mqfq",
		Short: "Generate a workload like that of the MQFQ-Sticky paper",
		Long: `Generate a workload like that of the comparison of policies in the MQFQ-Sticky paper
(section 6.2; docs/papers.md). It has 19 functions, each a copy of a function in Table 1
of the paper, and 2.69 requests per second, which keep one GPU busy for 70% of the time
if no start is cold.

In that comparison, the rates of the functions come from a trace of Azure Functions, and
the paper does not print them. This command therefore generates other rates: gaps between
requests have an exponential distribution, and the k-th function has 1/k^S of the rate of
the first one. S is --zipf; its default is the value of another workload of the paper.
The command chooses the function of the table for each k at random, 200,000 times, and
uses the choice whose utilization is closest to --utilization.`,
		Example: `  # Compare two policies on the mix
  gfaas-sim generate mqfq --costs-out costs.csv > trace.csv
  gfaas-sim compare --functions costs.csv --trace trace.csv --pool 16 --policy fcfs,mqfq-sticky`,
	}
	f := cmd.Flags()
	f.IntVar(&q.Functions, "functions", q.Functions, "number of functions")
	f.DurationVar(&duration, "duration", duration, "length of the trace")
	f.Float64Var(&q.Rate, "rate", q.Rate, "requests per second")
	f.Float64Var(&q.Utilization, "utilization", q.Utilization, "fraction of one GPU's time that the requests need if no start is cold")
	f.Float64Var(&q.Zipf, "zipf", q.Zipf, "exponent S: the k-th function has 1/k^S of the rate of the first one")
	return addAction(env, cmd, func(seed uint64) (w gen.Workload, err error) {
		q.Duration = duration.Seconds()
		if err := cmp.Or(inRange("functions", q.Functions, 1, 1e4), inRange("utilization", q.Utilization, 1e-3, 1e3),
			inRange("zipf", q.Zipf, 0, 10), inRange("duration", q.Duration, 1, 1e7), inRange("rate", q.Rate, 1e-6, 1e9),
			checkRows(q.Duration*q.Rate)); err != nil {
			return w, err
		}
		return q.Generate(seed), nil
	})
}

func newGenerateKaaS(env *cli.Env) *cobra.Command {
	k := gen.DefaultKaaS()
	duration := time.Minute
	cmd := &cobra.Command{
		Use:   "kaas",
		Short: "Generate a workload of the KaaS paper",
		Long: `Generate a workload of the KaaS paper (section 5.3; docs/papers.md), which uses 4 GPUs of 16
GiB: clients (functions) that run the same application (--app) with the GPU time and the
memory of Table 1 of the paper.

With --rate, requests arrive at random (Poisson) for --duration, as in the online scenario
of the paper. Without it, --outstanding requests of each client arrive at time 0; with
gfaas-sim compare --repeat-until, each is followed by another one when it has completed, as
in the offline scenario.

A start copies the constant memory to the GPU at 12 GiB/s. With --worker etask, a cold start
takes 400 ms more, the time that the paper measures for the start of a Python process (section
5.2); use the policy exclusive. With --worker ktask, it does not; use cfs-affinity. The CPU
time of Table 1 is left out, because it is not part of the schedule of the GPUs.`,
		Example: `  # Simulate clients that send requests as fast as possible
  gfaas-sim generate kaas --app bert --clients 16 --costs-out costs.csv > trace.csv
  gfaas-sim compare --functions costs.csv --trace trace.csv --gpus 4 --gpu-mem 16GiB --policy cfs-affinity --repeat-until 1m`,
	}
	f := cmd.Flags()
	cli.Choice(cmd, &k.App, "app", "application in Table 1", gen.KaaSApps()...)
	cli.Choice(cmd, &k.Worker, "worker", "kind of task", gen.KaaSWorkers()...)
	f.IntVar(&k.Clients, "clients", k.Clients, "number of clients, which the paper calls replicas")
	f.IntVar(&k.Outstanding, "outstanding", k.Outstanding, "without --rate: requests of each client at time 0")
	f.Float64Var(&k.Rate, "rate", 0, "requests per second of all clients (default: all requests at time 0)")
	f.DurationVar(&duration, "duration", duration, "with --rate: length of the trace")
	return addAction(env, cmd, func(seed uint64) (w gen.Workload, err error) {
		k.Duration = duration.Seconds()
		if err := cmp.Or(inRange("clients", k.Clients, 1, 1e4), inRange("outstanding", k.Outstanding, 1, 1e4),
			inRange("rate", k.Rate, 0, 1e9), inRange("duration", k.Duration, 1, 1e7), checkRows(k.Duration*k.Rate)); err != nil {
			return w, err
		}
		return k.Generate(seed), nil
	})
}
