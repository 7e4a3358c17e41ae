package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/measure/gate"
	"github.com/gfaas/gfaas/pkg/measure/gpus"
	"github.com/gfaas/gfaas/pkg/measure/journal"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

const runLong = `Starts one instance of the function under each SM share and quota (request and
limit alike, so that the instance gets exactly its quota), waits until it is
ready, loads it, and writes one row of the profile. A file with several
functions has them measured one after the other; --function chooses one.

Load: closed:N keeps N requests outstanding. poisson:RPS sends at the times of
a Poisson process, whatever the instance does; latencies count from the time a
request was due, so a stall shows in every request it delayed. At most 512
requests are under way; what is due then waits. What is not answered one
--duration after the end, and at least 10 s, is an error. max is the closed
loop with the fewest workers, a power of two, that doubling does not improve
by 5%.

The measured period begins after --warmup and lasts for --duration. While its
front differs from its end by more than --precision, the front counts as
warm-up and the period begins later; while half the 95% confidence interval of
the throughput is wider than --precision, it goes on. For poisson, whose
throughput is given, that is the latency, and the p95 within 4 x --precision. A
trial ends --warmup + 4 x --duration after its start at the latest; what was
not steady then is reported and has 1 in the column unstable. --precision 0
measures exactly --duration, right after --warmup.

throughput_rps counts the requests answered within the period, an answer to a
batch of 4 as 4. Latencies and errors are of the requests that were due within
it. throughput_ci_rps and p95_ci_ms are half the width of the 95% confidence
intervals, trial_s is the period's length. cold_ms is from the start of the
instance to its first answer, warm_ms the median of 5 single requests before
the load. model_mem_mib is what the instance has mapped of gfaas-modeld's copy of
its model, else the size that the function file gives. gpu_util_pct,
sm_occupancy_pct (Hopper and later) and power_w are the whole GPU's means under
load, warm-up included; MIG instances have none, and a simulated GPU's power_w is
a model's: 50 W idle, 300 W busy. cold_ms is of a start whose files the page cache
may hold, as it does from the second start on, of which the first may be that for
load_ms. What was not measured is left empty.

goodput_rps is the largest rate of Poisson arrivals at which p95 stays within the
function's slo, or --slo; requests that fail count as misses (the metric of MLPerf's
server scenario). It is searched for on the same instance, after the load, by 2 to 8
trials at other rates. Each has --warmup and lasts for --duration, or longer, up to
4 x --duration, where fewer than 1500 requests would come: about 5000 in all tell a
goodput to 5%. A batch comes as a whole. The search ends when goodput_ci_rps, half
the width of the 95% confidence interval, is within --precision of the goodput, or
of a fifth of the throughput where that is more. What is not known to twice that
after the last trial is left empty, with 1 in unstable; 0 says that no rate keeps to
the objective, which slo_ms has. idle_p95_ms is the p95 of 20 single requests with
gaps between them. A run takes 8 to 11 times as long with it; --goodput=false does
without these columns. --trials-out keeps
the trials, what p95 was at which rate, for gfaas-profile report --trials to draw.

load_ms is what a request takes longer when the memory of its instance waits on
the host. It is measured once a function, before the first configuration, on one
more instance: with the whole GPU, and with its memory moved to the host while
it has no work (see gfaas run --oversubscribe). The median of 3 requests, each
sent once all of the memory was seen to be there (mem_parked_mib of gfaas-tokend
status), less the median of 5 that found it on the GPU; every row of the function
has it. A note says why when there is none: the function has no gpu_mem, or holds
memory that cannot be moved, as of pools. --park=false does without.

Requests: --body is what one carries. Without it, kserve-v2 sends zeros of the
shapes that the model's metadata names, openai a short conversation, the others
nothing. A batch is the first dimension of every input under kserve-v2, n under
openai, and always the header X-Gfaas-Batch, for http and openfaas to read.

GPUs: one trial at a time on each, and nothing else: a GPU that others use is
refused (status 4), and a trial during which others came has failed; --share-gpu
measures all the same. With several GPUs, of one model, grid measures as many
configurations at a time, the other searches as many functions.

Rows: each is written as soon as it is measured, to standard output or, under
--out-file or --resume, to that file (also with -o table), synced to the disk. --resume FILE skips
the configurations that FILE has and appends the others; a last line that was
torn by a crash is dropped. A FILE that another run writes to is refused (status
6). -o table and -o json print at the end.

A configuration that cannot be measured is reported, has no row, and is tried
again by --resume; the exit status is 1. Interrupted with rows in a file, the
status is 7.

If the instances will be under load for 10 s or more in total, a line on standard error
before the first trial gives the number of configurations and about how long the run takes.
For a search, which may end sooner, both are upper bounds. A terminal shows the progress;
if standard error is not a terminal, a line every 30 s does.

--search grid measures every configuration. The others look for one to run the
function in, the best efficacy within --slo, and say at the end which: binary
and hybrid as Dilu does, fast with the least trials. With an objective fast decides
by goodput_rps: the most of it per whole GPU; with --goodput=false so that p95_ms +
p95_ci_ms is within --slo where it finds such a one (see gfaas-profile search).
When none that they measured meets it, the status is 3.

--fail-if takes METRIC OP NUMBER, OP being > >= < <= == or !=, and optionally
"at" with function, sm_pct, quota or batch; it may be repeated. METRIC is a
column of the profile or efficacy (requests a second per whole GPU); NUMBER may
be slo where METRIC is a latency. When one holds at any row, the status is 3.

--baseline compares throughput_rps, p95_ms and errors with an older profile of
the same configurations on the same model of GPU. A row that is worse by more
than --max-regression fails; the status is 3.

Comparisons use the 95% confidence intervals (throughput_ci_rps, p95_ci_ms) where they are
known. A condition of --fail-if holds only if it holds in the whole interval, and a row
counts as worse than the baseline only if chance does not explain the difference. If a
condition holds in a part of the interval, or if chance may explain the difference, there is
a warning, and the status is 0, or 3 with --strict. The same applies to figures of unstable
rows, except errors and memory; --fail-if 'unstable > 0' fails such rows. A row whose
measured figures are within --max-regression passes, whatever its intervals are.

--junit writes a test case for each configuration (an error when it could not
be measured), each --fail-if, each comparison and each search.`

