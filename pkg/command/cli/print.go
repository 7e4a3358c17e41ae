package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
	"github.com/schollz/progressbar/v3"
	"sigs.k8s.io/yaml"
)

// Write sends a command's output to standard output or, whole or not at all,
// to --out-file.
func (env *Env) Write(data []byte) error { return env.WriteTo(env.OutFile, data) }

// Target follows links to the file that is to be written and says whether it
// can be replaced: renaming over a device, a pipe, or what the system shows
// under /dev and /proc would destroy it.
func Target(path string) (target string, replace bool) {
	const mostLinks = 40
	for range mostLinks {
		full, err := filepath.Abs(path)
		if err != nil || strings.HasPrefix(full, "/dev/") || strings.HasPrefix(full, "/proc/") {
			return path, false
		}
		next, err := os.Readlink(path)
		if err != nil {
			there, err := os.Stat(path)
			return path, err != nil || there.Mode().IsRegular()
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(filepath.Dir(path), next)
		}
		path = next
	}
	return path, false // a loop: writing says so
}

// Emit writes what print prints, as Write does.
func (env *Env) Emit(print func(io.Writer) error) error {
	var buf bytes.Buffer
	if err := print(&buf); err != nil {
		return err
	}
	return env.Write(buf.Bytes())
}

// Show writes a value in the form that -o chose among json, jsonl, yaml, csv,
// table and wide. Rows is its table form, header first.
func (env *Env) Show(value any, rows func() [][]string) error {
	return env.Emit(func(w io.Writer) error {
		switch env.Output {
		case "json":
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			return enc.Encode(value)
		case "jsonl":
			return jsonLines(w, value)
		case "yaml":
			text, err := yaml.Marshal(value)
			if err != nil {
				return err
			}
			_, err = w.Write(text)
			return err
		case "csv":
			return csv.NewWriter(w).WriteAll(rows())
		}
		return Table(w, rows())
	})
}

// jsonLines writes each element of a list on a line of its own; any other
// value on one line.
func jsonLines(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	list := reflect.ValueOf(value)
	if list.Kind() != reflect.Slice || list.Type().Elem().Kind() == reflect.Uint8 {
		return enc.Encode(value)
	}
	for i := range list.Len() {
		if err := enc.Encode(list.Index(i).Interface()); err != nil {
			return err
		}
	}
	return nil
}

// Table prints rows, header first, in columns.
func Table(w io.Writer, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	none := tw.Border{Left: tw.Off, Right: tw.Off, Top: tw.Off, Bottom: tw.Off}
	lines := tw.Lines{ShowTop: tw.Off, ShowBottom: tw.Off, ShowHeaderLine: tw.Off, ShowFooterLine: tw.Off}
	seps := tw.Separators{BetweenColumns: tw.Off, BetweenRows: tw.Off}
	cell := tw.CellConfig{
		Formatting: tw.CellFormatting{AutoFormat: tw.Off, AutoWrap: tw.WrapNone},
		Alignment:  tw.CellAlignment{Global: tw.AlignLeft},
		Padding:    tw.CellPadding{Global: tw.Padding{Right: "  "}},
	}
	var buf bytes.Buffer
	table := tablewriter.NewTable(&buf,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{Borders: none, Settings: tw.Settings{Lines: lines, Separators: seps}})),
		tablewriter.WithConfig(tablewriter.Config{Header: cell, Row: cell}),
	)
	table.Header(rows[0])
	if err := table.Bulk(rows[1:]); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	if err := table.Render(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	// The last column is padded too; blanks at a line's end help nobody.
	for line := range strings.Lines(buf.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// Progress is a bar with the time left, on standard error when that is a
// terminal and --quiet was not given; otherwise it shows nothing.
func (env *Env) Progress(total int, what string) *progressbar.ProgressBar {
	out := io.Discard
	if env.ErrTerminal && !env.Quiet {
		out = env.Err
	}
	bar := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionEnableColorCodes(false),
	)
	if out != io.Discard {
		env.bar = bar
	}
	return bar
}

// clear takes away what a bar shows, for a message to have the line.
func (env *Env) clear() {
	if env.bar != nil {
		_ = env.bar.Clear()
	}
}

// Deadline is for work that ends at a limit of time at the latest: over says
// whether it has come, and shows how long it has been since start, when that is
// a second or more. Done ends what is shown.
func (env *Env) Deadline(start time.Time, limit time.Duration, what string) (over func() bool, done func()) {
	bar := env.Progress(max(int(limit/time.Second), 1), what+", seconds")
	shown := 0
	over = func() bool {
		passed := time.Since(start)
		if s := int(passed / time.Second); s > shown && passed < limit {
			shown = s
			_ = bar.Set(s)
		}
		return passed >= limit
	}
	return over, func() {
		if shown > 0 {
			_ = bar.Finish()
		}
	}
}

// Count is a number of things in words: 1 GPU, 2 GPUs.
func Count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
