package gfaas

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/daemon/gateway"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

type logsOptions struct {
	follow     bool
	tail       int
	since      string
	timestamps bool
}

func newLogs(t *tool) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs NAME…",
		Short: "Show what instances print",
		Long: `Shows what instances print, on standard output and standard error alike. A NAME
is a function, and stands for all its instances, or an instance's id. Of several
instances the lines come in order of time, each after the id of its instance.

Of each instance the last 8 to 16 MiB are kept until gfaas down, also when it has
ended: of a process beside the state file, of a container by Docker, as its
logging driver can. When a disk was full or too slow a line says how much is
missing.

If a start of a function failed, the last 10,000 lines of the last such start are shown
too, until gfaas down or gfaas rm, or until an instance with the same id runs.

With --follow the lines to come are shown too, until the instances have ended;
those of several then come as they are printed.

A line of -o jsonl is {"instance", "function", "time", "text"}, and "partial" if
it is longer than 16 KiB and goes on in the next of that instance.`,
		Example: "  gfaas logs resnet\n  gfaas logs resnet-0 -f --tail 20\n  gfaas logs resnet --since 10m -o jsonl",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return without(t.instanceNames(cmd.Context()), args), cobra.ShellCompDirectiveNoFileComp
		},
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args) },
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what is printed from now on")
	f.IntVarP(&o.tail, "tail", "n", -1, "of each instance only the last so many lines; -1 is all")
	f.StringVar(&o.since, "since", "", "only what was printed in the last so long, like 10m, or since a time, like 2026-01-02T15:04:05Z")
	f.BoolVarP(&o.timestamps, "timestamps", "t", false, "say of each line when it was printed")
	t.env.Outputs(cmd, "text", "jsonl")
	return cmd
}

func (o *logsOptions) run(ctx context.Context, t *tool, names []string) error {
	wanted, err := o.options(time.Now())
	if err != nil {
		return err
	}
	if o.follow && t.env.OutFile != "" && t.env.OutFile != "-" {
		return cli.Usagef("--out-file is written as a whole, and --follow has no end: send standard output to the file")
	}
	state, err := t.store.Look(ctx)
	if err != nil {
		return err
	}
	failed := failedOf(t.runDir, names, state.Instances)
	records, err := pick(state.Instances, names, func(name string) bool {
		_, err := state.Function(name)
		return err == nil || slices.ContainsFunc(failed, func(f host.FailedStart) bool { return f.ID == name || f.Function == name })
	})
	if err != nil {
		return err
	}
	if len(records)+len(failed) == 0 {
		t.env.Notef("note: %s: no instances", strings.Join(names, ", "))
		return nil
	}
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	var all []instanceLog
	for _, r := range records {
		all = append(all, instanceLog{r, launcher.Logs(ctx, r, wanted)})
	}
	for _, f := range failed {
		t.env.Notef("note: %s did not start: this is what it printed", f.ID)
		all = append(all, instanceLog{instance.Record{ID: f.ID, Function: f.Function}, f.Logs(ctx, wanted)})
	}
	if !o.follow && t.env.OutFile != "" {
		return t.env.Emit(func(w io.Writer) error { return o.print(w, t.env.Output, all, launch.Merged) })
	}
	together := launch.Merged
	if o.follow {
		together = launch.AsTheyCome
	}
	return o.print(t.env.Out, t.env.Output, all, together)
}

// failedOf returns the failed starts that names stand for, or all if there are no names. It
// leaves out ids that have an instance now.
func failedOf(runDir string, names []string, instances []instance.Record) []host.FailedStart {
	return slices.DeleteFunc(host.FailedStarts(runDir), func(f host.FailedStart) bool {
		return len(names) > 0 && !slices.Contains(names, f.ID) && !slices.Contains(names, f.Function) ||
			slices.ContainsFunc(instances, func(r instance.Record) bool { return r.ID == f.ID })
	})
}

// failedStarts returns the failed starts of a function, for the gateway to show.
func failedStarts(runDir, function string) (out []gateway.FailedStart) {
	for _, f := range host.FailedStarts(runDir) {
		if f.Function == function {
			out = append(out, gateway.FailedStart{ID: f.ID, Logs: f.Logs})
		}
	}
	return out
}

// options reads the flags at that time.
func (o *logsOptions) options(now time.Time) (ports.LogOptions, error) {
	wanted := ports.LogOptions{Tail: o.tail, Follow: o.follow}
	if o.tail < -1 {
		return wanted, cli.Usagef("--tail %d: expected 0 or more, or -1 for all", o.tail)
	}
	if o.since == "" {
		return wanted, nil
	}
	if d, err := time.ParseDuration(o.since); err == nil && d >= 0 {
		wanted.Since = now.Add(-d)
		return wanted, nil
	}
	at, err := time.Parse(time.RFC3339Nano, o.since)
	if err != nil {
		return wanted, cli.Usagef("--since %q: expected a duration like 10m, or a time like 2026-01-02T15:04:05Z", o.since)
	}
	wanted.Since = at
	return wanted, nil
}

// instanceLog is the log of an instance.
type instanceLog struct {
	record instance.Record
	lines  ports.LogLines
}

// print writes the lines of all that together yields, and goes on with the
// others when one fails.
func (o *logsOptions) print(w io.Writer, form string, all []instanceLog, together func([]ports.LogLines) iter.Seq2[launch.Printed, error]) error {
	out := bufio.NewWriter(w)
	width := 0
	for _, s := range all {
		width = max(width, len(s.record.ID))
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	var failed []error
	logs := make([]ports.LogLines, len(all))
	for i, l := range all {
		logs[i] = l.lines
	}
	for p, err := range together(logs) {
		r := all[p.From].record
		if err != nil {
			failed = append(failed, fmt.Errorf("instance %s: %w", r.ID, err))
			continue
		}
		if form == "jsonl" {
			err = enc.Encode(jsonLine{r.ID, r.Function, p.Line.Time, p.Line.Text, p.Line.Partial})
		} else {
			err = o.text(out, p.Line, r.ID, width, len(all) > 1)
		}
		if err == nil && o.follow {
			err = out.Flush()
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(append(failed, out.Flush())...)
}

type jsonLine struct {
	Instance string    `json:"instance"`
	Function string    `json:"function"`
	Time     time.Time `json:"time"`
	Text     string    `json:"text"`
	Partial  bool      `json:"partial,omitempty"`
}

// text writes a line for people. A part of a long line has an end of its own
// where other instances' lines may come between.
func (o *logsOptions) text(w *bufio.Writer, line ports.LogLine, id string, width int, several bool) error {
	if several {
		fmt.Fprintf(w, "%-*s | ", width, id)
	}
	if o.timestamps {
		fmt.Fprintf(w, "%s ", line.Time.Format("2006-01-02T15:04:05.000000000Z07:00"))
	}
	_, err := w.WriteString(line.Text)
	if err == nil && (several || o.timestamps || !line.Partial) {
		err = w.WriteByte('\n')
	}
	return err
}

// lastLine is the last that an instance printed, for a cell of a table.
func lastLine(ctx context.Context, s ports.Starter, r instance.Record) string {
	const longest = 80
	text, _ := ports.Text(s.Logs(ctx, r, ports.LogOptions{Tail: 1})) // there may be none
	var out []rune
	for _, c := range strings.TrimSpace(string(text)) {
		if !unicode.IsPrint(c) {
			c = ' '
		}
		if out = append(out, c); len(out) == longest {
			return string(out) + "…"
		}
	}
	return string(out)
}
