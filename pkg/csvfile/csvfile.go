// Package csvfile reads the project's CSV files. It finds columns by name, ignores unknown ones, and reports every
// fault with file, line and column (docs/files.md).
package csvfile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Column describes a column of a file and the part of a T that it sets.
type Column[T any] struct {
	Name     string
	Required bool // the header must have it, and no cell may be empty
	Sparse   bool // with Required: cells may be empty
	// Called lists wrong names that people use for the column. They are not accepted, but the error suggests the right name.
	Called []string
	// Set stores a cell that is not empty. Its error has the fault and the expectation.
	Set func(row *T, cell string) error
	// Print returns the cell of a row, for files that are also written (Record).
	Print func(row *T) string
}

// Field returns a column whose cells are stored, as parse converts them, in a field of the row.
func Field[T, V any](name string, parse func(cell string) (V, error), field func(row *T) *V) Column[T] {
	return Column[T]{Name: name, Set: func(row *T, cell string) (err error) {
		*field(row), err = parse(cell)
		return err
	}}
}

// Required returns a Field that is required.
func Required[T, V any](name string, parse func(cell string) (V, error), field func(row *T) *V) Column[T] {
	c := Field(name, parse, field)
	c.Required = true
	return c
}

// Header returns the names of the columns.
func Header[T any](columns []Column[T]) []string {
	return lists.Map(columns, func(c Column[T]) string { return c.Name })
}

// Record returns the cells of a row. All columns must have Print.
func Record[T any](columns []Column[T], row T) []string {
	return lists.Map(columns, func(c Column[T]) string { return c.Print(&row) })
}

// Write writes rows after a header. All columns must have Print.
func Write[T any](w io.Writer, columns []Column[T], rows []T) error {
	out := csv.NewWriter(w)
	_ = out.Write(Header(columns)) // Error returns the error
	for _, row := range rows {
		_ = out.Write(Record(columns, row))
	}
	out.Flush()
	return out.Error()
}

// MaxRows is the largest number of rows in a file.
const MaxRows = 4_000_000

// ReadAll reads a whole file without its byte-order mark. It fails if the file is too long, or cannot be a CSV file.
func ReadAll(r io.Reader, name string) ([]byte, error) {
	data, err := textfile.ReadAll(r, &textfile.Checker{Name: name, Is: "CSV", Line: textfile.MaxLine, Total: textfile.MaxFile})
	if err == nil {
		err = RefuseJSON(data, name)
	}
	return data, err
}

// RefuseJSON fails if a file begins like JSON.
func RefuseJSON(start []byte, name string) error {
	start = bytes.TrimSpace(bytes.TrimPrefix(start, []byte("\uFEFF")))
	if len(start) > 0 && (start[0] == '{' || start[0] == '[') {
		return &textfile.Fault{File: name, Line: 1, What: "the file is JSON, expected CSV: a line of column names, then a line for each row"}
	}
	return nil
}

// Read reads a whole file and returns the first fault as its error. name is the file's name in error messages. blank
// returns a row with the defaults of optional cells that are empty or absent; line is the number of the row's first line,
// and the header is line 1.
func Read[T any](r io.Reader, name string, columns []Column[T], blank func(line int) T) ([]T, error) {
	return readRows(r, name, columns, blank, false)
}

// ReadWritten reads a file that people write, as opposed to one that a command wrote. It is like Read, but adds a note
// about every ignored column, and not only about those that resemble a known column.
func ReadWritten[T any](r io.Reader, name string, columns []Column[T], blank func(line int) T) ([]T, error) {
	return readRows(r, name, columns, blank, true)
}

