package cli

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
	"sigs.k8s.io/yaml"

	"github.com/gfaas/gfaas/pkg/lists"
)

// Show writes a value in the form of -o: json, jsonl, yaml, csv, table or wide. The function rows
// returns the table form, header first.
func (env *Env) Show(value any, rows func() [][]string) error {
	return env.Emit(func(w io.Writer) error {
		switch env.Output {
		case "json", "jsonl", "yaml":
			return env.Encode(w, value)
		case "csv":
			return csv.NewWriter(w).WriteAll(rows())
		}
		return Table(w, rows())
	})
}

// Encode writes a value as json, jsonl or yaml, according to -o.
func (env *Env) Encode(w io.Writer, value any) error {
	switch env.Output {
	case "jsonl":
		return jsonLines(w, value)
	case "yaml":
		text, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}

// jsonLines writes each element of a slice on its own line, and any other value on one line.
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

// mostLaidOut is the largest number of rows for tablewriter, which takes about 10 µs per row.
const mostLaidOut = 10000

// Table prints rows, header first, in columns two blanks apart. It replaces line feeds and tabs in
// cells by blanks.
func Table(w io.Writer, rows [][]string) error {
	switch {
	case len(rows) == 0:
		return nil
	case len(rows) > mostLaidOut:
		return longTable(w, rows)
	}
	none := tw.Border{Left: tw.Off, Right: tw.Off, Top: tw.Off, Bottom: tw.Off}
	lines := tw.Lines{ShowTop: tw.Off, ShowBottom: tw.Off, ShowHeaderLine: tw.Off, ShowFooterLine: tw.Off}
	seps := tw.Separators{BetweenColumns: tw.Off, BetweenRows: tw.Off}
	format := tw.CellConfig{
		Formatting: tw.CellFormatting{AutoFormat: tw.Off, AutoWrap: tw.WrapNone},
		Alignment:  tw.CellAlignment{Global: tw.AlignLeft},
		Padding:    tw.CellPadding{Global: tw.Padding{Right: "  "}},
	}
	var buf bytes.Buffer
	table := tablewriter.NewTable(&buf,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{Borders: none, Settings: tw.Settings{Lines: lines, Separators: seps}})),
		tablewriter.WithConfig(tablewriter.Config{Header: format, Row: format}),
	)
	clean := make([][]string, len(rows))
	for i, row := range rows {
		for _, cell := range row {
			clean[i] = append(clean[i], oneLine(cell))
		}
	}
	table.Header(clean[0])
	if err := table.Bulk(clean[1:]); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	if err := table.Render(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	// tablewriter also pads the last column; remove the trailing blanks.
	for line := range strings.Lines(buf.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// Summary prints pairs of a name and a text, one on each line, and a table below them.
func Summary(w io.Writer, lines [][2]string, rows [][]string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintf(w, "%-18s%s\n", line[0], line[1]); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return Table(w, rows)
}

// longTable prints tables of more than mostLaidOut rows without tablewriter, in the same layout.
func longTable(w io.Writer, rows [][]string) error {
	const between = 2
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	out := bufio.NewWriter(w)
	var line []byte
	for _, row := range rows {
		line = line[:0]
		for i, cell := range row {
			line = append(line, oneLine(cell)...)
			for range widths[i] + between - utf8.RuneCountInString(cell) {
				line = append(line, ' ')
			}
		}
		line = append(bytes.TrimRight(line, " "), '\n')
		if _, err := out.Write(line); err != nil {
			return fmt.Errorf("print table: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}

func oneLine(cell string) string {
	if !strings.ContainsAny(cell, "\n\r\t") {
		return cell
	}
	return strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(cell)
}

// Cell is a pair of a column's name and a cell's text.
type Cell [2]string

// Rows returns a table of items, column names first. The function cells returns the cells of an item;
// the columns must be the same for all items, including the zero T.
func Rows[T any](items []T, cells func(T) []Cell) [][]string {
	var zero T
	rows := [][]string{lists.Map(cells(zero), func(c Cell) string { return c[0] })}
	for _, item := range items {
		rows = append(rows, lists.Map(cells(item), func(c Cell) string { return c[1] }))
	}
	return rows
}

// OrDash returns the text of a known value, and a dash for an unknown one.
func OrDash(known bool, text string) string {
	if !known {
		return "-"
	}
	return text
}
