// Package csvfile reads the project's CSV files: columns are found by name,
// unknown ones are ignored, and every fault names its file, line and column
// (docs/files.md).
package csvfile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// Column says how one column of a file becomes part of a T.
type Column[T any] struct {
	Name     string
	Required bool // the header must have it and no cell may be empty
	Sparse   bool // with Required: cells may be empty all the same
	// Called are other names that people give to it. They are not read, but told of.
	Called []string
	// Set stores a cell that is not empty; its error says what is wrong and
	// what was expected.
	Set func(row *T, cell string) error
}

// MaxRows is how many rows a file may have.
const MaxRows = 4_000_000

// ReadAll reads a file whole, and refuses while it does what cannot be a CSV file
// or is too long. Its byte-order mark is left out.
func ReadAll(r io.Reader, name string) ([]byte, error) {
	data, err := textfile.ReadAll(r, &textfile.Checker{Name: name, Is: "CSV", Line: textfile.MaxLine, Total: textfile.MaxFile})
	if err == nil {
		err = RefuseJSON(data, name)
	}
	return data, err
}

// RefuseJSON fails if a file begins as JSON does.
func RefuseJSON(start []byte, name string) error {
	start = bytes.TrimSpace(bytes.TrimPrefix(start, []byte("\uFEFF")))
	if len(start) > 0 && (start[0] == '{' || start[0] == '[') {
		return &textfile.Fault{File: name, Line: 1, What: "the file is JSON, expected CSV: a line of column names, then a line for each row"}
	}
	return nil
}

// Row is one line of a file as a T. Line is where the line begins; the header
// is line 1.
type Row[T any] struct {
	Value T
	Line  int
}

// Read reads a whole file, stopping at its first fault; name is what messages
// call the file. A cell that may be empty or absent, and is, leaves the row as
// blank made it.
func Read[T any](r io.Reader, name string, columns []Column[T], blank func() T) ([]Row[T], error) {
	return readRows(r, name, columns, blank, false)
}

// ReadWritten reads a file that people write, as Read does, with a note about each
// column that is ignored.
func ReadWritten[T any](r io.Reader, name string, columns []Column[T], blank func() T) ([]Row[T], error) {
	return readRows(r, name, columns, blank, true)
}

func readRows[T any](r io.Reader, name string, columns []Column[T], blank func() T, noteAll bool) ([]Row[T], error) {
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
	header := trimAll(first)
	if err := CheckHeader(header, name); err != nil {
		return nil, err
	}
	places, err := locate(header, columns, name)
	if err != nil {
		return nil, err
	}
	noteIgnored(r, header, columns, name, noteAll)
	var rows []Row[T]
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
		row := Row[T]{Value: blank()}
		row.Line, _ = in.FieldPos(0)
		if len(rows) == MaxRows {
			return nil, &textfile.Fault{File: name, Line: row.Line, What: fmt.Sprintf("the file has more than %d rows, expected at most that", MaxRows)}
		}
		if err := checkWidth(record, header, name, row.Line); err != nil {
			return nil, err
		}
		for i, c := range columns {
			if places[i] < 0 {
				continue
			}
			if err := setCell(&row.Value, c, record[places[i]]); err != nil {
				line, _ := in.FieldPos(places[i])
				return nil, &textfile.Fault{File: name, Line: line, Where: c.Name, What: err.Error()}
			}
		}
		rows = append(rows, row)
	}
}

// CheckHeader refuses a file whose lines have no line feeds, so that all of it
// would be the header, and one whose cells have no commas between them.
func CheckHeader(header []string, name string) error {
	if slices.ContainsFunc(header, func(cell string) bool { return strings.Contains(cell, "\r") }) {
		return &textfile.Fault{File: name, Line: 1, What: "lines end in a carriage return alone, expected a line feed behind it"}
	}
	if len(header) == 1 && strings.ContainsAny(header[0], ";\t") {
		return &textfile.Fault{File: name, Line: 1, What: "there are semicolons or tabs between the cells, expected commas: export the table as CSV with commas and decimal points"}
	}
	return nil
}

// Lacks says that a header has no such column, and what it has that may be meant
// to be it; called are other names for it.
func Lacks(header []string, column string, called ...string) string {
	what := "the header has no such column"
	for _, cell := range header {
		if textfile.Slip(cell, []string{column}) != "" || slices.Contains(called, strings.ToLower(cell)) {
			return what + " but " + Quote(cell)
		}
	}
	return what
}

// noteIgnored tells of each column that is none and looks like one that is not there,
// or begins like one: it is ignored, as every unknown column is, and perhaps should
// not be. With all it tells of every one that has a name.
func noteIgnored[T any](file io.Reader, header []string, columns []Column[T], name string, all bool) {
	var known []string
	for _, c := range columns {
		known = append(known, c.Name)
	}
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
			textfile.Notef(file, what+": %s?", name, Quote(cell), meant)
		case all && cell != "", textfile.Begins(cell, known) != "":
			textfile.Notef(file, what, name, Quote(cell))
		}
	}
}

// absent are the names of the columns that the header has not.
func absent[T any](header []string, columns []Column[T]) []string {
	var names []string
	for _, c := range columns {
		if !slices.Contains(header, c.Name) {
			names = append(names, c.Name)
		}
	}
	return names
}

// Unique reports the second of two rows with the same key, naming both lines;
// column is the one the message is about.
func Unique[T any](rows []Row[T], name, column string, key func(T) string) error {
	seen := make(map[string]int, len(rows))
	for _, row := range rows {
		k := key(row.Value)
		if k == "" {
			continue
		}
		if first, twice := seen[k]; twice {
			return &textfile.Fault{File: name, Line: row.Line, Where: column,
				What: fmt.Sprintf("%s is on line %d already, expected each only once", Quote(k), first)}
		}
		seen[k] = row.Line
	}
	return nil
}

// blankRow says that a line has cells and all are empty, as spreadsheets write
// them below a table.
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

// locate finds each column's place in the header, -1 for an optional one that
// is not there.
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
	var names []string
	for _, c := range columns {
		if c.Required {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ",")
}

func trimAll(cells []string) []string {
	out := make([]string, len(cells))
	for i, cell := range cells {
		out[i] = strings.TrimSpace(cell)
	}
	return out
}

// syntaxFault turns the CSV reader's error into a Fault. It names the line the
// record begins on, since a quote that is never closed swallows the rest of
// the file, and the column when the header is known.
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

// fieldAt counts the commas outside quotes between the record's begin and the
// place of the error.
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