func readRows[T any](r io.Reader, name string, columns []Column[T], blank func(line int) T, noteAll bool) ([]T, error) {
	data, err := ReadAll(r, name)
	if err != nil {
		return nil, err
	}
	in := csv.NewReader(bytes.NewReader(data))
	in.FieldsPerRecord = -1
	in.ReuseRecord = true
	first, err := in.Read()
	if errors.Is(err, io.EOF) {
		return nil, &textfile.Fault{File: name, Line: 1, What: "the file is empty, expected the header " + required(columns)}
	}
	if err != nil {
		return nil, syntaxFault(err, name, nil, data)
	}
	header := lists.Map(first, strings.TrimSpace)
	if err := CheckHeader(header, name); err != nil {
		return nil, err
	}
	positions, err := locate(header, columns, name)
	if err != nil {
		return nil, err
	}
	noteIgnored(r, header, columns, name, noteAll)
	rows := []T{}
	for {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, syntaxFault(err, name, header, data)
		}
		if blankRow(record) {
			continue
		}
		line, _ := in.FieldPos(0)
		if len(rows) == MaxRows {
			return nil, &textfile.Fault{File: name, Line: line, What: fmt.Sprintf("the file has more than %d rows, expected at most that", MaxRows)}
		}
		if err := checkWidth(record, header, name, line); err != nil {
			return nil, err
		}
		row := blank(line)
		for i, c := range columns {
			if positions[i] < 0 {
				continue
			}
			if err := setCell(&row, c, record[positions[i]]); err != nil {
				line, _ := in.FieldPos(positions[i])
				return nil, &textfile.Fault{File: name, Line: line, Where: c.Name, What: err.Error()}
			}
		}
		rows = append(rows, row)
	}
}

// CheckHeader fails if the lines of a file have no line feeds, so that all of it would be the header, or if the cells have
// no commas between them.
func CheckHeader(header []string, name string) error {
	if slices.ContainsFunc(header, func(cell string) bool { return strings.Contains(cell, "\r") }) {
		return &textfile.Fault{File: name, Line: 1, What: "lines end in a carriage return alone, expected a line feed behind it"}
	}
	if len(header) == 1 && strings.ContainsAny(header[0], ";\t") {
		return &textfile.Fault{File: name, Line: 1, What: "there are semicolons or tabs between the cells, expected commas: export the table as CSV with commas and decimal points"}
	}
	return nil
}

// Lacks describes the fault that a column is missing. It suggests an existing column whose name is similar or one of called,
// the wrong names that people use.
func Lacks(header []string, column string, called ...string) string {
	what := "the header has no such column"
	for _, cell := range header {
		if textfile.Slip(cell, []string{column}) != "" || slices.Contains(called, strings.ToLower(cell)) {
			return what + " but " + Quote(cell)
		}
	}
	return what
}

// noteIgnored adds a note about each ignored column that resembles a missing column or begins like a known one. If all is
// true, it adds a note about each ignored column that has a name. Notes about columns that resemble a missing one appear
// even under --quiet: the name is probably misspelt, and its values would be lost without a word.
func noteIgnored[T any](file io.Reader, header []string, columns []Column[T], name string, all bool) {
	known := Header(columns)
	missing := absent(header, columns)
	for _, cell := range header {
		if slices.Contains(known, cell) {
			continue
		}
		meant := textfile.Slip(cell, missing)
		for _, c := range columns {
			if meant == "" && slices.Contains(missing, c.Name) && slices.Contains(c.Called, strings.ToLower(cell)) {
				meant = c.Name
			}
		}
		if meant == "" {
			meant = textfile.Begins(cell, missing)
		}
		const what = "%s:1: %s: not a column of this file, so it is ignored"
		switch {
		case meant != "":
			textfile.AlwaysNotef(file, what+": %s?", name, Quote(cell), meant)
		case all && cell != "", textfile.Begins(cell, known) != "":
			textfile.Notef(file, what, name, Quote(cell))
		}
	}
}

// absent returns the names of the columns that the header lacks.
func absent[T any](header []string, columns []Column[T]) []string {
	return lists.Filter(Header(columns), func(name string) bool { return !slices.Contains(header, name) })
}

