package gfaas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/trace"
)

type replayOptions struct {
	speed   float64
	limit   int
	body    string
	url     string
	timeout time.Duration
	seed    uint64
}

const (
	mostReplayBody = 64 << 20
	// mostOutstanding calls are under way at once. Beyond that the next waits,
	// which its latency and late_ms say.
	mostOutstanding = 4096
)

func newReplay(t *tool) *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Send the calls of a trace through the gateway",
		Long: `Posts each call of a trace to its function at its time, counted from the first,
and says how long the answers took: from when a call was due, not from when it
could be sent, so that a stall is charged to every call that it delayed. A trace is
what gfaas-sim queue takes (docs/files.md). What it prints is what gfaas-sim queue
prints, as measured: so one trace can be simulated and run, and compared.

-o json: {"policy","invocations","completed","makespan_ms","latency_ms":{"mean",
"p50","p95","p99","max"},"cold_starts","host_warm_starts","gpu_warm_starts",
"miss_ratio","gpu_utilization","rejected","functions":[{"function","invocations",
"mean_ms","p99_ms","variance","service_ms"}],"errors","late_ms","wall_ms"}.
rejected counts answers 429, errors all other calls that failed (status 400 and
above, or no answer); latencies are those of the calls that completed. late_ms is
how late the sender itself was, at most. Use of the GPUs counts whatever runs there
meanwhile; it is null where the gateway does not tell.

Any rejected call is exit 3, any that failed otherwise exit 1, no gateway exit 4.`,
		Example: `  gfaas replay trace.csv
  gfaas replay trace.csv --speed 10 --limit 1000 --body cat.jpg -o json
  gfaas replay trace.csv --url http://admin:secret@gpu1:8080`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("csv"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	f.Float64Var(&o.speed, "speed", 1, "how many times as fast as the trace says")
	f.IntVar(&o.limit, "limit", 0, "only the first so many calls; 0 is all")
	f.StringVar(&o.body, "body", "", "file that is the body of each call (default an empty one)")
	f.StringVar(&o.url, "url", "", "gateway elsewhere, like `http://user:password@host:8080` (default that of the run directory)")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long a whole answer may take")
	f.Uint64Var(&o.seed, "seed", 1, "of the times within a minute, where a trace has counts a minute")
	cli.Files(cmd, "", "body")
	t.env.Outputs(cmd, "table", "json", "jsonl", "csv", "yaml")
	return cmd
}

func (o *replayOptions) check() error {
	switch {
	case !(o.speed > 0) || math.IsInf(o.speed, 0):
		return cli.Usagef("--speed %v: expected more than 0", o.speed)
	case o.limit < 0:
		return cli.Usagef("--limit %d: expected 0 or more", o.limit)
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v: expected more than 0", o.timeout)
	}
	return nil
}

