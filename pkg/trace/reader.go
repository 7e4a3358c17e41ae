package trace

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Reader streams a trace in either layout.
type Reader struct {
	lines         *lines
	names         *Names
	header        []string
	place         [2]int // columns of the function and of the time
	column        [2]string
	last          time.Duration
	minute        *minutes // the per-minute layout, read completely
	allowUnsorted bool     // times need not be in order
	conflict      string   // a note if the header has the function's column under both names
}

// open begins to read a trace; name is the file's name in messages. Errors have the form
// FILE:LINE: COLUMN: problem, expectation. In the per-minute layout, the seed determines
// the times of the invocations within their minutes.
func open(r io.Reader, name string, names *Names, seed uint64) (*Reader, error) {
	in := &Reader{lines: newLines(r, name), names: names}
	start, _ := in.lines.in.Peek(256) // fewer bytes if the file is shorter; a read error recurs later
	if err := csvfile.RefuseJSON(start, name); err != nil {
		return nil, err
	}
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
	in.conflict = conflictNote(in.header, name, alternativeNames[0])
	in.column = [2]string{columnName(in.header, "function", "func_name"), "invoke_time_ms"}
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

// Note returns a note for the user if a column has two names, or if several lines of the
// per-minute layout are for one function and are added. It is empty otherwise.
func (r *Reader) Note() string {
	switch {
	case r.conflict != "":
		return r.conflict
	case r.minute == nil || r.minute.repeatedLines == 0:
		return ""
	case r.minute.repeatedLines == 1:
		return r.minute.repeatNote + ": the counts of both lines are added"
	}
	return fmt.Sprintf("%s: the counts of both lines are added, and also of %d more lines", r.minute.repeatNote, r.minute.repeatedLines-1)
}

// Next returns the next invocation, or io.EOF. If a time is before the previous one, it
// returns an error for which IsUnsorted is true.
func (r *Reader) Next() (Row, error) {
	if r.minute != nil {
		return r.minute.next()
	}
	fields, err := r.record()
	if err != nil {
		return Row{}, err
	}
	var row Row
	for i, column := range r.column {
		cell := fields[r.place[i]]
		switch {
		case len(cell) == 0:
			err = errors.New("the cell is empty, expected a value")
		case i == 0:
			row.Function, err = r.names.number(cell)
		default:
			row.At, err = millis(cell)
		}
		if err != nil {
			return Row{}, r.fault(column, "%v", err)
		}
	}
	if row.At < r.last && !r.allowUnsorted {
		return Row{}, &unsortedError{r.fault("invoke_time_ms", "earlier than on the previous line, expected ascending times")}
	}
	r.last = row.At
	return row, nil
}

// record returns the fields of the next line, which must be as many as in the header.
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

// maxRows is the number of invocations that can be sorted in memory: 2.4 GB.
const maxRows = 100_000_000

// ReadAll reads a whole trace and sorts it by time, stably; sorted reports whether it was
// in order already.
func ReadAll(r io.Reader, name string, names *Names, seed uint64) (rows []Row, sorted bool, err error) {
	in, err := open(r, name, names, seed)
	if err != nil {
		return nil, false, err
	}
	in.allowUnsorted = true
	for {
		row, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
		if len(rows) == maxRows {
			return nil, false, in.fault("", "more than %d invocations in a trace that is not in the order of time", maxRows)
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

// List implements Rows for rows in memory.
type List struct {
	rows []Row
	next int
}

// NewList returns a List of rows, which must be in the order of time.
func NewList(rows []Row) *List { return &List{rows: rows} }

// Next returns the next row, or io.EOF.
func (l *List) Next() (Row, error) {
	if l.next == len(l.rows) {
		return Row{}, io.EOF
	}
	l.next++
	return l.rows[l.next-1], nil
}

// count parses the number of invocations of a minute.
func count(cell []byte) (int64, error) {
	if len(cell) == 0 {
		return 0, nil
	}
	n, err := csvfile.Count(string(cell), 0)
	if err == nil && n > maxCount {
		err = fmt.Errorf("%d invocations in a minute, expected at most %d", n, maxCount)
	}
	return n, err
}

// lines reads a CSV file record by record, with one buffer.
type lines struct {
	in        *bufio.Reader
	name      string
	line      int // line in which the last record begins
	linesRead int // number of lines read
	long      []byte
	fields    [][]byte
}

func newLines(r io.Reader, name string) *lines {
	return &lines{in: bufio.NewReaderSize(r, 1<<18), name: name}
}

// next returns the next record that is not blank. Its fields are valid until the following
// call.
func (l *lines) next() ([][]byte, error) {
	for {
		text, err := l.read(l.long[:0])
		if err != nil {
			return nil, err
		}
		l.line = l.linesRead
		if l.line == 1 {
			text = bytes.TrimPrefix(text, []byte("\uFEFF"))
		}
		if len(text) == 0 {
			continue
		}
		if bytes.IndexByte(text, '"') >= 0 {
			return l.quoted(text)
		}
		l.fields = l.fields[:0]
		for {
			i := bytes.IndexByte(text, ',')
			if i < 0 {
				l.fields = append(l.fields, trim(text))
				return l.fields, nil
			}
			l.fields = append(l.fields, trim(text[:i]))
			text = text[i+1:]
		}
	}
}

// read appends one line to before, without its line end. If before is empty and the line
// fits, the result is in the reader's own buffer.
func (l *lines) read(before []byte) ([]byte, error) {
	text, err := l.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || len(before) > 0 {
		l.long = append(before, text...)
		for errors.Is(err, bufio.ErrBufferFull) && len(l.long) <= textfile.MaxLine {
			text, err = l.in.ReadSlice('\n')
			l.long = append(l.long, text...)
		}
		text = l.long
	}
	switch {
	case len(text) > textfile.MaxLine:
		return nil, fault(l.name, l.linesRead+1, "", "the line is longer than %d bytes", textfile.MaxLine)
	case errors.Is(err, io.EOF) && len(text) == len(before):
		return nil, io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read %s: %w", l.name, err)
	}
	l.linesRead++
	if !isText(text[len(before):]) {
		return nil, fault(l.name, 1, "", "not a text file, expected CSV in UTF-8")
	}
	text = bytes.TrimSuffix(text, []byte("\n"))
	return bytes.TrimSuffix(text, []byte("\r")), nil
}

// quoted reads a record with quotes. It spans further lines while the number of quotes is
// odd.
func (l *lines) quoted(text []byte) ([][]byte, error) {
	whole := append([]byte(nil), text...)
	for quotes := bytes.Count(whole, []byte(`"`)); quotes%2 == 1; {
		more, err := l.read(l.long[:0])
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		quotes += bytes.Count(more, []byte(`"`))
		if whole = append(append(whole, '\n'), more...); len(whole) > textfile.MaxLine {
			return nil, fault(l.name, l.line, "", "the record, which continues on further lines because of its quotes, is longer than %d bytes", textfile.MaxLine)
		}
	}
	in := csv.NewReader(bytes.NewReader(whole))
	in.FieldsPerRecord = -1
	record, err := in.Read()
	if errors.Is(err, csv.ErrBareQuote) {
		return nil, fault(l.name, l.line, "", `a quote inside an unquoted field, expected "like ""this"""`)
	}
	if err != nil {
		return nil, fault(l.name, l.line, "", "a quoted field without an end, expected a closing quote before the comma")
	}
	l.fields = l.fields[:0]
	for _, cell := range record {
		l.fields = append(l.fields, trim([]byte(cell)))
	}
	return l.fields, nil
}

func trim(cell []byte) []byte {
	if len(cell) > 0 && cell[0] > ' ' && cell[0] < utf8.RuneSelf && cell[len(cell)-1] > ' ' && cell[len(cell)-1] < utf8.RuneSelf {
		return cell
	}
	return bytes.TrimSpace(cell)
}

// isText reports whether text is UTF-8 without zero bytes.
func isText(text []byte) bool {
	for _, c := range text {
		if c == 0 {
			return false
		}
		if c >= utf8.RuneSelf {
			return utf8.Valid(text) && bytes.IndexByte(text, 0) < 0
		}
	}
	return true
}

// Source is a trace file that can be read several times.
type Source struct {
	file *os.File
	name string
}

// OpenSource opens a trace file, or standard input for "-". It copies an input that cannot
// be read twice to an unlinked temporary file.
func OpenSource(path string) (*Source, error) {
	file, name := os.Stdin, textfile.Stdin
	if path != "-" {
		var err error
		if file, err = os.Open(path); err != nil {
			return nil, err
		}
		name = path
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a folder, expected a file", path)
	}
	if path != "-" && info.Mode().IsRegular() {
		return &Source{file: file, name: name}, nil
	}
	copied, err := spool(file, name)
	if path != "-" {
		file.Close()
	}
	var refused *textfile.Fault
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case err != nil:
		return nil, fmt.Errorf("copy %s: %w", name, err)
	}
	return &Source{file: copied, name: name}, nil
}

// maxSpool is the size limit of that copy, in bytes.
const maxSpool = 16 << 30

func spool(from io.Reader, name string) (*os.File, error) {
	file, err := os.CreateTemp("", "gfaas-trace-*")
	if err != nil {
		return nil, err
	}
	err = os.Remove(file.Name())
	if err == nil {
		check := &textfile.Checker{Name: name, Is: "CSV", Line: textfile.MaxLine, Total: maxSpool}
		_, err = io.Copy(io.MultiWriter(check, file), from)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Close closes the file.
func (s *Source) Close() error { return s.file.Close() }

// Rows streams the trace from its beginning. If times are not in order, it ends with an
// error for which IsUnsorted is true.
func (s *Source) Rows(names *Names, seed uint64) (*Reader, error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return open(s.file, s.name, names, seed)
}

// Sorted reads the whole trace and sorts it by time, stably.
func (s *Source) Sorted(names *Names, seed uint64) (*List, error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	rows, _, err := ReadAll(s.file, s.name, names, seed)
	return NewList(rows), err
}
