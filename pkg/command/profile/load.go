package profile

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/gate"
	"github.com/gfaas/gfaas/pkg/measure/loadtest"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/outfile"
)

const loadLong = `Send requests to an applied function or to any HTTP server, and print throughput and
latency. The command starts and stops nothing.

Target. NAME is the name of an applied function. If a gateway is running (gfaas serve),
the requests go through it. Otherwise, they go directly to the ready instances of the
function, as with gfaas invoke; if there is no such instance, the exit status is 4. URL is
an http or https URL. Requests go directly to it: the command uses no proxy from the
environment, and follows no redirects. If no server listens at its address, the exit
status is 4.

Requests. The method is POST, unless --method gives another. The body is the file of
--body. Without --body, the body of requests to a function depends on its contract, as
with gfaas-profile run, and the body of requests to a URL is empty.

Load. --load has one of these forms:

  - closed:N keeps N requests in progress: each answer is followed by the next request
  - poisson:RPS sends RPS requests per second on average, at random times (a Poisson
    process), whether or not earlier requests have been answered. At most 512 requests
    are in progress; further requests wait
  - max is closed:N with an N that the command finds: it begins with 1, and doubles N as
    long as this increases the throughput by at least 5%, up to 512

With poisson, the latency of a request counts from the time at which it should have been
sent. So if the server stalls, the latencies include the time for which requests had to
wait to be sent.

Measured period. It begins after --warmup and lasts for --duration. With --precision, it
begins later or lasts longer if that is necessary for the precision: the load ends at the
latest --warmup + 4 x --duration after its start. gfaas-profile-run(1) has the rules.

Errors. After the measured period, the command sends no more requests, and waits for the
remaining answers as long as --duration, but at least 10 s. A request fails in these cases:

  - the status of the answer is not 2xx, or there is none, for example because the server
    closed the connection
  - the answer is not complete within --timeout
  - the answer is not complete when the command stops waiting

The latencies include failed requests of the last kind only, with the time until the
command stopped waiting. Failed requests do not end the load. within_pct is the
percentage of all requests that were answered without an error within --slo (default: the
slo of the function).

-o json: {"target","load","throughput_rps","throughput_ci_rps","mean_ms","p50_ms",
"p95_ms","p95_ci_ms","p99_ms","max_ms","errors","error_pct","samples","trial_s",
"unstable","slo_ms","within_pct","histogram":[{"le_ms","count"}]}; csv has the same
fields without the histogram. gfaas-profile-run(1) describes the measurements. A value
that was not measured is omitted in JSON and empty in CSV. A bucket of the histogram
counts the latencies above the le_ms of the previous bucket and up to its own le_ms. The
bounds are the same in all results, so that you can compare or add histograms: there are
ten from 1 to below 10 ms (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3 and 8), ten from 10 to
below 100 ms, and so on. Empty buckets at both ends of a histogram are omitted.

Checks. --fail-if takes a condition METRIC OP NUMBER and can be repeated. OP is >, >=, <,
<=, == or !=. METRIC is a column of the CSV output. If METRIC is a latency, NUMBER may be
slo. If a condition holds, the exit status is 3. The result is uncertain if the condition
holds only in a part of the confidence interval of the metric, or if it holds for a
measurement that is unstable (the column unstable is 1; this does not affect errors,
error_pct, samples and unstable itself). The command then prints a warning, and the exit
status is 0, or 3 with --strict. If no request was answered, the exit status is 1. If the
command is interrupted, it prints the results up to then, and checks no condition.`

// loadOptions holds the flags of load, unparsed; check adds the parsed values.
type loadOptions struct {
	env      *cli.Env
	target   string // URL or name
	load     load.Options
	loadSpec string
	slo      time.Duration
	failIf   []string
	junit    string
	hist     bool
	method   string
	headers  []string
	bodyPath string
	timeout  time.Duration

	criteria gate.Criteria
	header   http.Header
	body     []byte
}

