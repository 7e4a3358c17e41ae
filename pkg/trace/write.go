package trace

import (
	"bufio"
	"encoding/csv"
	"io"
	"strings"
	"time"
)

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
