package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/gate"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/outfile"
	"github.com/gfaas/gfaas/pkg/profile"
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

// loadOptions are the flags of load.
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

// newLoad is gfaas-profile load.
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

// check completes the options. Everything that can be wrong about the flags is
// said before anything is sent.
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
	if o.criteria.Gates, err = parseGates(o.failIf, ofLoads); err != nil {
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
	return o.conclude(newLoaded(to.name, o.load, res), res, ctx.Err())
}

// lateMatters: where more than one request in so many was sent late, it is said.
const lateMatters = 100

// conclude prints what was measured and turns it into an exit status. Ended is why
// it was before its time, if it was.
func (o *loadOptions) conclude(l loaded, res load.Result, ended error) error {
	env := o.env
	if err := l.show(env, o.hist); err != nil {
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
	if lateMatters*float64(res.Late) > float64(res.Due) {
		env.Notef("%d of %d requests were sent more than 10 ms after they were due: this machine was busy, or 512 were under way",
			res.Late, res.Due)
	}
	if ended == nil {
		ended = figures.CheckAnswered(res)
	}
	all := []gate.Finding{gate.Measured(l.Target)}
	if ended == nil {
		all = append(all, o.criteria.JudgeFigures(l.Target, l.figures, figures.Millis(o.slo))...)
	}
	if err := writeJUnit(env, o.junit, all, ended); err != nil {
		return errors.Join(ended, err)
	}
	if ended != nil {
		return ended
	}
	return conclude(env, all)
}

// loaded is what came of a load. Times are in milliseconds.
type loaded struct {
	Target          string   `json:"target"`
	Load            string   `json:"load"`
	ThroughputRPS   float64  `json:"throughput_rps"`
	ThroughputCIRPS float64  `json:"throughput_ci_rps,omitempty"`
	MeanMS          float64  `json:"mean_ms,omitempty"`
	P50MS           float64  `json:"p50_ms,omitempty"`
	P95MS           float64  `json:"p95_ms,omitempty"`
	P95CIMS         float64  `json:"p95_ci_ms,omitempty"`
	P99MS           float64  `json:"p99_ms,omitempty"`
	MaxMS           float64  `json:"max_ms,omitempty"`
	Errors          int64    `json:"errors"`
	ErrorPct        *float64 `json:"error_pct,omitempty"`
	Samples         int64    `json:"samples"`
	TrialS          float64  `json:"trial_s"`
	Unstable        int64    `json:"unstable"`
	SLOMS           float64  `json:"slo_ms,omitempty"`
	WithinPct       *float64 `json:"within_pct,omitempty"`
	Histogram       []bucket `json:"histogram"`

	row profile.Row // what a row has of it
}

func newLoaded(name string, o load.Options, res load.Result) loaded {
	row := profile.Row{Config: profile.Config{Batch: 1}}
	figures.Fill(&row, res)
	if res.Completed == 0 {
		row.ThroughputCIRPS = 0 // not known
	}
	l := loaded{
		Target: name, Load: o.Spec.String(), ThroughputRPS: row.ThroughputRPS, ThroughputCIRPS: row.ThroughputCIRPS,
		P50MS: row.P50MS, P95MS: row.P95MS, P95CIMS: row.P95CIMS, P99MS: row.P99MS, Errors: row.Errors, Samples: row.Samples,
		TrialS: row.TrialS, Unstable: row.Unstable, SLOMS: figures.Millis(o.Objective), Histogram: histogram(res.Latencies), row: row,
	}
	if n := len(res.Latencies); n > 0 {
		var sum time.Duration
		for _, took := range res.Latencies {
			sum += took
		}
		l.MeanMS, l.MaxMS = figures.Millis(sum/time.Duration(n)), figures.Millis(res.Latencies[n-1])
	}
	if res.Due > 0 {
		l.ErrorPct = new(100 * float64(res.Errors) / float64(res.Due))
		if o.Objective > 0 {
			l.WithinPct = new(100 * float64(res.Due-res.Misses) / float64(res.Due))
		}
	}
	return l
}

// ofLoads are the metrics that a load may have.
var ofLoads = []string{
	"error_pct", "errors", "max_ms", "mean_ms", "p50_ms", "p95_ci_ms", "p95_ms", "p99_ms", "samples",
	"throughput_ci_rps", "throughput_rps", "unstable", "within_pct",
}

// figures are what gates look at.
func (l loaded) figures(metric string) (value, half float64, measured bool) {
	share := func(pct *float64) (float64, float64, bool) {
		if pct == nil {
			return 0, 0, false
		}
		return *pct, 0, true
	}
	switch metric {
	case "mean_ms":
		return l.MeanMS, 0, true
	case "max_ms":
		return l.MaxMS, 0, true
	case "error_pct":
		return share(l.ErrorPct)
	case "within_pct":
		return share(l.WithinPct)
	}
	return gate.FiguresOf(l.row)(metric)
}

// csv is the header and the line that follows it.
func (l loaded) csv() [][]string {
	measured := func(v float64) string {
		if v == 0 {
			return ""
		}
		return csvfile.Format(v)
	}
	share := func(pct *float64) string {
		if pct == nil {
			return ""
		}
		return csvfile.Format(*pct)
	}
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	return [][]string{
		{"target", "load", "throughput_rps", "throughput_ci_rps", "mean_ms", "p50_ms", "p95_ms", "p95_ci_ms", "p99_ms", "max_ms",
			"errors", "error_pct", "samples", "trial_s", "unstable", "slo_ms", "within_pct"},
		{l.Target, l.Load, csvfile.Format(l.ThroughputRPS), measured(l.ThroughputCIRPS), measured(l.MeanMS), measured(l.P50MS),
			measured(l.P95MS), measured(l.P95CIMS), measured(l.P99MS), measured(l.MaxMS),
			count(l.Errors), share(l.ErrorPct), count(l.Samples), csvfile.Format(l.TrialS), count(l.Unstable), measured(l.SLOMS), share(l.WithinPct)},
	}
}

// table is it for a person.
func (l loaded) table() [][]string {
	ms := func(v float64) string {
		if l.Samples == 0 {
			return "-"
		}
		return number.Fixed(v, 1)
	}
	rows := [][]string{
		{"TARGET", "LOAD", "RPS", "±95%", "MEAN MS", "P50 MS", "P95 MS", "P99 MS", "MAX MS", "SAMPLES", "ERRORS"},
		{l.Target, l.Load, number.Fixed(l.ThroughputRPS, 1), spread(l.row), ms(l.MeanMS), ms(l.P50MS), ms(l.P95MS), ms(l.P99MS), ms(l.MaxMS),
			strconv.FormatInt(l.Samples, 10), strconv.FormatInt(l.Errors, 10)},
	}
	if l.WithinPct != nil {
		rows[0] = append(rows[0], "WITHIN "+number.Plain(l.SLOMS)+" MS")
		rows[1] = append(rows[1], number.Significant(*l.WithinPct, 5)+"%")
	}
	return rows
}

// show prints it in the form that -o chose.
func (l loaded) show(env *cli.Env, hist bool) error {
	if env.Output != "table" {
		return env.Show(l, l.csv)
	}
	return env.Emit(func(w io.Writer) error {
		if err := cli.Table(w, l.table()); err != nil || !hist {
			return err
		}
		_, err := fmt.Fprintln(w)
		return errors.Join(err, cli.Table(w, pictured(l.Histogram)))
	})
}
