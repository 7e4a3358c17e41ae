package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
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
	"github.com/gfaas/gfaas/pkg/rollout"
)

const runLong = `Measure the load that one instance of a function sustains under each slice of a GPU.
For each configuration (SM share, quota and batch size), the command starts an
instance, waits until it is ready, sends requests to it, stops it, and writes one row
of the profile. Request and limit of the quota are equal, so that the instance gets
exactly its quota. If the file has several functions, they are measured one after the
other; --function selects one.

Load. A trial measures one configuration under a load. closed:N keeps N requests in
progress: each answer is followed by the next request. poisson:RPS sends requests at
random times (a Poisson process), whether or not earlier requests have been answered. A
latency counts from the time at which the request should have been sent. So, if the
instance stalls, the requests that have to wait for it have longer latencies. At most
512 requests are in progress; further requests wait. max is closed:N with an N that the
command finds: it begins with 1, and doubles N as long as this increases the throughput
by at least 5%. After the end of the load, the command waits for answers as long as
--duration, and at least 10 s; a request that is still unanswered then is an error.

Several instances. --instances N starts N instances of each configuration at the same
time on the same GPU, and loads all of them at once: --load is the load on each one. The
sum of their SM shares or quotas may exceed the GPU, to find out how instances affect each
other. A row then has the column instances. Rates are sums: throughput_rps and
goodput_rps count the answers of all instances. Latencies are those of the requests to
all instances: p95_ms is the value that 95% of these requests do not exceed, not a mean of
the instances' values. gpu_mem_mib is the memory of one instance, the largest of them.
cold_ms is the time from the common start until each instance has answered. The efficacy
divides by the sum of the instances' shares. gfaas-place, gfaas serve, gfaas-sim,
gfaas-profile search and report refuse such rows, because they need the throughput of
single instances.

Measured period. It begins after --warmup and lasts for --duration. If the throughput at
its beginning differs from that at its end by more than --precision, the beginning is
added to the warm-up. If half the width of the 95% confidence interval of the throughput
is more than --precision, the period is extended. With a poisson load, the load
determines the throughput. So the first rule compares the latency instead, and the
second one its p95, with 4 x --precision. A trial ends at the latest --warmup + 4 x
--duration after its start. If these rules are not satisfied then, the command prints a
note, and the column unstable is 1. --precision 0 measures for exactly --duration, right
after --warmup.

Columns. throughput_rps is the number of requests answered in the measured period, per
second; an answer to a batch of 4 counts as 4. Latencies and errors are those of the
requests that should have been sent in the period. throughput_ci_rps and p95_ci_ms are
half the widths of the 95% confidence intervals. trial_s is the length of the period.
cold_ms is the time from the start of the instance to its first answer. After the first
start of the function, which may be the one for load_ms (see below), the files that a
start reads are in the page cache. warm_ms is the median of 5 single requests before the
load. model_mem_mib is the GPU memory of gfaas-modeld's copy of the model or, without
such a copy, the size in the function file. gpu_util_pct, sm_occupancy_pct (Hopper and
later) and power_w are means for the whole GPU under load, warm-up included. MIG
instances have no such values. The power_w of a simulated GPU is calculated: 50 W when
idle, 300 W when busy. A value that was not measured is empty.

Goodput. goodput_rps is the highest rate of random (Poisson) arrivals at which the p95
latency is within the objective (--slo or, without it, the function's slo). A failed request
counts as one that misses the objective. (This is the metric of MLPerf's server
scenario.) After the load, the command searches for the goodput on the same instance,
with 2 to 8 trials at different rates. Each trial lasts for --duration after --warmup.
If fewer than 1500 requests would arrive in that time, it lasts longer, up to 4 x
--duration. With about 5000 requests in total, the goodput is known to within 5%. All
requests of a batch arrive at the same time. The search ends when goodput_ci_rps, half
the width of the 95% confidence interval, is at most --precision times the goodput, or
at most --precision times a fifth of the throughput. If it is still more than twice that
after the last trial, goodput_rps is empty, and unstable is 1. A goodput of 0 means that
no rate meets the objective. slo_ms is the objective. idle_p95_ms is the p95 latency of
20 single requests with gaps between them. A run that measures the goodput takes 8 to 11
times as long; --goodput=false omits the measurement and its columns. --trials-out
writes the p95 latency and rate of each trial to a file, which gfaas-profile report
--trials can draw.

Training functions. A function with kind: training is a job, to which no requests are sent.
Its throughput is the number of iterations per second, and its latency is the duration of an
iteration. An iteration ends when the job prints a line that matches the pattern progress of
the function, or --progress. If the pattern has a group, the group is the number of the
iterations so far; the job may then print only every tenth iteration, for example, or print
each in several processes. Otherwise, each line is one iteration. --warmup, --duration and
--precision apply as above. cold_ms is the time from the start to the first such line. The
job must not end before the trial does, and is not restarted. --load, --batch, --slo and
--body do not apply.

Parked memory. load_ms is the additional latency of a request if the memory of its
instance is parked on the host. The command measures it once for each function, before the first
configuration, on an additional instance that has the whole GPU and parks its memory
when it is idle (see gfaas run --oversubscribe). The value is the median of 3
requests, each sent when all memory is parked (mem_parked_mib of gfaas-tokend status),
minus the median of 5 requests that found the memory on the GPU. All rows of the
function have the same value. If it cannot be measured, a note gives the reason: the
function has no gpu_mem, or it holds memory that cannot be moved, such as memory
pools. --park=false omits the measurement.

Requests. --body is the body of one request. Without it, the body depends on the
contract of the function. With kserve-v2, it has zeros in the shapes that the model's
metadata lists, and with openai a short conversation; otherwise, it is empty. The batch
size is the first dimension of every input (kserve-v2) or the parameter n (openai). It
is always in the header X-Gfaas-Batch, which is meant for functions with the contracts
http and openfaas.

GPUs. Each GPU runs one trial at a time and nothing else. If other programs use a GPU,
the command exits with status 4; a trial during which another program uses the GPU
fails. --share-gpu measures in spite of other programs. With several GPUs, which must
be of the same model, --search grid measures one configuration on each GPU at a time,
and the other searches measure one function on each GPU.

Rows. Each row is written as soon as it is measured: to standard output, or to the file
of --out-file or --resume, where it is synced to disk. The first row replaces an older
file of --out-file; a run that writes no row leaves that file unchanged. --resume FILE
skips the configurations that FILE contains and appends the others. Its
rows count as results of this run, so FILE must come from the same version of the
function. If a crash cut off the last line, that line is dropped. If another run
writes to FILE, the status is 6. -o table and -o json print their output at the end.

If a configuration cannot be measured, the command prints an error, writes no row, and
continues; the exit status is 1, and --resume tries the configuration again. If the
command is interrupted and rows are in a file, the status is 7.

If the instances will be under load for 10 s or more in total, the command prints the
number of configurations and the approximate duration of the run to standard error
before the first trial. For a search, which may end sooner, both are upper bounds.
Progress is shown as a bar if standard error is a terminal, and as a line every 30 s
otherwise.

Searches. --search grid measures every configuration. The other searches look for the
configuration that meets the objective with the best efficacy, and print it at the end.
The efficacy is the throughput divided by the share of the GPU: throughput_rps /
(sm_pct/100 x quota). binary and hybrid are the searches of the Dilu paper, gpulet is
one of its baselines, and fast needs the fewest trials. If there is an objective, fast
uses goodput_rps in place of the throughput; with --goodput=false, it prefers
configurations with p95_ms + p95_ci_ms within the objective. gfaas-profile search --help
describes the searches. If no measured configuration meets the objective, the status is 3.

--fail-if takes a condition: METRIC OP NUMBER, optionally followed by "at" and a list
of function, sm_pct, quota and batch. OP is >, >=, <, <=, == or !=. METRIC is a column
of the profile or efficacy. If METRIC is a latency, NUMBER may be slo. The flag can be
repeated. If a condition holds for any row, the status is 3.

--baseline compares throughput_rps, p95_ms and errors with an older profile of the
same configurations on the same GPU model. The status is 3 if throughput_rps is lower or
p95_ms is higher by more than --max-regression percent, or if the percentage of failed
requests is higher by more than this number of percentage points. A profile does not
contain the load with which it was measured: use the --load, --duration and --body of
the baseline. To check another column, or to use another threshold, add a condition
with a fixed number, such as --fail-if 'throughput_rps < 100'.

Both checks use the 95% confidence intervals (throughput_ci_rps, p95_ci_ms) if they are
known. A condition of --fail-if holds only if it holds in the whole interval. A row is
worse than the baseline only if chance does not explain the difference. If the condition
holds in a part of the interval, or if chance may explain the difference, the result is
uncertain: the command prints a warning, and the status is 0, or 3 with --strict. The
figures of unstable rows are always uncertain, except errors and memory; --fail-if
'unstable>0' rejects such rows. A row whose figures are within --max-regression passes,
regardless of its intervals.

--junit writes a file with a test case for each configuration, each condition of
--fail-if, each comparison and each search. A configuration that cannot be measured is
an error in this file. If the run fails before its first trial, for example because
other programs use the GPU, the file has one test case, with that error. After wrong usage, no file is written.`