func (o *replayOptions) run(ctx context.Context, t *tool, path string) error {
	if err := o.check(); err != nil {
		return err
	}
	client := gateway.Dial(t.runDir)
	if o.url != "" {
		var err error
		if client, err = gateway.DialURL(o.url); err != nil {
			return cli.Usagef("--url: %w", err)
		}
	}
	defer client.Close()
	body, err := o.readBody()
	if err != nil {
		return err
	}
	rows, names, err := o.load(t, path)
	if err != nil {
		return err
	}
	p := &player{client: client, body: body, timeout: o.timeout, names: names.All(), functions: make([]played, len(names.All()))}
	before, err := p.look(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	p.bar = t.env.Progress(len(rows), "replaying", "calls")
	p.play(ctx, rows, o.speed)
	_ = p.bar.Finish()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	after, err := p.look(ctx)
	if err != nil {
		t.env.Notef("note: the gateway does not say what the GPUs did: %v", err)
		after.known = false
	}
	result := p.result(before, after)
	result.WallMS = milliseconds(time.Since(begin))
	if err := result.print(t.env); err != nil {
		return err
	}
	switch {
	case result.Errors > 0:
		return fmt.Errorf("%s failed, the first: %w", cli.Count(int(result.Errors), "call"), p.first)
	case result.Rejected > 0:
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

func (o *replayOptions) readBody() ([]byte, error) {
	if o.body == "" {
		return nil, nil
	}
	f, err := os.Open(o.body)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, mostReplayBody+1))
	if err == nil && len(body) > mostReplayBody {
		err = fmt.Errorf("%s has more than %d bytes", o.body, mostReplayBody)
	}
	return body, err
}

// load reads a trace, in order of time.
func (o *replayOptions) load(t *tool, path string) ([]trace.Row, *trace.Names, error) {
	names, sorted := trace.NewNames(), true
	rows, err := cli.Load(t.env, path, func(r io.Reader, name string) (rows []trace.Row, err error) {
		rows, sorted, err = trace.ReadAll(r, name, names, o.seed)
		return rows, err
	})
	if err != nil {
		return nil, nil, err
	}
	if !sorted {
		t.env.Notef("note: %s is not in order of time: sorted", path)
	}
	if o.limit > 0 && len(rows) > o.limit {
		rows = rows[:o.limit]
	}
	if len(rows) == 0 {
		return nil, nil, fmt.Errorf("%s has no invocations", path)
	}
	return rows, names, nil
}

// player sends calls and keeps what came of them.
type player struct {
	client  *gateway.Client
	body    []byte
	timeout time.Duration
	names   []string
	bar     *cli.Bar

	mu        sync.Mutex
	functions []played
	starts    map[string]int64 // answers, by Gfaas-Start
	late      time.Duration
	rejected  int64
	errors    int64
	first     error // the first of the errors
	last      time.Time
	begun     time.Time
}

// played is what came of one function's calls.
type played struct {
	calls     int64
	latencies []time.Duration // of those that completed
}

// play sends the calls at their times and waits for the answers.
func (p *player) play(ctx context.Context, rows []trace.Row, speed float64) {
	p.starts = map[string]int64{}
	p.begun = time.Now()
	p.last = p.begun
	places := make(chan struct{}, mostOutstanding)
	var sent sync.WaitGroup
	defer sent.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for _, row := range rows {
		due := p.begun.Add(time.Duration(float64(row.At-rows[0].At) / speed))
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		late := time.Since(due)
		sent.Go(func() {
			defer func() { <-places }()
			status, start, err := p.call(ctx, p.names[row.Function])
			p.done(row.Function, due, late, status, start, err)
		})
	}
}

// call sends one call and reads its answer to the end.
func (p *player) call(ctx context.Context, function string) (status int, start string, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	answer, err := p.client.Send(ctx, http.MethodPost, "/function/"+url.PathEscape(function), nil, bytes.NewReader(p.body))
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusBadRequest && answer.Header.Get("Gfaas-Instance") == "" {
		return answer.StatusCode, "", gateway.Refusal(answer)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, "", fmt.Errorf("function %s: answer cut off: %w", function, err)
	}
	if answer.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("function %s answered %s", function, answer.Status)
	}
	return answer.StatusCode, answer.Header.Get("Gfaas-Start"), err
}

func (p *player) done(function int32, due time.Time, late time.Duration, status int, start string, err error) {
	now := time.Now()
	_ = p.bar.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.functions[function].calls++
	p.late = max(p.late, late)
	p.last = now
	if start != "" {
		p.starts[start]++
	}
	switch {
	case status == http.StatusTooManyRequests:
		p.rejected++
	case err != nil:
		p.errors++
		if p.first == nil {
			p.first = err
		}
	default:
		p.functions[function].latencies = append(p.functions[function].latencies, now.Sub(due))
	}
}

// look is what the gateway says of itself.
type look struct {
	known      bool
	policy     string
	slots      int
	gpuSeconds map[string]float64
}

