package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
	"sigs.k8s.io/yaml"
)

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

// Count is a number of things in words: 1 GPU, 2 GPUs.
func Count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
