// Package trace reads and writes traces of invocations (Reader, Source, Writer), the costs
// of functions (ReadFunctionsOn) and load series (ReadSeries), in the formats of
// docs/files.md. A Reader of the one-line-per-invocation layout needs only a buffer and the
// functions' names in memory, for traces of any length.
package trace

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Function holds the costs of one function's invocations (docs/simulation.md, R3).
type Function struct {
	Name   string
	Warm   time.Duration // duration of an invocation on a warm container with its memory on the GPU
	Cold   time.Duration // total duration of an invocation that starts a new container
	Load   time.Duration // additional duration if the memory is on the host; also the upload time of a model
	MemMiB float64       // GPU memory
	Weight float64       // share of the GPU relative to other functions, above 0
	Tenant string
	Model  string // shared by the functions with the same value; default: the function's name
	// Inflight is the number of invocations that an instance runs at once; 0 means 1. BatchSlope is how much longer each
	// takes for every other one that runs with it, as a part of Warm.
	Inflight   int
	BatchSlope float64
	// SharedStart is how long a start takes on a GPU that already has the weights of Model for Tenant; 0 means that
	// the function shares no weights. WeightsMiB is their memory, which MemMiB does not include.
	SharedStart time.Duration
	WeightsMiB  float64
	Line        int // line in its file
}

// Row is one invocation of a trace.
type Row struct {
	At       time.Duration // since the beginning of the trace
	Function int32         // index into the reader's Names
}

// Rows is a trace in the order of time. Next returns io.EOF at the end.
type Rows interface {
	Next() (Row, error)
}

// unsortedError reports an invocation earlier than the one before it, in a streaming
// reader.
type unsortedError struct{ error }

// IsUnsorted reports whether err means that the trace must be sorted first: a streaming
// reader found an invocation earlier than the one before it.
func IsUnsorted(err error) bool {
	var unsorted *unsortedError
	return errors.As(err, &unsorted)
}

// Names maps function names to numbers.
type Names struct {
	index map[string]int32
	list  []string // by number
	fixed string   // the file that lists all functions; empty while names may be added
}

// NewNames returns an empty Names, to which readers add.
func NewNames() *Names { return &Names{index: map[string]int32{}} }

// NamesOf returns Names with the functions in their order. Readers then refuse traces with
// other functions. file is the source of the functions, for messages.
func NamesOf(functions []Function, file string) *Names {
	n := NewNames()
	for _, f := range functions {
		n.add(f.Name)
	}
	n.fixed = cmp.Or(file, "the function costs")
	return n
}

// All returns the names by number.
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

// number returns the number of a name, after adding the name if that is allowed.
func (n *Names) number(cell []byte) (int32, error) {
	if i, known := n.index[string(cell)]; known {
		return i, nil
	}
	name, err := csvfile.Name(string(cell))
	if err == nil && len(n.list) == csvfile.MaxRows {
		err = fmt.Errorf("this is function number %d, expected at most %d", len(n.list)+1, csvfile.MaxRows)
	}
	if err != nil {
		return 0, err
	}
	if n.fixed != "" {
		return 0, fmt.Errorf("%s has no costs, expected a function in %s", csvfile.Quote(name), n.fixed)
	}
	return n.add(name), nil
}

func fault(file string, line int, where, format string, args ...any) error {
	return &textfile.Fault{File: file, Line: line, Where: where, What: fmt.Sprintf(format, args...)}
}

// Writer writes a trace row by row.
type Writer struct{ out *csv.Writer }

// NewWriter writes the header and returns a Writer. Call Flush in the end.
func NewWriter(w io.Writer) *Writer {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"function", "invoke_time_ms"}) // Flush returns the error
	return &Writer{out}
}

// Write writes one invocation.
func (w *Writer) Write(function string, at time.Duration) error {
	return w.out.Write([]string{function, Millis(at)})
}

// Flush writes buffered rows and returns the first error of the Writer.
func (w *Writer) Flush() error {
	w.out.Flush()
	return w.out.Error()
}

// millis parses milliseconds, a decimal number of at least 0.
func millis[C string | []byte](cell C) (time.Duration, error) {
	if d, ok := plainMillis([]byte(cell)); ok {
		return d, nil
	}
	v, err := csvfile.Number(string(cell))
	return time.Duration(math.Round(v * 1e6)), err
}

// plainMillis parses the usual form without loss: up to 12 digits and a fraction of at most 6 digits. For other
// forms, which csvfile.Number parses or refuses, ok is false.
func plainMillis(cell []byte) (d time.Duration, ok bool) {
	n, whole, fraction, point := int64(0), 0, 0, false
	for _, c := range cell {
		switch {
		case c == '.' && !point:
			point = true
			continue
		case c < '0' || c > '9' || whole == 12 && !point || fraction == 6:
			return 0, false
		case point:
			fraction++
		default:
			whole++
		}
		n = n*10 + int64(c-'0')
	}
	for range 6 - fraction {
		n *= 10
	}
	return time.Duration(n), whole > 0
}

// Millis formats a duration in milliseconds without loss.
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