// look asks the gateway. One that does not tell is no error, none at all is.
func (p *player) look(ctx context.Context) (l look, err error) {
	var info struct{ Policy string }
	stands, err := p.client.Status(ctx)
	var refused *gateway.Error
	if errors.As(err, &refused) && refused.Status != 0 {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	if err := p.client.Ask(ctx, http.MethodGet, "/system/info", nil, &info); err != nil {
		return l, err
	}
	l = look{known: true, policy: info.Policy, gpuSeconds: map[string]float64{}}
	for _, g := range stands.GPUs {
		if g.Slots != nil {
			l.slots += *g.Slots
		}
	}
	for _, f := range stands.Functions {
		if f.GPUSeconds != nil {
			l.gpuSeconds[f.Function] = *f.GPUSeconds
		}
	}
	return l, nil
}

// replayed is what came of a replay. Times are in milliseconds.
type replayed struct {
	Policy         string           `json:"policy"`
	Invocations    int64            `json:"invocations"`
	Completed      int64            `json:"completed"`
	MakespanMS     float64          `json:"makespan_ms"`
	LatencyMS      replayedLatency  `json:"latency_ms"`
	ColdStarts     int64            `json:"cold_starts"`
	HostWarmStarts int64            `json:"host_warm_starts"`
	GPUWarmStarts  int64            `json:"gpu_warm_starts"`
	MissRatio      float64          `json:"miss_ratio"`
	GPUUtilization *float64         `json:"gpu_utilization"`
	Rejected       int64            `json:"rejected"`
	Functions      []replayedOfName `json:"functions"`
	Errors         int64            `json:"errors"`
	LateMS         float64          `json:"late_ms"`
	WallMS         float64          `json:"wall_ms"`
}

type replayedLatency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

type replayedOfName struct {
	Function    string   `json:"function"`
	Invocations int64    `json:"invocations"`
	MeanMS      float64  `json:"mean_ms"`
	P99MS       float64  `json:"p99_ms"`
	Variance    float64  `json:"variance"`
	ServiceMS   *float64 `json:"service_ms"`
}

func (p *player) result(before, after look) *replayed {
	r := &replayed{Policy: before.policy, Rejected: p.rejected, Errors: p.errors, LateMS: milliseconds(p.late), MakespanMS: milliseconds(p.last.Sub(p.begun)),
		ColdStarts: p.starts["cold"], HostWarmStarts: p.starts["host-warm"], GPUWarmStarts: p.starts["gpu-warm"], Functions: []replayedOfName{}}
	var all []time.Duration
	busy := 0.0
	for i, f := range p.functions {
		if f.calls == 0 {
			continue
		}
		r.Invocations += f.calls
		r.Completed += int64(len(f.latencies))
		all = append(all, f.latencies...)
		mean, variance := moments(f.latencies)
		row := replayedOfName{Function: p.names[i], Invocations: f.calls, MeanMS: mean, P99MS: quantile(f.latencies, 0.99), Variance: variance}
		if before.known && after.known {
			served := after.gpuSeconds[p.names[i]] - before.gpuSeconds[p.names[i]]
			busy += served
			row.ServiceMS = new(served * 1e3)
		}
		r.Functions = append(r.Functions, row)
	}
	mean, _ := moments(all)
	r.LatencyMS = replayedLatency{mean, quantile(all, 0.50), quantile(all, 0.95), quantile(all, 0.99), quantile(all, 1)}
	if r.Invocations > 0 {
		r.MissRatio = float64(r.ColdStarts+r.HostWarmStarts) / float64(r.Invocations)
	}
	if capacity := r.MakespanMS / 1e3 * float64(before.slots); before.known && after.known && capacity > 0 {
		r.GPUUtilization = new(busy / capacity)
	}
	return r
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// moments are the mean and the variance, in ms and ms².
func moments(values []time.Duration) (mean, variance float64) {
	if len(values) == 0 {
		return 0, 0
	}
	for _, v := range values {
		mean += milliseconds(v)
	}
	mean /= float64(len(values))
	for _, v := range values {
		d := milliseconds(v) - mean
		variance += d * d
	}
	return mean, variance / float64(len(values))
}

// quantile is by nearest rank, in ms. It sorts the values.
func quantile(values []time.Duration, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	rank := int(math.Ceil(q * float64(len(values))))
	return milliseconds(values[max(rank, 1)-1])
}

func (r *replayed) print(env *cli.Env) error {
	if env.Output != "table" {
		return env.Show(r, func() [][]string { return r.rows(csvfile.Format) })
	}
	return env.Emit(func(w io.Writer) error {
		for _, line := range r.summary() {
			if _, err := fmt.Fprintf(w, "%-18s%s\n", line[0], line[1]); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		return cli.Table(w, r.rows(func(v float64) string { return number.Trimmed(v, 2) }))
	})
}

// summary is a result without its functions.
func (r *replayed) summary() [][2]string {
	ms := func(v float64) string {
		if v >= 1e4 {
			return number.Fixed(v/1e3, 1) + " s"
		}
		return number.Trimmed(v, 2) + " ms"
	}
	use := "-"
	if r.GPUUtilization != nil {
		use = number.Percent(*r.GPUUtilization, 1)
	}
	return [][2]string{
		{"policy", r.Policy},
		{"invocations", fmt.Sprintf("%d, of which %d completed, %d rejected, %d failed", r.Invocations, r.Completed, r.Rejected, r.Errors)},
		{"makespan", ms(r.MakespanMS)},
		{"latency", fmt.Sprintf("mean %s, p50 %s, p95 %s, p99 %s, max %s", ms(r.LatencyMS.Mean), ms(r.LatencyMS.P50), ms(r.LatencyMS.P95), ms(r.LatencyMS.P99), ms(r.LatencyMS.Max))},
		{"starts", fmt.Sprintf("%d cold, %d host-warm, %d gpu-warm", r.ColdStarts, r.HostWarmStarts, r.GPUWarmStarts)},
		{"misses", number.Percent(r.MissRatio, 1)},
		{"GPUs busy", use},
		{"sender late", "at most " + ms(r.LateMS)},
	}
}

// rows are its functions, a line each, with numbers as n prints them.
func (r *replayed) rows(n func(float64) string) [][]string {
	rows := [][]string{{"function", "invocations", "mean_ms", "p99_ms", "variance", "service_ms"}}
	for _, f := range r.Functions {
		service := ""
		if f.ServiceMS != nil {
			service = n(*f.ServiceMS)
		}
		rows = append(rows, []string{f.Function, fmt.Sprint(f.Invocations), n(f.MeanMS), n(f.P99MS), n(f.Variance), service})
	}
	return rows
}