// newLoad returns the command gfaas-profile load.
func newLoad(env *cli.Env) *cobra.Command {
	o := &loadOptions{env: env}
	cmd := &cobra.Command{
		Use:   "load URL|NAME",
		Short: "Measure a running function or server under load",
		Long:  loadLong,
		Example: `  # Send 50 requests/s to an applied function
  gfaas-profile load resnet --load poisson:50 --duration 30s --body cat.jpg
  # Fail if the function misses its objective
  gfaas-profile load resnet --load poisson:50 --fail-if 'p95_ms > slo' --fail-if 'error_pct > 1'
  # Print a histogram of the latencies of any HTTP server
  gfaas-profile load http://127.0.0.1:8000/predict -H 'Content-Type: application/json' --body in.json --hist
  # Send GET requests from 32 workers
  gfaas-profile load http://127.0.0.1:8000/healthz --method GET --load closed:32 -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTarget,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.target = args[0]
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	loadFlags(cmd, &o.load, &o.loadSpec, 0)
	f.DurationVar(&o.slo, "slo", 0, "latency objective of a request (default: the slo of the function)")
	f.StringArrayVar(&o.failIf, "fail-if", nil, "exit with status 3 if this condition holds, like 'p95_ms > 69'")
	f.BoolVar(&o.criteria.Strict, "strict", false, "exit with status 3 as well if a result of --fail-if is uncertain")
	f.StringVar(&o.junit, "junit", "", "write the results of the checks to this file, as JUnit XML")
	f.BoolVar(&o.hist, "hist", false, "print a histogram of the latencies below the table")
	f.StringVar(&o.method, "method", http.MethodPost, "HTTP method of the requests")
	f.StringArrayVarP(&o.headers, "header", "H", nil, "header of the requests, 'K: V' (repeatable)")
	f.StringVar(&o.bodyPath, "body", "", "file with the body of a request, - for standard input (default: a body that suits the contract)")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "time limit for a complete answer")
	cli.CompleteWords(cmd, "method", http.MethodGet, http.MethodPost, http.MethodPut)
	cli.CompleteFiles(cmd, "xml", "junit")
	cli.CompleteFiles(cmd, "", "body")
	env.Outputs(cmd, "table", "csv", "json")
	cli.Meaning(cmd, cli.ExitNo, "a condition of --fail-if holds")
	return cmd
}

// check validates and parses the flags. It sends no request.
func (o *loadOptions) check() (err error) {
	if err := checkLoad(&o.load, o.loadSpec, o.slo); err != nil {
		return err
	}
	if err := o.env.CheckOutput("junit", o.junit); err != nil {
		return err
	}
	switch {
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v: expected more than 0", o.timeout)
	case o.hist && o.env.Output == "csv":
		return cli.Usagef("--hist cannot be used with -o csv, which has no histogram")
	}
	if _, err := http.NewRequest(o.method, "/", nil); err != nil || o.method == "" {
		return cli.Usagef("--method %q: expected an HTTP method like GET", o.method)
	}
	if o.header, err = fnhttp.ParseHeaders(o.headers); err != nil {
		return cli.Usagef("--header %w", err)
	}
	if o.criteria.Gates, err = parseGates(o.failIf, loadtest.Metrics()); err != nil {
		return err
	}
	for _, g := range o.criteria.Gates {
		if g.Selectors() != "" {
			return cli.Usagef("--fail-if %q: \"at\" selects configurations of gfaas-profile run, but load measures only one target: expected a condition without \"at\"", g)
		}
	}
	o.body, err = readBody(o.env, o.bodyPath)
	return err
}

func (o *loadOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := cmp.Or(outfile.CheckCreatable(o.junit), outfile.CheckCreatable(o.env.OutFile)); err != nil {
		return err
	}
	to, err := o.openTarget(ctx)
	if err != nil {
		return reportFailure(o.env, o.junit, err)
	}
	defer to.close()
	o.env.CleansUp() // after a signal, wait for the requests in flight
	o.load.Until, o.load.Objective, o.load.Persist = ctx, o.slo, true
	done := o.env.Lasting(o.load.Warmup+o.load.Duration, to.name)
	res, err := load.Run(context.WithoutCancel(ctx), load.WithTimeout(o.timeout, to.send), o.load)
	done()
	if err != nil {
		return reportFailure(o.env, o.junit, err)
	}
	return o.conclude(loadtest.New(to.name, o.load, res), res, ctx.Err())
}

// lateRatio limits late requests: up to one in lateRatio may be sent late without a note.
const lateRatio = 100

// conclude prints the result and returns the command's error. Ended is not nil if the load was
// interrupted.
func (o *loadOptions) conclude(l loadtest.Result, res load.Result, ended error) error {
	env := o.env
	if err := showLoad(env, l, o.hist); err != nil {
		return err
	}
	if ended != nil {
		env.Notef("interrupted after %v of %v", res.Duration.Round(time.Millisecond), o.load.Duration)
		if n := res.Cut + res.Unsent; n > 0 {
			env.Notef("%s without an answer", number.Count(int(n), "request"))
		}
	} else {
		for _, text := range figures.Remarks(res) {
			env.Notef("%s", text)
		}
	}
	if lateRatio*float64(res.Late) > float64(res.Due) {
		env.Notef("%d of %d requests were sent more than 10 ms after they were due: this host was busy, or 512 requests were in flight",
			res.Late, res.Due)
	}
	if ended == nil {
		ended = figures.CheckAnswered(res)
	}
	all := []gate.Finding{gate.Measured(l.Target)}
	if ended == nil {
		all = append(all, o.criteria.JudgeFigures(l.Target, l.Figures, figures.Millis(o.slo))...)
	}
	if err := writeJUnit(env, o.junit, all, ended); err != nil {
		return errors.Join(ended, err)
	}
	if ended != nil {
		return ended
	}
	return conclude(env, all)
}