// Unique returns a fault for the second of two rows with the same key, with both line numbers. column is named in the
// message. key returns the key and the line of a row; rows with an empty key are ignored.
func Unique[T any](rows []T, name, column string, key func(row T) (text string, line int)) error {
	seen := make(map[string]int, len(rows))
	for _, row := range rows {
		k, line := key(row)
		if k == "" {
			continue
		}
		if first, twice := seen[k]; twice {
			return &textfile.Fault{File: name, Line: line, Where: column,
				What: fmt.Sprintf("%s is on line %d already, expected each only once", Quote(k), first)}
		}
		seen[k] = line
	}
	return nil
}

// blankRow reports whether all cells of a line are empty, as in lines that spreadsheets write below a table.
func blankRow(record []string) bool {
	return len(record) > 1 && !slices.ContainsFunc(record, func(cell string) bool { return strings.TrimSpace(cell) != "" })
}

func setCell[T any](row *T, c Column[T], cell string) error {
	cell = strings.TrimSpace(cell)
	if cell == "" {
		if c.Required && !c.Sparse {
			return errors.New("the cell is empty, expected a value")
		}
		return nil
	}
	return c.Set(row, cell)
}

// locate returns each column's index in the header, or -1 for a missing optional column.
func locate[T any](header []string, columns []Column[T], name string) ([]int, error) {
	places := make([]int, len(columns))
	for i, c := range columns {
		places[i] = slices.Index(header, c.Name)
		if places[i] < 0 && c.Required {
			return nil, &textfile.Fault{File: name, Line: 1, Where: c.Name, What: Lacks(header, c.Name, c.Called...) + ", expected " + required(columns)}
		}
		if places[i] >= 0 && slices.Contains(header[places[i]+1:], c.Name) {
			return nil, &textfile.Fault{File: name, Line: 1, Where: c.Name, What: "the header has this column twice, expected once"}
		}
	}
	return places, nil
}

func checkWidth(record, header []string, name string, line int) error {
	switch {
	case len(record) < len(header):
		return &textfile.Fault{File: name, Line: line, Where: header[len(record)],
			What: fmt.Sprintf("missing: the line has %d of %d fields, expected a value", len(record), len(header))}
	case len(record) > len(header):
		return &textfile.Fault{File: name, Line: line,
			What: fmt.Sprintf("the line has %d fields, expected %d as in the header", len(record), len(header))}
	}
	return nil
}

func required[T any](columns []Column[T]) string {
	return strings.Join(Header(lists.Filter(columns, func(c Column[T]) bool { return c.Required })), ",")
}

// syntaxFault converts the CSV reader's error to a Fault. It names the line on which the record begins, because an
// unclosed quote extends to the end of the file, and the column if the header is known.
func syntaxFault(err error, name string, header []string, data []byte) error {
	var parse *csv.ParseError
	if !errors.As(err, &parse) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	f := &textfile.Fault{File: name, Line: parse.StartLine}
	switch {
	case errors.Is(parse.Err, csv.ErrBareQuote):
		f.What = `a quote inside a field that is not quoted, expected "like ""this"""`
	case errors.Is(parse.Err, csv.ErrQuote):
		f.What = `a quoted field that does not end, expected a closing quote before the comma`
	default:
		f.What = parse.Err.Error()
	}
	if field := fieldAt(data, parse); field < len(header) {
		f.Where = header[field]
	}
	return f
}

// fieldAt returns the number of commas outside quotes between the record's begin and the error.
func fieldAt(data []byte, parse *csv.ParseError) int {
	for line := 1; line < parse.StartLine; line++ {
		data = data[bytes.IndexByte(data, '\n')+1:]
	}
	line, column, field, quoted := parse.StartLine, 1, 0, false
	for _, b := range data {
		if line == parse.Line && column >= parse.Column || line > parse.Line {
			break
		}
		column++
		switch {
		case b == '\n':
			line, column = line+1, 1
		case b == '"':
			quoted = !quoted
		case b == ',' && !quoted:
			field++
		}
	}
	return field
}
