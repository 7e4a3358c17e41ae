package gfaas

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/measure/replay"
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

// maxReplayBody is the largest body of a call, in bytes.
const maxReplayBody = 64 << 20

func newReplay(t *tool) *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Send the calls of a trace through the gateway",
		Long: `Send each call of a trace to its function, at its time in the trace, counted from the
first call, and print statistics of the answers. The latency of a call counts from the
time at which it should have been sent. So, if the sender or the gateway pauses, the
calls that have to wait for it have longer latencies.

Traces and results have the same format as for gfaas-sim queue (docs/files.md).
You can simulate a trace with gfaas-sim queue, replay it with this command, and compare
the results.

JSON is {"policy","invocations","completed","makespan_ms","latency_ms":{"mean",
"p50","p95","p99","max"},"cold_starts","host_warm_starts","gpu_warm_starts",
"miss_ratio","gpu_utilization","rejected","functions":[{"function","invocations",
"mean_ms","p99_ms","variance","service_ms"}],"errors","late_ms","wall_ms"}.
"rejected" counts answers with status 429, and "errors" all other failed calls
(status 400 and above, or no answer). Latencies are over completed calls.
"late_ms" is the largest delay of the sender itself. "gpu_utilization" and
"service_ms" include other calls of the same functions at that time; they are null
if the gateway does not report the use of the GPUs.

The exit status is 1 if a call failed, 3 if calls were only rejected, and 4 if no
gateway runs.`,
		Example: `  # Replay a trace through the gateway of the run directory
  gfaas replay trace.csv

  # Send the first 1000 calls ten times as fast, with the content of a file
  gfaas replay trace.csv --speed 10 --limit 1000 --body cat.jpg -o json

  # Replay a trace through the gateway of another machine
  gfaas replay trace.csv --url http://admin:secret@gpu1:8080`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("csv"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	f.Float64Var(&o.speed, "speed", 1, "how many times as fast as in the trace to send the calls")
	f.IntVar(&o.limit, "limit", 0, "number of calls to send, from the first one; 0 for all")
	f.StringVar(&o.body, "body", "", "file to send as the body of each call (default: an empty body)")
	f.StringVar(&o.url, "url", "", "`URL` of the gateway, like http://user:password@host:8080 (default: the gateway in the run directory)")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "time limit for each whole answer")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the random times within a minute, for traces with counts per minute")
	cli.CompleteFiles(cmd, "", "body")
	t.env.Outputs(cmd, "table", "json", "jsonl", "csv", "yaml")
	cli.Meaning(cmd, cli.ExitNo, "the gateway rejected a call")
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
	result, failed, err := replay.Run(ctx, replay.Request{
		Gateway: client, Rows: rows, Names: names.All(), Speed: o.speed, Body: body, Timeout: o.timeout,
		Progress: func() (add, finish func()) {
			bar := t.env.Progress(len(rows), "replaying", "calls")
			return func() { _ = bar.Add(1) }, func() { _ = bar.Finish() }
		},
	}, func(err error) { t.env.Notef("note: the gateway does not report the use of the GPUs: %v", err) })
	if err != nil {
		return err
	}
	if err := printReplay(t.env, result); err != nil {
		return err
	}
	switch {
	case result.Errors > 0:
		return fmt.Errorf("%s failed; first error: %w", number.Count(int(result.Errors), "call"), failed)
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
	body, err := io.ReadAll(io.LimitReader(f, maxReplayBody+1))
	if err == nil && len(body) > maxReplayBody {
		err = fmt.Errorf("--body: %s is larger than %d bytes", o.body, maxReplayBody)
	}
	return body, err
}

// load reads a trace and sorts it by time.
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
		t.env.Notef("note: %s is not sorted by time: sorted it", path)
	}
	if o.limit > 0 && len(rows) > o.limit {
		rows = rows[:o.limit]
	}
	if len(rows) == 0 {
		return nil, nil, fmt.Errorf("%s has no invocations", path)
	}
	return rows, names, nil
}

func printReplay(env *cli.Env, r *replay.Result) error {
	if env.Output != "table" {
		return env.Show(r, func() [][]string { return replayRows(r, csvfile.Format) })
	}
	return env.Emit(func(w io.Writer) error {
		return cli.Summary(w, replaySummary(r), replayRows(r, func(v float64) string { return number.Trimmed(v, 2) }))
	})
}

// replaySummary returns the summary of all functions.
func replaySummary(r *replay.Result) [][2]string {
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

// replayRows returns the table of the functions. The function n formats numbers.
func replayRows(r *replay.Result, n func(float64) string) [][]string {
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
