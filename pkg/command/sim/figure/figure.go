// Package figure compares results with expected results and with published figures. Read reads a
// file of expectations, Match adds the results, and SVG and Markdown print the rows; the command
// gfaas-sim figure and pkg/command/gendocs use them.
package figure

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Row is one quantity of a figure.
type Row struct {
	ID        string    // unique in the file
	Figure    string    // the figure, table or section of the publication
	Quantity  string    // the quantity in words
	Unit      string    // empty for plain numbers
	Theirs    Published // the published figure
	Ours      float64   // the expected result or, after Match, the result
	Tolerance float64   // the largest accepted difference from the expected result, as a fraction of it
	Reason    string    // why Ours differs from Theirs
	Expected  float64   // after Match: the expected result
	Line      int
}

// minus replaces the hyphen of a negative number in text for people.
const minus = "−"

var columns = []csvfile.Column[Row]{
	text("id", func(r *Row) *string { return &r.ID }),
	text("figure", func(r *Row) *string { return &r.Figure }),
	text("quantity", func(r *Row) *string { return &r.Quantity }),
	optional("unit", func(r *Row) *string { return &r.Unit }),
	{Name: "theirs", Set: func(r *Row, cell string) (err error) {
		r.Theirs, err = ParsePublished(cell)
		return err
	}, Print: func(r *Row) string { return r.Theirs.Text }},
	{Name: "ours", Required: true, Set: func(r *Row, cell string) (err error) {
		r.Ours, err = signed(cell)
		return err
	}, Print: func(r *Row) string { return rounded(r.Ours) }},
	{Name: "tolerance", Required: true, Set: func(r *Row, cell string) error {
		percent, found := strings.CutSuffix(cell, "%")
		v, err := csvfile.Number(percent)
		if !found {
			return fmt.Errorf("%s is not a percentage, expected one like 5%%", csvfile.Quote(cell))
		}
		r.Tolerance = v / 100
		return err
	}, Print: func(r *Row) string { return number.Trimmed(100*r.Tolerance, 4) + "%" }},
	optional("reason", func(r *Row) *string { return &r.Reason }),
}

func text(name string, field func(*Row) *string) csvfile.Column[Row] {
	c := optional(name, field)
	c.Required = true
	return c
}

// optional returns a column of text of any length.
func optional(name string, field func(*Row) *string) csvfile.Column[Row] {
	return csvfile.Column[Row]{Name: name,
		Set:   func(r *Row, cell string) error { *field(r) = cell; return nil },
		Print: func(r *Row) string { return *field(r) }}
}

// signed parses a number that may be negative.
func signed(cell string) (float64, error) {
	digits, negative := strings.CutPrefix(cell, "-")
	v, err := csvfile.Number(digits)
	if negative {
		v = -v
	}
	return v, err
}

// rounded returns a number with four significant digits, or all digits of its integer part.
func rounded(v float64) string {
	if math.Abs(v) >= 10000 {
		return number.Fixed(v, 0)
	}
	short, err := strconv.ParseFloat(number.Significant(v, 4), 64)
	if err != nil {
		return csvfile.Format(v)
	}
	return csvfile.Format(short)
}

// Read reads expectations (CSV: id,figure,quantity,unit,theirs,ours,tolerance,reason). name is the
// file's name in error messages.
func Read(r io.Reader, name string) ([]Row, error) {
	rows, err := csvfile.ReadWritten(r, name, columns, func(line int) Row { return Row{Line: line} })
	if err != nil {
		return nil, err
	}
	return rows, csvfile.Unique(rows, name, "id", func(r Row) (string, int) { return r.ID, r.Line })
}

// Write writes rows in the format that Read reads.
func Write(w io.Writer, rows []Row) error { return csvfile.Write(w, columns, rows) }

// Result is the result for one row.
type Result struct {
	ID    string
	Value float64
	Line  int
}

// ReadResults reads results (CSV: id,value). name is the file's name in error messages.
func ReadResults(r io.Reader, name string) ([]Result, error) {
	results, err := csvfile.ReadWritten(r, name, []csvfile.Column[Result]{
		csvfile.Required("id", csvfile.Name, func(r *Result) *string { return &r.ID }),
		csvfile.Required("value", signed, func(r *Result) *float64 { return &r.Value }),
	}, func(line int) Result { return Result{Line: line} })
	if err != nil {
		return nil, err
	}
	return results, csvfile.Unique(results, name, "id", func(r Result) (string, int) { return r.ID, r.Line })
}

// Match returns the rows with the results in Ours and the expectations in Expected. It returns an
// error that names every row without a result and every result without a row. resultsName is the
// name of the file with the results.
func Match(rows []Row, results []Result, resultsName string) ([]Row, error) {
	values := map[string]Result{}
	for _, r := range results {
		values[r.ID] = r
	}
	var faults []error
	matched := make([]Row, len(rows))
	for i, row := range rows {
		r, found := values[row.ID]
		if !found {
			faults = append(faults, fmt.Errorf("%s has no result for %s", resultsName, csvfile.Quote(row.ID)))
		}
		delete(values, row.ID)
		matched[i] = row
		matched[i].Ours, matched[i].Expected = r.Value, row.Ours
	}
	for _, r := range results {
		if _, unknown := values[r.ID]; unknown {
			faults = append(faults, &textfile.Fault{File: resultsName, Line: r.Line, Where: "id", What: csvfile.Quote(r.ID) + " is not expected"})
		}
	}
	return matched, errors.Join(faults...)
}

// Moved reports whether the result differs from the expected one by more than the tolerance. Rows
// must come from Match. Expectations have four significant digits, and the rounding does not count.
func (r Row) Moved() bool {
	return math.Abs(r.Ours-r.Expected) > (r.Tolerance+5e-4)*math.Abs(r.Expected)+1e-12
}

// WithUnit returns a number with the unit of the row, for people.
func (r Row) WithUnit(v float64) string {
	text := number.Short(v)
	if digits, negative := strings.CutPrefix(text, "-"); negative {
		text = minus + digits
	}
	return r.unit(text)
}

func (r Row) unit(text string) string {
	switch r.Unit {
	case "":
		return text
	case "%", "×":
		return text + r.Unit
	}
	return text + " " + r.Unit
}

// Published returns the published figure with its unit, or "" if there is none.
func (r Row) Published() string {
	if r.Theirs.Text == "" {
		return ""
	}
	return r.unit(strings.ReplaceAll(r.Theirs.Text, "-", minus))
}
