package gfaas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/top"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/status"
)

type topOptions struct {
	interval time.Duration
	count    int
}

func newTop(t *tool) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the load of GPUs, functions and instances",
		Long: `Show how busy each GPU is, how many calls of each function wait and run and how
long they take, and which instances and models are on the GPUs. The gateway reports
all of this. Without a gateway, the token daemon reports the resources that instances
use, and the other values are unknown (- or null).

On a terminal, without -o, the screen is updated every --interval until you press q.
Tab switches to the other table, s and S select the column to sort by, r reverses the
order, / filters by name, and p pauses. If the output is not a terminal, and with -o
table, the tables are printed once, or -n times at intervals of --interval. With -o
jsonl, the command prints a line for each snapshot until you stop it, or -n lines. With
-o json, it prints one snapshot.

JSON is {"gpus": [{"gpu", "slots", "running", "busy_pct", "mem_used_mib",
"mem_other_mib", "mem_mib", "closed"}], "functions": [{"function", "state", "waiting",
"in_flight", "rps", "planned_rps", "p50_ms", "p95_ms", "p99_ms", "cold_starts",
"host_warm_starts", "gpu_warm_starts", "false_misses", "loaded_gpus", "rejected",
"errors", "instances", "gpu_seconds", "why", "reason"}], "instances": [{"id",
"function", "gpu", "state", "residency", "in_flight", "mem_used_mib", "address",
"idle_s", "sm_pct", "quota_request", "quota_limit"}], "models": [{"gpu", "name",
"tenant", "state", "mem_mib", "refs"}]}.

loaded_gpus is the number of GPUs that have the memory of the function in an instance.
false_misses counts the cold and host-warm starts at which a GPU other than the chosen
one had it.

All instances that use a model share one copy of its weights, which does not count as
memory of an instance. Rates and latencies are those of the last minute. Other numbers
are counted from the start of the gateway. The column OF RPS (planned_rps) is the rate
for which the running plan has instances of the function: with random arrivals, the rate
that these instances serve within the objective of the function. The column GPU s
(gpu_seconds) is the sum of the times for which calls used instances of the function,
from the dispatch of a call to its end. It includes a start for which the call waits,
but not a failed start. "why" is the reason why calls wait, a code with parameters
(docs/reasons.md); "reason" is the same reason as a JSON object.`,
		Example: `  # Watch the load on a terminal
  gfaas top

  # List functions with waiting calls
  gfaas top -o json | jq '.functions[] | select(.waiting > 0)'

  # Append a snapshot to a file every 10 seconds
  gfaas top -o jsonl --interval 10s >> top.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, t) },
	}
	f := cmd.Flags()
	f.DurationVar(&o.interval, "interval", time.Second, "time between two snapshots")
	f.IntVarP(&o.count, "count", "n", 0, "number of snapshots (default 1 for tables; 0 for no end with jsonl and on a terminal)")
	t.env.Outputs(cmd, "table", "json", "jsonl")
	return cmd
}

func (o *topOptions) run(cmd *cobra.Command, t *tool) error {
	switch {
	case o.interval < 10*time.Millisecond:
		return cli.Usagef("--interval %v: expected 10ms or more", o.interval)
	case o.count < 0:
		return cli.Usagef("--count %d: expected 0 or more", o.count)
	case t.env.Output == "json" && o.count > 1:
		return cli.Usagef("--count %d: -o json prints one snapshot; use -o jsonl for several", o.count)
	}
	ctx := cmd.Context()
	if err := tokend.CheckOwner(t.runDir); err != nil {
		return err
	}
	reader := &statusReader{t.runDir, gateway.Dial(t.runDir), tokend.Dial(t.runDir)}
	defer reader.gateway.Close()
	if in, out, ok := t.terminal(); ok && !cli.OnCommandLine(cmd.Flags(), "output") && t.env.OutFile == "" {
		if _, err := reader.read(ctx); err != nil { // report the error here, because the screen is restored on exit
			return err
		}
		return top.Run(ctx, top.Config{Snapshot: reader.read, Interval: o.interval, Count: o.count, Color: t.env.Colors(), In: in, Out: out})
	}
	if t.env.Output != "jsonl" {
		o.count = max(o.count, 1)
	}
	return o.print(ctx, t, reader)
}

// terminal returns the user's terminal. It sets ok if both input and output are terminals.
func (t *tool) terminal() (in io.Reader, out io.Writer, ok bool) {
	i, reads := t.env.In.(*os.File)
	o, writes := t.env.Out.(*os.File)
	ok = reads && writes && isatty.IsTerminal(i.Fd()) && isatty.IsTerminal(o.Fd()) && os.Getenv("TERM") != "dumb"
	return i, o, ok
}

// print prints each snapshot. With --out-file, it writes all of them as one file at the end.
func (o *topOptions) print(ctx context.Context, t *tool, l *statusReader) error {
	var buf bytes.Buffer
	for n := 0; ; {
		s, err := l.read(ctx)
		if err != nil {
			return err
		}
		n++
		last := o.count > 0 && n >= o.count
		if t.env.OutFile != "" {
			if err := printStatus(&buf, t, s); err != nil {
				return err
			}
			if last {
				return t.env.Write(buf.Bytes())
			}
		} else if err := t.env.Emit(func(w io.Writer) error { return printStatus(w, t, s) }); err != nil {
			return err
		}
		if last {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(o.interval):
		}
	}
}

func printStatus(w io.Writer, t *tool, s status.Status) error {
	if t.env.Output != "table" {
		return t.env.Encode(w, s)
	}
	for i, rows := range top.Tables(s) {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := cli.Table(w, rows); err != nil {
			return err
		}
	}
	return nil
}

// statusReader takes snapshots from the gateway, or from the token daemon if no gateway runs.
type statusReader struct {
	runDir  string
	gateway *gateway.Client
	tokens  *tokend.Client
}

func (l *statusReader) read(ctx context.Context) (status.Status, error) {
	s, err := l.readInstances(ctx)
	if err != nil {
		return s, err
	}
	gpus := lists.Map(s.GPUs, func(g status.GPU) string { return g.GPU })
	s.Models = modeld.OnGPUs(ctx, l.runDir, gpus)
	return s, nil
}

func (l *statusReader) readInstances(ctx context.Context) (status.Status, error) {
	s, err := l.gateway.Status(ctx)
	if e, ok := errors.AsType[*gateway.Error](err); !ok || !e.Missing {
		return s, err
	}
	w, err := l.tokens.Status(ctx)
	if err == nil {
		return top.FromTokens(w), nil
	}
	if ports.Unavailable(err) {
		return s, &cli.Error{Exit: cli.ExitUnavailable, Hint: "start one with 'gfaas serve', 'gfaas up' or 'gfaas run'",
			Err: fmt.Errorf("neither a gateway nor a token daemon runs in %s", l.runDir)}
	}
	return s, err
}