const runExample = `  # Measure the default grid
  gfaas-profile run function.yaml --out-file profile.csv
  # Continue an interrupted run
  gfaas-profile run function.yaml --resume profile.csv
  # Measure some configurations at saturation
  gfaas-profile run function.yaml --sm 12,24,50 --quota 0.2,0.6,1 --load max -o table
  # Measure eight instances at the same time, each with 12% of the SMs
  gfaas-profile run function.yaml --instances 8 --sm 12 --quota 1 -o table
  # Find the best configuration for an objective with few trials
  gfaas-profile run function.yaml --search fast --slo 69ms --batch 1,2,4,8
  # Compare with an older profile in CI
  gfaas-profile run function.yaml --baseline old.csv --max-regression 5% --junit report.xml
  # Fail if a configuration misses its targets
  gfaas-profile run function.yaml --load poisson:40 --sm 24 --quota 0.4 \
      --fail-if 'p95_ms > 69' --fail-if 'errors > 0 at sm_pct=24,quota=0.4'`

// runOptions holds the flags of run. Flags that correspond to a field of measure.Job set that field.
type runOptions struct {
	measure.Job
	env      *cli.Env
	platform platform
	path     string // function file

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
	progress      string

	given func(flag string) bool // reports whether a flag was given
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
		ValidArgsFunction: cli.CompleteFileArgs("yaml yml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.path, o.given = args[0], cmd.Flags().Changed
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.Var(floats(&o.Space.SMPct, 6, 12, 24, 50, 60, 80, 100), "sm", "SM shares to measure, in percent")
	f.Var(fractions(&o.Space.Quota, 0.2, 0.4, 0.6, 0.8, 1), "quota", "quotas to measure, as fractions of a window")
	f.Var(ints(&o.Space.Batch, 1), "batch", "batch sizes to measure")
	loadFlags(cmd, &o.Load, &o.loadSpec, 0.05)
	f.DurationVar(&o.StartTimeout, "start-timeout", 2*time.Minute, "time limit from the start of an instance to its first answer")
	f.StringVar(&o.Search, "search", "grid", "search that selects the configurations to measure: "+strings.Join(search.Names(), ", "))
	f.DurationVar(&o.SLO, "slo", 0, "p95 latency objective for the goodput and the search (default: the slo of the function)")
	f.Float64Var(&o.Goal.Error, "error", search.DefaultError, "for fast: how far the efficacy of the result may be below the best efficacy, as a fraction")
	f.BoolVar(&o.Goal.CheckQuota, "check-quota", true, "for fast: at the end, check whether the throughput is proportional to the quota")
	f.IntVar(&o.Instances, "instances", 1, "instances of each configuration to measure at the same time, on the same GPU")
	f.StringVar(&o.resume, "resume", "", "profile to continue: skip the configurations that it contains, and append the others")
	f.StringVar(&o.trialsOut, "trials-out", "", "write each trial of the goodput search to this file (CSV), for gfaas-profile report --trials")
	f.StringArrayVar(&o.failIf, "fail-if", nil, "exit with status 3 if this condition holds for any row, like 'p95_ms > 69'")
	f.BoolVar(&o.criteria.Strict, "strict", false, "exit with status 3 also if the result of --fail-if or --baseline is uncertain")
	f.StringVar(&o.baselinePath, "baseline", "", "exit with status 3 if a row is worse than in this older profile")
	o.regression = 0.05
	f.Var(percentage{&o.regression, &o.regressionSet}, "max-regression", "how much worse than in --baseline a row may be, in percent, like 10 or 10%")
	f.StringVar(&o.junit, "junit", "", "write the results of the checks to this file, as JUnit XML")
	f.StringVar(&o.gpu, "gpu", "", "GPU to measure on: a number, a UUID or sim, or several like 0,1 (default: the GPUs in CUDA_VISIBLE_DEVICES, or 0; sim if there is no NVIDIA driver)")
	f.BoolVar(&o.ShareGPU, "share-gpu", false, "measure even if other programs use the GPU")
	f.BoolVar(&o.Park, "park", true, "measure load_ms, on an additional instance of each function")
	f.BoolVar(&o.Goodput, "goodput", true, "measure goodput_rps and idle_p95_ms of functions with a p95 objective")
	f.StringVar(&o.bodyPath, "body", "", "file with the body of one request, - for standard input (default: a body that suits the contract)")
	f.StringVar(&o.progress, "progress", "", "for training functions: regular expression (RE2) that matches one line of output for each iteration, like '^step ([0-9]+)' (default: the function's progress)")
	f.StringVar(&o.function, "function", "", "function to measure, if the file has several")
	cli.CompleteWords(cmd, "search", search.Names()...)
	cli.CompleteWords(cmd, "gpu", "sim")
	cli.CompleteFiles(cmd, "csv", "resume", "baseline", "trials-out")
	cli.CompleteFiles(cmd, "xml", "junit")
	cli.CompleteFiles(cmd, "", "body")
	env.Outputs(cmd, "csv", "table", "json")
	cli.Meaning(cmd, cli.ExitNo, "a check failed: a condition of --fail-if holds, the results are worse than --baseline, or no configuration meets the objective of --search")
	cli.Meaning(cmd, cli.ExitPartial, "interrupted, with rows in a file; --resume continues the run")
	return cmd
}

// check validates the other flags and completes the job. It starts nothing.
func (o *runOptions) check() error {
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
	if err := o.checkJobs(); err != nil {
		return err
	}
	for _, g := range o.criteria.Gates {
		if !g.MatchesAny(o.Functions, o.Space) {
			return cli.Usagef("--fail-if %q: no configuration of this run matches %s", g, g.Selectors())
		}
		for _, fn := range o.Functions {
			if g.UsesSLO() && g.MatchesAny([]function.Function{fn}, o.Space) && o.Objective(fn.Name) == 0 {
				return cli.Usagef("--fail-if %q: %s has no slo: expected slo in %s, or --slo", g, fn.Name, o.path)
			}
		}
	}
	o.Body, err = readBody(o.env, o.bodyPath)
	return err
}

// checkSpace validates the configurations to measure and the durations.
func (o *runOptions) checkSpace() error {
	err := cmp.Or(
		checkList("sm", o.Space.SMPct, number.Plain, func(v float64) bool { return v > 0 && v <= 100 }, "percentages above 0 and at most 100"),
		checkList("quota", o.Space.Quota, number.Plain, func(v float64) bool { return v > 0 && v <= 1 }, "fractions above 0 and at most 1"),
		checkList("batch", o.Space.Batch, strconv.Itoa, func(v int) bool { return v >= 1 && v <= maxBatch },
			"whole numbers from 1 to "+strconv.Itoa(maxBatch)))
	switch {
	case err != nil:
		return err
	case !(o.Goal.Error > 0 && o.Goal.Error < 1):
		return cli.Usagef("--error %s: expected a fraction above 0 and below 1", number.Plain(o.Goal.Error))
	case o.Instances < 1 || o.Instances > profile.MaxInstances:
		return cli.Usagef("--instances %d: expected 1 to %d", o.Instances, profile.MaxInstances)
	case o.Instances > 1 && o.trialsOut != "":
		return cli.Usagef("--trials-out cannot be used with --instances, because the file has trials of single instances")
	case o.StartTimeout <= 0:
		return cli.Usagef("--start-timeout %v: expected more than 0", o.StartTimeout)
	}
	return nil
}

// checkFiles validates the input and output files.
func (o *runOptions) checkFiles() error {
	env := o.env
	if env.Output != "csv" || o.resume == "" { // otherwise the rows go to the file of --resume
		if err := cmp.Or(env.CheckOutput("junit", o.junit), env.CheckOutput("trials-out", o.trialsOut)); err != nil {
			return err
		}
	}
	switch {
	case o.junit != "" && o.junit == o.resume:
		return cli.Usagef("--junit %s: the rows are written to that file, expected another file", o.junit)
	case o.trialsOut == "-":
		return cli.Usagef("--trials-out -: expected a file, not standard output")
	case o.trialsOut != "" && (o.trialsOut == o.resume || o.trialsOut == o.junit):
		return cli.Usagef("--trials-out %s: --resume or --junit names the same file, expected another file", o.trialsOut)
	case o.trialsOut != "" && !o.Goodput:
		return cli.Usagef("--trials-out cannot be used with --goodput=false, because only the goodput search writes trials")
	case o.path == "-" && o.bodyPath == "-":
		return cli.Usagef("the function file and --body cannot both be standard input")
	case o.resume == "-":
		return cli.Usagef("--resume -: expected a file, because rows are appended to it")
	case o.resume != "" && env.Output != "json" && env.OutFile != "" && env.OutFile != o.resume:
		return cli.Usagef("--resume %s and --out-file %s both name a file for the rows: they cannot be used together", o.resume, env.OutFile)
	case o.baselinePath == "-":
		return cli.Usagef("--baseline -: expected a file")
	case o.baselinePath == "" && o.regressionSet:
		return cli.Usagef("--max-regression has no effect without --baseline")
	}
	return nil
}

// chooseFunctions loads the function file and selects the function named by --function.
func (o *runOptions) chooseFunctions() error {
	functions, err := cli.LoadFunctions(o.env, o.path)
	if err != nil {
		return err
	}
	o.Functions = functions
	if o.function == "" {
		return nil
	}
	names := make([]string, len(functions))
	for i, fn := range functions {
		if fn.Name == o.function {
			o.Functions = functions[i : i+1]
			return nil
		}
		names[i] = fn.Name
	}
	return cli.Usagef("--function %s: not in %s, expected one of %s", o.function, o.path, strings.Join(names, ", "))
}

// file returns the path of the file that receives each row when it is measured, or "" if no file does.
func (o *runOptions) file() string {
	if o.resume != "" {
		return o.resume
	}
	if o.env.Output != "json" && o.env.OutFile != "-" {
		return o.env.OutFile
	}
	return ""
}

// openOutput opens the writer of rows. It also returns the job's rows that a file to resume already
// contains.
func (o *runOptions) openOutput() (journal.Writer, map[measure.Point]profile.Row, error) {
	path := o.file()
	if err := cmp.Or(outfile.CheckCreatable(path), outfile.CheckCreatable(o.env.OutFile)); err != nil {
		return nil, nil, err
	}
	switch {
	case o.resume != "":
		p, writer, err := journal.Resume(path, o.Form())
		if err != nil {
			return nil, nil, asUsage(err)
		}
		if p.Torn {
			o.env.Notef("%s ends with an incomplete line, which is dropped", path)
		}
		old, err := o.EarlierRows(p.Rows, path)
		if n := o.CountWithoutGoodput(old); n > 0 {
			o.env.Notef("%d rows of %s have no goodput for the objective of this run; they are kept unchanged", n, path)
		}
		return writer, old, err
	case path != "":
		writer, err := journal.Create(path, o.Form())
		return writer, nil, err
	case o.env.Output == "csv":
		return journal.NewStream(o.env.Out, o.Form()), nil, nil
	}
	return journal.NewStream(io.Discard, o.Form()), nil, nil
}

// openTrials opens the writer of trials. It drops the recorded trials of points that are missing from old,
// because the run repeats them.
func (o *runOptions) openTrials(old map[measure.Point]profile.Row) (*journal.Trials, error) {
	if o.resume == "" {
		return journal.CreateTrials(o.trialsOut)
	}
	remeasured := o.Points()
	for at := range old {
		delete(remeasured, at)
	}
	trials, err := journal.ResumeTrials(o.trialsOut, remeasured, o.GPU)
	return trials, asUsage(err)
}

// asUsage turns an error about a file that is not a regular file into a usage error.
func asUsage(err error) error {
	if _, irregular := errors.AsType[*journal.NotRegularError](err); irregular {
		return cli.Fail(cli.ExitUsage, "", err)
	}
	return err
}

// lockGPUs locks GPUs, and the IDs of the instances that run on each group at the same time, for this run.
func lockGPUs(runDir string, groups [][]string, instances int) (release func(), err error) {
	names := slices.Concat(groups...)
	for _, group := range groups {
		names = append(names, rollout.MeasuredNames(group[0], instances)[1:]...)
	}
	return gpus.Lock(runDir, names, func(gpu string) string { return rollout.MeasuredLock(runDir, gpu) })
}

// outcome is what a run measured, and how it ended.
type outcome struct {
	measure.Result
	written     int   // rows that this run has written
	interrupted bool  // a signal ended it
	ended       error // the reason why it stopped early
}

// countedRows counts the rows that a writer has written.
type countedRows struct {
	journal.Writer
	written int
}

func (c *countedRows) Append(row profile.Row) error {
	err := c.Writer.Append(row)
	if err == nil {
		c.written++
	}
	return err
}

// run validates the flags, measures the job and prints the result.
func (o *runOptions) run(ctx context.Context) error {
	if err := cmp.Or(o.checkSpace(), o.checkFiles()); err != nil {
		return err
	}
	if err := outfile.CheckCreatable(o.junit); err != nil {
		return err
	}
	out, err := o.measure(ctx)
	if err != nil {
		if !isUsage(err) {
			o.noteOldRows(o.file())
		}
		return reportFailure(o.env, o.junit, err)
	}
	return o.conclude(out)
}

// measure completes and measures the job. It returns an error if no trial could begin.
func (o *runOptions) measure(ctx context.Context) (out outcome, err error) {
	if err := o.check(); err != nil {
		return out, err
	}
	if o.gpu, err = o.platform.gpus(o.gpu); err != nil {
		return out, err
	}
	names, err := parseGPUs(o.gpu)
	if err != nil {
		return out, err
	}
	groups, err := gpus.Groups(names, o.Functions)
	if err != nil {
		return out, cli.Usagef("--gpu %s: %w", o.gpu, err)
	}
	if o.GPU, err = gpuModel(ctx, slices.Concat(groups...)); err != nil {
		return out, err
	}
	if err := o.loadBaseline(); err != nil {
		return out, err
	}
	writer, old, err := o.openOutput()
	if err != nil {
		return out, err
	}
	defer func() { _ = writer.Close() }()
	rows := &countedRows{Writer: writer}
	request := measure.Request{Job: o.Job, Earlier: old, Journal: rows}
	if o.trialsOut != "" {
		trials, err := o.openTrials(old)
		if err != nil {
			return out, err
		}
		defer func() { _ = trials.Close() }()
		request.TrialLog = trials
	}
	o.env.CleansUp()
	release, err := lockGPUs(o.platform.runDir(), groups, o.Instances)
	if err != nil {
		return out, err
	}
	defer release()
	o.announce(len(groups), len(old))
	request.Testbeds, err = o.platform.open(ctx, groups, o.Job)
	if err != nil {
		return out, err
	}
	if err := o.checkExclusive(ctx, request.Testbeds); err != nil {
		return out, err
	}
	shown := newProgress(o.env, o.remaining(len(old)))
	request.Progress = shown
	out.Result, out.ended = measure.Run(ctx, request)
	shown.close()
	out.interrupted, out.written = ctx.Err() != nil, rows.written
	return out, nil
}

// remaining returns the number of configurations still to measure, or -1 if it depends on the search.
func (o *runOptions) remaining(measured int) int {
	if o.Chooses() {
		return -1
	}
	return o.Size() - measured
}

// loadBaseline reads the profile of --baseline, if given.
func (o *runOptions) loadBaseline() error {
	if o.baselinePath == "" {
		return nil
	}
	rows, err := cli.Load(o.env, o.baselinePath, profile.ReadAll)
	if errors.Is(err, fs.ErrNotExist) {
		return cli.Fail(cli.ExitFailure, "the first run has no baseline: save one with --out-file",
			fmt.Errorf("cannot read --baseline %s: no such file or directory", o.baselinePath))
	}
	if err != nil {
		return err
	}
	if o.criteria.Baseline, err = gate.NewBaseline(o.baselinePath, rows, o.Job, o.regression); err != nil {
		return fmt.Errorf("--baseline %w", err)
	}
	return nil
}

// checkExclusive returns an error if the GPUs have other users, unless --share-gpu is set.
func (o *runOptions) checkExclusive(ctx context.Context, testbeds []testbed.GPUs) error {
	var others []string
	for _, on := range testbeds {
		others = append(others, on.OtherUsers(ctx)...)
	}
	if len(others) == 0 {
		return nil
	}
	names := strings.Join(others, ", ")
	if o.ShareGPU {
		o.env.Notef("other programs use the GPUs and may distort the results: %s", names)
		return nil
	}
	return cli.Fail(cli.ExitUnavailable, "stop these programs, choose another GPU with --gpu, or measure anyway with --share-gpu",
		fmt.Errorf("cannot measure: other programs use the GPUs: %s", names))
}
