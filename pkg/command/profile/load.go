package profile

import (
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
	"github.com/gfaas/gfaas/pkg/outfile"
)

const loadLong = `Sends requests to a function that is applied, or to any HTTP server, and says
what came of them. Nothing is started or stopped.

NAME is loaded through the gateway where one runs (gfaas serve), else at its
instances that are ready, as gfaas invoke would: no such instance is exit 4. URL
is http or https, and is loaded directly, whatever proxy the environment names;
nothing that listens there is exit 4. Requests are POST unless --method says
otherwise, with --body; without it what the function's contract allows, as for
gfaas-profile run, and nothing for a URL. Redirects are not followed.

Load: closed:N keeps N requests outstanding. poisson:RPS sends at the times of
a Poisson process, whatever comes back; latencies count from the time a request
was due, so a stall shows in every request it delayed. At most 512 requests are
under way; what is due then waits. max is the closed loop with the fewest
workers, a power of two, that doubling does not improve by 5%. The period that
is measured begins after --warmup and lasts for --duration; with --precision as
gfaas-profile run has it, for up to four times that.

An error is an answer whose status is not 2xx, none that is whole within
--timeout, or none --duration after the end, and at least 10 s. However many
there are the load goes on. Latencies are those of the answers that were no
errors, and of what was unanswered at the end, which had waited for at least so
long. within_pct is the share of all requests that were answered within --slo, by
default the function's slo; errors were not.

-o json: {"target","load","throughput_rps","throughput_ci_rps","mean_ms","p50_ms",
"p95_ms","p95_ci_ms","p99_ms","max_ms","errors","error_pct","samples","trial_s",
"unstable","slo_ms","within_pct","histogram":[{"le_ms","count"}]}; csv has the same
but for the histogram. What they mean is in gfaas-profile-run(1); what was not
measured is left out, in CSV empty. A bucket of the histogram counts the latencies
up to le_ms and above the one before; the bounds are the same for all, ten a decade.

--fail-if takes METRIC OP NUMBER, OP being > >= < <= == or !=; it may be repeated.
METRIC is one of those columns; NUMBER may be slo where METRIC is a latency. When
one holds, the status is 3; a figure is compared with its confidence interval, and
where it may hold or not there is a warning, or status 3 with --strict. Where
nothing was answered the status is 1. Interrupted, it prints what was measured
so far, and judges nothing.`

// loadOptions are the flags of load, as given; check adds the parsed values.
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
		Short: "Load a function or a server that runs",
		Long:  loadLong,
		Example: `  gfaas-profile load resnet --load poisson:50 --duration 30s --body cat.jpg
  gfaas-profile load resnet --load poisson:50 --fail-if 'p95_ms > slo' --fail-if 'error_pct > 1'
  gfaas-profile load http://127.0.0.1:8000/predict -H 'Content-Type: application/json' --body in.json --hist
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
	f.DurationVar(&o.slo, "slo", 0, "latency that requests are to keep to (default the function's slo)")
	f.StringArrayVar(&o.failIf, "fail-if", nil, "exit with 3 when this holds, like 'p95_ms > 69'")
	f.BoolVar(&o.criteria.Strict, "strict", false, "with --fail-if: exit with 3 also when the answer is in doubt")
	f.StringVar(&o.junit, "junit", "", "write what passed and what did not to this file, as JUnit XML")
	f.BoolVar(&o.hist, "hist", false, "with -o table: show the histogram of the latencies too")
	f.StringVar(&o.method, "method", http.MethodPost, "method of the requests")
	f.StringArrayVarP(&o.headers, "header", "H", nil, "a header of the requests, 'K: V'; may be given several times")
	f.StringVar(&o.bodyPath, "body", "", "file that a request carries, - for standard input (default what the contract allows)")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long a whole answer may take")
	cli.Words(cmd, "method", http.MethodGet, http.MethodPost, http.MethodPut)
	cli.Files(cmd, "xml", "junit")
	cli.Files(cmd, "", "body")
	env.Outputs(cmd, "table", "csv", "json")
	return cmd
}

// check validates and parses the flags, before anything is sent.
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
		return cli.Usagef("--hist is for -o table; -o json has the histogram always")
	}
	if _, err := http.NewRequest(o.method, "/", nil); err != nil || o.method == "" {
		return cli.Usagef("--method %q: expected a word like GET", o.method)
	}
	if o.header, err = fnhttp.ParseHeaders(o.headers); err != nil {
		return cli.Usagef("--header %w", err)
	}
	if o.criteria.Gates, err = parseGates(o.failIf, loadtest.Metrics()); err != nil {
		return err
	}
	for _, g := range o.criteria.Gates {
		if g.Selectors() != "" {
			return cli.Usagef("--fail-if %q: a load has no configurations to choose from", g)
		}
	}
	o.body, err = readBody(o.env, o.bodyPath)
	return err
}

func (o *loadOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	for _, file := range []string{o.junit, o.env.OutFile} {
		if err := outfile.CheckCreatable(file); err != nil {
			return err
		}
	}
	to, err := o.reach(ctx)
	if err != nil {
		return err
	}
	defer to.done()
	o.env.CleansUp() // waits for what is under way
	o.load.Until, o.load.Objective, o.load.Persist = ctx, o.slo, true
	done := o.env.Lasting(o.load.Warmup+o.load.Duration, to.name)
	res, err := load.Run(context.WithoutCancel(ctx), load.WithTimeout(o.timeout, to.send), o.load)
	done()
	if err != nil {
		return err
	}
	return o.conclude(loadtest.New(to.name, o.load, res), res, ctx.Err())
}

// One request in lateRatio may be sent late without a note.
const lateRatio = 100

// conclude prints the result and returns the error that it amounts to. Ended is not nil
// if the load was interrupted.
func (o *loadOptions) conclude(l loadtest.Result, res load.Result, ended error) error {
	env := o.env
	if err := showLoad(env, l, o.hist); err != nil {
		return err
	}
	if ended != nil {
		env.Notef("interrupted: %v of %v were measured", res.Duration.Round(time.Millisecond), o.load.Duration)
		if n := res.Cut + res.Unsent; n > 0 {
			env.Notef("%s had no answer yet", cli.Count(int(n), "request"))
		}
	} else {
		for _, text := range figures.Remarks(res) {
			env.Notef("%s", text)
		}
	}
	if lateRatio*float64(res.Late) > float64(res.Due) {
		env.Notef("%d of %d requests were sent more than 10 ms after they were due: this machine was busy, or 512 were under way",
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
