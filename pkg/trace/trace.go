// Package trace reads and writes traces of invocations and what functions cost
// (docs/files.md). Traces stream: a reader holds a buffer and the names of the
// functions, however long the trace is.
package trace

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Function is what invocations of one function cost (docs/simulation.md, R3).
type Function struct {
	Name   string
	Warm   time.Duration // an invocation whose container is warm and whose memory is on the GPU
	Cold   time.Duration // the whole of an invocation that starts a new container
	Load   time.Duration // extra when the memory is on the host; also what a model takes to upload
	MemMiB float64       // GPU memory
	Weight float64       // share of the GPU beside others', above 0
	Tenant string
	Model  string // functions of one model share it; the function's own name unless given
	Line   int    // line in the file it came from
}

// Row is one invocation of a trace.
type Row struct {
	At       time.Duration // since the trace's zero
	Function int32         // index into the names the reader knows
}

// Rows is a trace in order of time. Next ends with io.EOF.
type Rows interface {
	Next() (Row, error)
}

// unsortedError is the error of a streaming reader that met an invocation
// earlier than the one before it.
type unsortedError struct {
	File string
	Line int
}

func (e *unsortedError) Error() string {
	return fmt.Sprintf("%s:%d: invoke_time_ms: earlier than on the line before, expected times in order", e.File, e.Line)
}

// IsUnsorted says whether an error is that of a trace that has to be sorted
// first: a streaming reader met an invocation earlier than the one before it.
func IsUnsorted(err error) bool {
	var unsorted *unsortedError
	return errors.As(err, &unsorted)
}

// Names numbers functions by name.
type Names struct {
	index map[string]int32
	list  []string // names by number
	fixed string   // the file that lists all there are; empty while names may be added
}

// NewNames is an empty numbering that a reader adds to.
func NewNames() *Names { return &Names{index: map[string]int32{}} }

// NamesOf numbers functions by their place; a trace that names another is
// refused. File is where the functions were listed, for messages.
func NamesOf(functions []Function, file string) *Names {
	n := NewNames()
	for _, f := range functions {
		n.add(f.Name)
	}
	n.fixed = file
	if file == "" {
		n.fixed = "the function costs"
	}
	return n
}

// All are the names, by number.
func (n *Names) All() []string { return n.list }

func (n *Names) add(name string) int32 {
	i, known := n.index[name]
	if !known {
		i = int32(len(n.list))
		n.index[name] = i
		n.list = append(n.list, name)
	}
	return i
}

// find is the number of a name as read, adding it where that is allowed.
func (n *Names) find(cell []byte) (int32, error) {
	if i, known := n.index[string(cell)]; known {
		return i, nil
	}
	name, err := csvfile.Name(string(cell))
	if err == nil && len(n.list) == csvfile.MaxRows {
		err = fmt.Errorf("the %dth function, expected at most %d", len(n.list)+1, csvfile.MaxRows)
	}
	if err != nil {
		return 0, err
	}
	if n.fixed != "" {
		return 0, fmt.Errorf("%s has no costs, expected a function of %s", csvfile.Quote(name), n.fixed)
	}
	return n.add(name), nil
}

func fault(file string, line int, where, format string, args ...any) error {
	return &textfile.Fault{File: file, Line: line, Where: where, What: fmt.Sprintf(format, args...)}
}

// Writer writes a trace row by row.
type Writer struct {
	out  *bufio.Writer
	line []byte
	err  error
}

// NewWriter writes the header. Flush writes what is left.
func NewWriter(w io.Writer) *Writer {
	out := &Writer{out: bufio.NewWriter(w)}
	_, out.err = out.out.WriteString("function,invoke_time_ms\n")
	return out
}

// Write writes one invocation.
func (w *Writer) Write(function string, at time.Duration) error {
	if w.err != nil {
		return w.err
	}
	w.line = append(w.line[:0], quote(function)...)
	w.line = append(w.line, ',')
	w.line = append(appendMillis(w.line, at), '\n')
	_, w.err = w.out.Write(w.line)
	return w.err
}

// Flush writes what is buffered and tells the first error there was.
func (w *Writer) Flush() error {
	if w.err == nil {
		w.err = w.out.Flush()
	}
	return w.err
}

// quote is a cell as encoding/csv would write it.
func quote(cell string) string {
	if !strings.ContainsAny(cell, "\",\r\n\\") && strings.TrimSpace(cell) == cell {
		return cell
	}
	var text strings.Builder
	out := csv.NewWriter(&text)
	_ = out.Write([]string{cell})
	out.Flush()
	return strings.TrimSuffix(text.String(), "\n")
}

// nanoDigits is how many decimals of a millisecond a Duration holds; further
// ones are rounded.
const nanoDigits = 6

// millis reads milliseconds, a decimal that is not negative.
func millis(cell string) (time.Duration, error) {
	if d, ok := plainMillis([]byte(cell)); ok {
		return d, nil
	}
	v, err := csvfile.Number(cell)
	return time.Duration(math.Round(v * 1e6)), err
}

// plainMillis reads the usual form, digits with or without a point; ok is
// false for any other, which csvfile.Number knows or refuses.
func plainMillis(cell []byte) (d time.Duration, ok bool) {
	i, whole := 0, int64(0)
	for ; i < len(cell) && cell[i]-'0' <= 9; i++ {
		whole = whole*10 + int64(cell[i]-'0')
	}
	if i == 0 || i > 12 {
		return 0, false
	}
	if i == len(cell) {
		return time.Duration(whole * 1e6), true
	}
	if cell[i] != '.' {
		return 0, false
	}
	frac, digits, up := int64(0), 0, int64(0)
	for i++; i < len(cell) && cell[i]-'0' <= 9; i++ {
		switch digit := int64(cell[i] - '0'); {
		case digits < nanoDigits:
			frac = frac*10 + digit
		case digits == nanoDigits && digit >= 5:
			up = 1
		}
		digits++
	}
	if i != len(cell) || digits == 0 {
		return 0, false
	}
	for ; digits < nanoDigits; digits++ {
		frac *= 10
	}
	return time.Duration(whole*1e6 + frac + up), true
}

// Millis prints a time in milliseconds so that reading it gives the same.
func Millis(d time.Duration) string { return string(appendMillis(nil, d)) }

func appendMillis(to []byte, d time.Duration) []byte {
	if d < 0 {
		to, d = append(to, '-'), -d
	}
	to = strconv.AppendInt(to, int64(d)/1e6, 10)
	frac := int64(d) % 1e6
	if frac == 0 {
		return to
	}
	to = append(to, '.')
	for unit := int64(1e5); frac > 0; unit /= 10 {
		to = append(to, byte('0'+frac/unit))
		frac %= unit
	}
	return to
}
