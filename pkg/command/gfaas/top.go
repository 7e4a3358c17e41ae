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
		Short: "Show what GPUs, functions and instances do",
		Long: `Shows how busy GPUs are, how many calls of each function wait and run and how
long they take, what instances there are, and the models that are on GPUs. The
gateway knows all of it; without one the token daemon knows what instances use, and
the rest is unknown (- or null).

On a terminal, without -o, the screen is renewed every --interval until q is
pressed: tab goes to the other table, s and S to another order, r reverses it, /
shows only names with a text, p pauses. Otherwise tables are printed once, or -n
times, --interval apart; jsonl prints a line for each look, until it is ended
unless -n says when. json is one look.

JSON is {"gpus": [{"gpu", "slots", "running", "busy_pct", "mem_used_mib", "mem_other_mib",
"mem_mib"}], "functions": [{"function", "state", "waiting", "in_flight", "rps",
"planned_rps", "p50_ms", "p95_ms", "p99_ms", "cold_starts", "host_warm_starts", "gpu_warm_starts", "rejected", "errors", "instances", "gpu_seconds", "why"}],
"instances": [{"id", "function", "gpu", "state", "residency", "in_flight",
"mem_used_mib", "address", "idle_s", "sm_pct", "quota_request", "quota_limit"}],
"models": [{"gpu", "name", "tenant", "state", "mem_mib", "refs"}]}. A model's weights
are one copy for all that share it, and in no instance's memory.
Rates and latencies are those of the last minute; counts are since the gateway
began. OF RPS is what plans count on a function's instances for: under random arrivals
that is their goodput, the rate that they serve within its objective. GPU s (gpu_seconds)
sums how long the function's instances were used by calls, from the dispatch of a call to
its end. This includes a start that the call waits for, but not a failed start.`,
		Example: `  gfaas top
  gfaas top -o json | jq '.functions[] | select(.waiting > 0)'
  gfaas top -o jsonl --interval 10s >> top.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, t) },
	}
	f := cmd.Flags()
	f.DurationVar(&o.interval, "interval", time.Second, "time between two looks")
	f.IntVarP(&o.count, "count", "n", 0, "how many looks (default 1 for tables; 0 is no end for jsonl and on a terminal)")
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
		return cli.Usagef("-o json is one look: --count %d asks for more; use -o jsonl", o.count)
	}
	ctx := cmd.Context()
	if err := tokend.CheckOwner(t.runDir); err != nil {
		return err
	}
	looker := newLooker(t.runDir)
	defer looker.gateway.Close()
	if in, out, ok := t.terminal(); ok && !cli.Given(cmd.Flags(), "output") && t.env.OutFile == "" {
		if _, err := looker.look(ctx); err != nil { // at once, rather than on a screen that goes away
			return err
		}
		return top.Run(ctx, top.Config{Look: looker.look, Interval: o.interval, Count: o.count, Color: t.env.Colors(), In: in, Out: out})
	}
	if t.env.Output != "jsonl" {
		o.count = max(o.count, 1)
	}
	return o.print(ctx, t, looker)
}

// terminal is the terminal that the user reads and writes at, if both are one.
func (t *tool) terminal() (in io.Reader, out io.Writer, ok bool) {
	i, reads := t.env.In.(*os.File)
	o, writes := t.env.Out.(*os.File)
	ok = reads && writes && isatty.IsTerminal(i.Fd()) && isatty.IsTerminal(o.Fd()) && os.Getenv("TERM") != "dumb"
	return i, o, ok
}

// print prints what each look gives. With --out-file all of it is one file.
func (o *topOptions) print(ctx context.Context, t *tool, l *looker) error {
	var all bytes.Buffer
	for n := 0; ; {
		s, err := l.look(ctx)
		if err != nil {
			return err
		}
		n++
		last := o.count > 0 && n >= o.count
		if t.env.OutFile != "" {
			if err := printStatus(&all, t, s); err != nil {
				return err
			}
			if last {
				return t.env.Write(all.Bytes())
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

// looker asks the gateway, or the token daemon where there is none.
type looker struct {
	runDir  string
	gateway *gateway.Client
	tokens  *tokend.Client
}

func newLooker(runDir string) *looker {
	return &looker{runDir, gateway.Dial(runDir), tokend.Dial(runDir)}
}

func (l *looker) look(ctx context.Context) (status.Status, error) {
	s, err := l.lookAtCalls(ctx)
	if err != nil {
		return s, err
	}
	var gpus []string
	for _, g := range s.GPUs {
		gpus = append(gpus, g.GPU)
	}
	s.Models = modeld.OnGPUs(ctx, l.runDir, gpus)
	return s, nil
}

func (l *looker) lookAtCalls(ctx context.Context) (status.Status, error) {
	s, err := l.gateway.Status(ctx)
	var missing *gateway.Error
	if err == nil || !errors.As(err, &missing) || !missing.Missing {
		return s, err
	}
	w, err := l.tokens.Status(ctx)
	var gone *tokend.Error
	switch {
	case err == nil:
		return top.FromTokens(w), nil
	case errors.As(err, &gone) && gone.Missing:
		return s, &cli.Error{Exit: cli.ExitUnavailable, Hint: "start something: 'gfaas serve', 'gfaas up' or 'gfaas run'",
			Err: fmt.Errorf("neither a gateway nor a token daemon serves %s", l.runDir)}
	}
	return s, err
}
