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
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/rollout"
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
		Short: "Print the output of instances",
		Long: `Print what instances have written to standard output and standard error. A NAME
is the id of an instance, or the name of a function, which stands for all its
instances. The lines of several instances are sorted by time, and each begins with
the id of its instance.

The last 8 to 16 MiB of the output of each instance are kept until gfaas down, even
if the instance has ended. The output of a process is stored next to the state file.
Docker stores the output of a container; how much it keeps depends on the logging
driver of the container. If a disk was full or too slow, a line reports how much output
is missing.

If a start of a function failed, the command also prints the last 10,000 lines of the
latest failed start. They are kept until gfaas down or gfaas rm, or until an instance
with the same id runs.

With --follow, the command continues with new lines until the instances have
ended. The lines of several instances are then printed as they arrive.

A line of -o jsonl is {"instance", "function", "time", "text"}. It also has
"partial" if the line is longer than 16 KiB and continues in the next line of the
same instance.`,
		Example: `  # Print the output of all instances of a function
  gfaas logs resnet

  # Print the last 20 lines of one instance, and continue with new ones
  gfaas logs resnet-0 -f --tail 20

  # Print the output of the last 10 minutes as JSON
  gfaas logs resnet --since 10m -o jsonl`,
		ValidArgsFunction: t.completeInstances,
		Args:              cobra.MinimumNArgs(1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args) },
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "continue with new output")
	f.IntVarP(&o.tail, "tail", "n", -1, "number of last lines to print of each instance; -1 for all")
	f.StringVar(&o.since, "since", "", "print only output since this time, like 2026-01-02T15:04:05Z, or since this long ago, like 10m")
	f.BoolVarP(&o.timestamps, "timestamps", "t", false, "begin each line with its time")
	t.env.Outputs(cmd, "text", "jsonl")
	return cmd
}

func (o *logsOptions) run(ctx context.Context, t *tool, names []string) error {
	options, err := o.options(time.Now())
	if err != nil {
		return err
	}
	if o.follow && t.env.OutFile != "" && t.env.OutFile != "-" {
		return cli.Usagef("--follow has no end, but --out-file is written at the end: redirect standard output instead")
	}
	state, err := t.store.List(ctx)
	if err != nil {
		return err
	}
	failed := failedOf(t.runDir, names, state.Instances)
	records, err := rollout.Select(state.Instances, names, func(name string) bool {
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
	logs := lists.Map(records, func(r instance.Record) ports.LogLines { return launcher.Logs(ctx, r, options) })
	for _, f := range failed {
		t.env.Notef("note: %s did not start; its output is included", f.ID)
		records = append(records, instance.Record{ID: f.ID, Function: f.Function})
		logs = append(logs, f.Logs(ctx, options))
	}
	switch {
	case o.follow:
		return o.print(t.env.Out, t.env.Output, records, launch.AsTheyCome(logs))
	case t.env.OutFile != "":
		return t.env.Emit(func(w io.Writer) error { return o.print(w, t.env.Output, records, launch.Merged(logs)) })
	}
	return o.print(t.env.Out, t.env.Output, records, launch.Merged(logs))
}

// failedOf returns the failed starts with the given IDs or functions, or all if there are no names. It
// omits IDs that an instance has now.
func failedOf(runDir string, names []string, instances []instance.Record) []host.FailedStart {
	return slices.DeleteFunc(host.FailedStarts(runDir), func(f host.FailedStart) bool {
		return len(names) > 0 && !slices.Contains(names, f.ID) && !slices.Contains(names, f.Function) ||
			slices.ContainsFunc(instances, func(r instance.Record) bool { return r.ID == f.ID })
	})
}

// failedStarts returns the failed starts of a function in the gateway's form.
func failedStarts(runDir, function string) []gateway.FailedStart {
	failed := lists.Filter(host.FailedStarts(runDir), func(f host.FailedStart) bool { return f.Function == function })
	return lists.Map(failed, func(f host.FailedStart) gateway.FailedStart { return gateway.FailedStart{ID: f.ID, Logs: f.Logs} })
}

// options converts the flags to options. Durations in --since count back from now.
func (o *logsOptions) options(now time.Time) (options ports.LogOptions, err error) {
	options = ports.LogOptions{Tail: o.tail, Follow: o.follow}
	if o.tail < -1 {
		return options, cli.Usagef("--tail %d: expected 0 or more, or -1 for all", o.tail)
	}
	if o.since == "" {
		return options, nil
	}
	if d, err := time.ParseDuration(o.since); err == nil && d >= 0 {
		options.Since = now.Add(-d)
		return options, nil
	}
	if options.Since, err = time.Parse(time.RFC3339Nano, o.since); err != nil {
		err = cli.Usagef("--since %q: expected a duration like 10m, or a time like 2026-01-02T15:04:05Z", o.since)
	}
	return options, err
}

// print writes the lines of the logs of all records. If reading a log fails, it continues with the others.
func (o *logsOptions) print(w io.Writer, form string, records []instance.Record, lines iter.Seq2[launch.Printed, error]) error {
	buffered := bufio.NewWriter(w)
	width := 0
	for _, r := range records {
		width = max(width, len(r.ID))
	}
	enc := json.NewEncoder(buffered)
	enc.SetEscapeHTML(false)
	var failed []error
	for p, err := range lines {
		r := records[p.From]
		if err != nil {
			failed = append(failed, fmt.Errorf("instance %s: %w", r.ID, err))
			continue
		}
		if form == "jsonl" {
			err = enc.Encode(jsonLine{r.ID, r.Function, p.Line.Time, p.Line.Text, p.Line.Partial})
		} else {
			err = o.text(buffered, p.Line, r.ID, width, len(records) > 1)
		}
		if err == nil && o.follow {
			err = buffered.Flush()
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(append(failed, buffered.Flush())...)
}

type jsonLine struct {
	Instance string    `json:"instance"`
	Function string    `json:"function"`
	Time     time.Time `json:"time"`
	Text     string    `json:"text"`
	Partial  bool      `json:"partial,omitempty"`
}

// text writes a line for people. With several logs or timestamps, it also ends each part of a long
// line with a line feed, because lines of other instances may follow.
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

// lastLine returns the last line of an instance's output, cut to fit into a table's cell.
func lastLine(ctx context.Context, s ports.Starter, r instance.Record) string {
	const longest = 80
	text, _ := ports.Text(s.Logs(ctx, r, ports.LogOptions{Tail: 1})) // empty after an error
	var line []rune
	for _, c := range strings.TrimSpace(string(text)) {
		if !unicode.IsPrint(c) {
			c = ' '
		}
		if line = append(line, c); len(line) == longest {
			return string(line) + "…"
		}
	}
	return string(line)
}
