package trace

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Reader streams a trace in either layout.
type Reader struct {
	lines  *lines
	names  *Names
	header []string
	place  [2]int // of the function and of the time
	column [2]string
	last   time.Duration
	minute *minutes // the per-minute layout, read whole
	loose  bool     // times need not be in order
}

// Open begins to read a trace; name is what messages call it. The first fault
// is an error of the form FILE:LINE: COLUMN: what is wrong, what was expected.
// In the per-minute layout invocations fall anywhere within their minute, by
// the seed.
func Open(r io.Reader, name string, names *Names, seed uint64) (*Reader, error) {
	in := &Reader{lines: newLines(r, name), names: names}
	first, err := in.lines.next()
	if errors.Is(err, io.EOF) {
		return nil, fault(name, 1, "", "the file is empty, expected the header function,invoke_time_ms")
	}
	if err != nil {
		return nil, err
	}
	for _, cell := range first {
		in.header = append(in.header, string(cell))
	}
	if err := csvfile.CheckHeader(in.header, name); err != nil {
		return nil, err
	}
	if slices.Contains(in.header, "HashFunction") {
		in.minute, err = readMinutes(in, seed)
		return in, err
	}
	in.column = [2]string{either(in.header, "function", "func_name"), "invoke_time_ms"}
	for i, column := range in.column {
		in.place[i] = slices.Index(in.header, column)
		if in.place[i] < 0 {
			return nil, fault(name, in.lines.line, column,
				"%s, expected function,invoke_time_ms or the per-minute layout (HashFunction,1,2,…)", csvfile.Lacks(in.header, column))
		}
		if slices.Contains(in.header[in.place[i]+1:], column) {
			return nil, fault(name, in.lines.line, column, "the header has this column twice, expected once")
		}
	}
	return in, nil
}

// Repeated says that a trace of counts a minute has several lines of one
// function, which are added; empty when it has not.
func (r *Reader) Repeated() string {
	switch {
	case r.minute == nil || r.minute.more == 0:
		return ""
	case r.minute.more == 1:
		return r.minute.again + ": the counts of both lines are added"
	}
	return fmt.Sprintf("%s: the counts of both lines are added, and so those of %d more", r.minute.again, r.minute.more-1)
}

// Next is the next invocation, or io.EOF. A time before the last one is an
// error that IsUnsorted tells.
func (r *Reader) Next() (Row, error) {
	if r.minute != nil {
		return r.minute.next()
	}
	fields, err := r.record()
	if err != nil {
		return Row{}, err
	}
	var row Row
	cell := fields[r.place[0]]
	if len(cell) == 0 {
		return Row{}, r.fault(r.column[0], "the cell is empty, expected a value")
	}
	if row.Function, err = r.names.find(cell); err != nil {
		return Row{}, r.fault(r.column[0], "%v", err)
	}
	cell = fields[r.place[1]]
	if len(cell) == 0 {
		return Row{}, r.fault(r.column[1], "the cell is empty, expected a value")
	}
	ok := false
	if row.At, ok = plainMillis(cell); !ok {
		if row.At, err = millis(string(cell)); err != nil {
			return Row{}, r.fault(r.column[1], "%v", err)
		}
	}
	if row.At < r.last && !r.loose {
		return Row{}, &unsortedError{File: r.lines.name, Line: r.lines.line}
	}
	r.last = row.At
	return row, nil
}

// record is the next line, of as many fields as the header.
func (r *Reader) record() ([][]byte, error) {
	fields, err := r.lines.next()
	switch {
	case err != nil:
		return nil, err
	case len(fields) < len(r.header):
		return nil, r.fault(r.header[len(fields)], "missing: the line has %d of %d fields, expected a value", len(fields), len(r.header))
	case len(fields) > len(r.header):
		return nil, r.fault("", "the line has %d fields, expected %d as in the header", len(fields), len(r.header))
	}
	return fields, nil
}

func (r *Reader) fault(column, format string, args ...any) error {
	return fault(r.lines.name, r.lines.line, column, format, args...)
}

// ReadAll reads a whole trace and sorts it by time, stably; sorted says
// whether it was in order already.
func ReadAll(r io.Reader, name string, names *Names, seed uint64) (rows []Row, sorted bool, err error) {
	in, err := Open(r, name, names, seed)
	if err != nil {
		return nil, false, err
	}
	in.loose = true
	for {
		row, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
		rows = append(rows, row)
	}
	byTime := func(a, b Row) int { return int(min(max(a.At-b.At, -1), 1)) }
	sorted = slices.IsSortedFunc(rows, byTime)
	if !sorted {
		slices.SortStableFunc(rows, byTime)
	}
	return rows, sorted, nil
}

// List is rows in memory as Rows.
type List struct {
	rows []Row
	next int
}

// NewList streams rows that are in order of time.
func NewList(rows []Row) *List { return &List{rows: rows} }

// Next is the next row, or io.EOF.
func (l *List) Next() (Row, error) {
	if l.next == len(l.rows) {
		return Row{}, io.EOF
	}
	l.next++
	return l.rows[l.next-1], nil
}

// count reads how many invocations a minute had.
func count(cell []byte) (int64, error) {
	if len(cell) == 0 {
		return 0, nil
	}
	return csvfile.Count(string(cell), 0)
}
