// Package trace reads and writes traces of invocations and what functions cost
// (docs/files.md). Traces stream: a reader holds a buffer and the names of the
// functions, however long the trace is.
package trace

import (
	"errors"
	"fmt"
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