const runExample = `  gfaas-profile run function.yaml --out-file profile.csv
  gfaas-profile run function.yaml --resume profile.csv
  gfaas-profile run function.yaml --sm 12,24,50 --quota 0.2,0.6,1 --load max -o table
  gfaas-profile run function.yaml --search fast --slo 69ms --batch 1,2,4,8
  gfaas-profile run function.yaml --baseline old.csv --max-regression 5% --junit report.xml
  gfaas-profile run function.yaml --load poisson:40 --sm 24 --quota 0.4 \
      --fail-if 'p95_ms > 69' --fail-if 'errors > 0 at sm_pct=24,quota=0.4'`

// runOptions are the flags of run. Those that describe the job are parsed into it.
type runOptions struct {
	measure.Job
	env      *cli.Env
	platform platform
	path     string // of the function file

	criteria gate.Criteria

	loadSpec      string
	failIf        []string
	baselinePath  string
	regression    float64 // fraction
	regressionSet bool
	resume        string
	trialsOut     string
	junit         string
	gpu           string
	bodyPath      string
	function      string
}

// newRun returns the command gfaas-profile run.
func newRun(env *cli.Env, p platform) *cobra.Command {
	o := &runOptions{env: env, platform: p}
	cmd := &cobra.Command{
		Use:               "run FUNCTION.yaml",
		Short:             "Measure a function under slices of a GPU",
		Long:              runLong,
		Example:           runExample,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("yaml yml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.path = args[0]
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.Var(floats(&o.Space.SMPct, 6, 12, 24, 50, 60, 80, 100), "sm", "SM shares to measure, in percent")
	f.Var(fractions(&o.Space.Quota, 0.2, 0.4, 0.6, 0.8, 1), "quota", "quotas to measure, as fractions of a window")
	f.Var(ints(&o.Space.Batch, 1), "batch", "batch sizes to measure")
	loadFlags(cmd, &o.Load, &o.loadSpec, 0.05)
	f.DurationVar(&o.StartTimeout, "start-timeout", 2*time.Minute, "how long an instance may take to its first answer")
	f.StringVar(&o.Search, "search", "grid", "which configurations to measure: "+strings.Join(search.Names(), ", "))
	f.DurationVar(&o.SLO, "slo", 0, "p95 latency that the goodput and the search keep to (default the function's slo)")
	f.Float64Var(&o.Goal.Error, "error", search.DefaultError, "how far below the best efficacy --search fast may end, as a fraction")
	f.BoolVar(&o.Goal.CheckQuota, "check-quota", true, "have --search fast try at the end whether a smaller quota costs throughput in proportion")
	f.StringVar(&o.resume, "resume", "", "go on with this profile: skip what it has, append the rest")
	f.StringVar(&o.trialsOut, "trials-out", "", "write each trial for the goodput to this file (CSV), for gfaas-profile report --trials")
	f.StringArrayVar(&o.failIf, "fail-if", nil, "exit with 3 when this holds at any row, like 'p95_ms > 69'")
	f.BoolVar(&o.criteria.Strict, "strict", false, "with --fail-if and --baseline: exit with 3 also when the answer is in doubt")
	f.StringVar(&o.baselinePath, "baseline", "", "exit with 3 when a row is worse than that of this older profile")
	o.regression = 0.05
	f.Var(percentage{&o.regression, &o.regressionSet}, "max-regression", "how much worse than --baseline a row may be")
	f.StringVar(&o.junit, "junit", "", "write what passed and what did not to this file, as JUnit XML")
	f.StringVar(&o.gpu, "gpu", "", "GPU to measure on, a number, a UUID or sim, or several like 0,1 (default those that CUDA_VISIBLE_DEVICES names, else 0, without an NVIDIA driver sim)")
	f.BoolVar(&o.ShareGPU, "share-gpu", false, "measure although others run on the GPU")
	f.BoolVar(&o.Park, "park", true, "measure load_ms too, on one more instance of each function")
	f.BoolVar(&o.Goodput, "goodput", true, "measure goodput_rps and idle_p95_ms too, of functions with an objective for p95")
	f.StringVar(&o.bodyPath, "body", "", "file that a request of one carries, - for standard input (default what the contract allows)")
	f.StringVar(&o.function, "function", "", "the one function to measure of a file with several")
	cli.Words(cmd, "search", search.Names()...)
	cli.Words(cmd, "gpu", "sim")
	cli.Files(cmd, "csv", "resume", "baseline", "trials-out")
	cli.Files(cmd, "xml", "junit")
	cli.Files(cmd, "", "body")
	env.Outputs(cmd, "csv", "table", "json")
	return cmd
}

// check validates the flags and completes the job, before anything is started.
func (o *runOptions) check() error {
	if err := o.checkSpace(); err != nil {
		return err
	}
	if err := o.checkFiles(); err != nil {
		return err
	}
	if _, err := search.New(o.Search, o.Space, search.Goal{}); err != nil {
		return cli.Fail(cli.ExitUsage, "", err)
	}
	err := checkLoad(&o.Load, o.loadSpec, o.SLO)
	if err != nil {
		return err
	}
	if o.criteria.Gates, err = parseGates(o.failIf, gate.RowMetrics()); err != nil {
		return err
	}
	if err := o.chooseFunctions(); err != nil {
		return err
	}
	for _, g := range o.criteria.Gates {
		if !g.MatchesAny(o.Functions, o.Space) {
			return cli.Usagef("--fail-if %q: no configuration to be measured is at %s", g, g.Selectors())
		}
		for _, fn := range o.Functions {
			if g.UsesSLO() && g.MatchesAny([]function.Function{fn}, o.Space) && o.Objective(fn.Name) == 0 {
				return cli.Usagef("--fail-if %q: %s has no slo: expected one in %s, or --slo", g, fn.Name, o.path)
			}
		}
	}
	o.Body, err = readBody(o.env, o.bodyPath)
	return err
}

// checkSpace validates the configurations to measure and the durations.
func (o *runOptions) checkSpace() error {
	if err := checkList("sm", o.Space.SMPct, number.Plain, func(v float64) bool { return v > 0 && v <= 100 },
		"percentages above 0 and at most 100"); err != nil {
		return err
	}
	if err := checkList("quota", o.Space.Quota, number.Plain, func(v float64) bool { return v > 0 && v <= 1 },
		"fractions above 0 and at most 1"); err != nil {
		return err
	}
	if err := checkList("batch", o.Space.Batch, strconv.Itoa, func(v int) bool { return v >= 1 && v <= maxBatch },
		"whole numbers from 1 to "+strconv.Itoa(maxBatch)); err != nil {
		return err
	}
	switch {
	case !(o.Goal.Error > 0 && o.Goal.Error < 1):
		return cli.Usagef("--error %s: expected a fraction above 0 and below 1", number.Plain(o.Goal.Error))
	case o.StartTimeout <= 0:
		return cli.Usagef("--start-timeout %v: expected more than 0", o.StartTimeout)
	}
	return nil
}

// checkFiles validates the input and output files.
func (o *runOptions) checkFiles() error {
	env := o.env
	if env.Output != "csv" || o.resume == "" { // else the rows go to the file of --resume
		if err := env.CheckOutput("junit", o.junit); err != nil {
			return err
		}
		if err := env.CheckOutput("trials-out", o.trialsOut); err != nil {
			return err
		}
	}
	switch {
	case o.junit != "" && o.junit == o.resume:
		return cli.Usagef("--junit %s: the rows go to that file, expected another", o.junit)
	case o.trialsOut == "-":
		return cli.Usagef("--trials-out -: expected a file, since trials are kept as they are made")
	case o.trialsOut != "" && (o.trialsOut == o.resume || o.trialsOut == o.junit):
		return cli.Usagef("--trials-out %s: something else goes to that file, expected another", o.trialsOut)
	case o.trialsOut != "" && !o.Goodput:
		return cli.Usagef("--trials-out: without the goodput there are no trials: expected no --goodput=false")
	case o.path == "-" && o.bodyPath == "-":
		return cli.Usagef("the function file and --body cannot both be standard input")
	case o.resume == "-":
		return cli.Usagef("--resume -: expected a file, since rows are appended to it")
	case o.resume != "" && env.Output != "json" && env.OutFile != "" && env.OutFile != o.resume:
		return cli.Usagef("--resume %s and --out-file %s both say where rows go: expected one of them", o.resume, env.OutFile)
	case o.baselinePath == "-":
		return cli.Usagef("--baseline -: expected a file")
	case o.baselinePath == "" && o.regressionSet:
		return cli.Usagef("--max-regression needs --baseline, which it is compared with")
	}
	return nil
}

// chooseFunctions loads the function file and selects the function of --function.
func (o *runOptions) chooseFunctions() error {
	all, err := cli.LoadFunctions(o.env, o.path)
	if err != nil {
		return err
	}
	o.Functions = all
	if o.function == "" {
		return nil
	}
	names := make([]string, len(all))
	for i, fn := range all {
		if fn.Name == o.function {
			o.Functions = all[i : i+1]
			return nil
		}
		names[i] = fn.Name
	}
	return cli.Usagef("--function %s: %s has %s", o.function, o.path, strings.Join(names, ", "))
}

// file returns the path to which rows are written as they are measured; empty if they are
// not written to a file.
func (o *runOptions) file() string {
	if o.resume != "" {
		return o.resume
	}
	if o.env.Output != "json" && o.env.OutFile != "-" {
		return o.env.OutFile
	}
	return ""
}

// openOutput opens the writer of rows. It returns the rows that a file to resume has of
// the job.
func (o *runOptions) openOutput() (journal.Writer, map[measure.Point]profile.Row, error) {
	path := o.file()
	for _, file := range []string{path, o.junit, o.env.OutFile} {
		if err := outfile.CheckCreatable(file); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case o.resume != "":
		p, out, err := journal.Resume(path, o.Form())
		if err != nil {
			return nil, nil, asUsage(err)
		}
		if p.Torn {
			o.env.Notef("%s ends in a part of a line: it is dropped", path)
		}
		old, err := o.EarlierRows(p.Rows, path)
		if n := o.CountWithoutGoodput(old); n > 0 {
			o.env.Notef("%d rows of %s have no goodput for the objective of this run, and stay as they are", n, path)
		}
		return out, old, err
	case path != "":
		out, err := journal.Create(path, o.Form())
		return out, nil, err
	case o.env.Output == "csv":
		return journal.NewStream(o.env.Out, o.Form()), nil, nil
	}
	return journal.Discard{}, nil, nil
}

// openTrials opens the writer of trials. Those of the points that old lacks are about to
// be made again.
func (o *runOptions) openTrials(old map[measure.Point]profile.Row) (*journal.Trials, error) {
	if o.resume == "" {
		return journal.CreateTrials(o.trialsOut)
	}
	again := o.Wants()
	for at := range old {
		delete(again, at)
	}
	trials, err := journal.ResumeTrials(o.trialsOut, again, o.GPU)
	return trials, asUsage(err)
}

// asUsage makes an error about a file that is not regular one of usage.
func asUsage(err error) error {
	var kind *journal.NotRegularError
	if errors.As(err, &kind) {
		return cli.Fail(cli.ExitUsage, "", err)
	}
	return err
}

// lockGPUs locks GPUs for this run.
func lockGPUs(runDir string, names []string) (release func(), err error) {
	return gpus.Lock(runDir, names, func(gpu string) string { return host.MeasuredLock(runDir, gpu) })
}

// run validates the flags, measures the job and prints the result.
func (o *runOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	var err error
	if o.gpu, err = o.platform.gpus(o.gpu); err != nil {
		return err
	}
	names, err := parseGPUs(o.gpu)
	if err != nil {
		return err
	}
	groups, err := gpus.Groups(names, o.Functions)
	if err != nil {
		return cli.Usagef("--gpu %s: %w", o.gpu, err)
	}
	if o.GPU, err = gpus.Model(groups); err != nil {
		return cli.Usagef("--gpu: %w", err)
	}
	if err := o.loadBaseline(); err != nil {
		return err
	}
	out, old, err := o.openOutput()
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	request := measure.Request{Job: o.Job, Earlier: old, Journal: out}
	if o.trialsOut != "" {
		trials, err := o.openTrials(old)
		if err != nil {
			return err
		}
		defer func() { _ = trials.Close() }()
		request.TrialLog = trials
	}
	o.env.CleansUp()
	release, err := lockGPUs(o.platform.runDir(), slices.Concat(groups...))
	if err != nil {
		return err
	}
	defer release()
	o.announce(len(groups), len(old))
	request.Testbeds, err = o.platform.open(ctx, groups, o.Functions, o.StartTimeout)
	if err != nil {
		return err
	}
	if err := o.refuseOthers(ctx, request.Testbeds); err != nil {
		return err
	}
	shown := newProgress(o.env, o.remaining(len(old)))
	request.Progress = shown
	res, err := measure.Run(ctx, request)
	shown.close()
	return o.conclude(res, ctx.Err() != nil, err)
}

// remaining returns how many configurations are left to measure; -1 if the search
// decides.
func (o *runOptions) remaining(measured int) int {
	if o.Chooses() {
		return -1
	}
	return o.Size() - measured
}

// loadBaseline reads the profile of --baseline, if there is one.
func (o *runOptions) loadBaseline() error {
	if o.baselinePath == "" {
		return nil
	}
	rows, err := cli.Load(o.env, o.baselinePath, profile.Read)
	if err != nil {
		return err
	}
	if o.criteria.Baseline, err = gate.NewBaseline(o.baselinePath, rows, o.Job, o.regression); err != nil {
		return fmt.Errorf("--baseline %w", err)
	}
	return nil
}

// refuseOthers returns an error if the GPUs have other users, unless --share-gpu is set.
func (o *runOptions) refuseOthers(ctx context.Context, testbeds []testbed.GPUs) error {
	var others []string
	for _, on := range testbeds {
		others = append(others, on.Others(ctx)...)
	}
	if len(others) == 0 {
		return nil
	}
	text := others[0] + " runs on this GPU too: the figures would show its load"
	if len(others) > 1 {
		text = strings.Join(others, ", ") + " run on this GPU too: the figures would show their load"
	}
	if o.ShareGPU {
		o.env.Notef("%s", text)
		return nil
	}
	return cli.Fail(cli.ExitUnavailable, "stop them, choose another GPU with --gpu, or measure beside them with --share-gpu", errors.New(text))
}
