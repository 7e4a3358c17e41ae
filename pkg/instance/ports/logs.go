package ports

import (
	"bytes"
	"fmt"
	"iter"
	"strings"
	"time"
)

// MaxLogLine is the longest text of a LogLine, in bytes.
const MaxLogLine = 16 << 10

// LogLine is a line of an instance's standard output or standard error.
type LogLine struct {
	Time    time.Time // when it was printed; zero if unknown
	Text    string    // without its line ending; not necessarily UTF-8
	Partial bool      // the line is longer than MaxLogLine and continues in the next LogLine
}

// LogOptions selects lines of a log.
type LogOptions struct {
	Tail   int       // limit on existing lines, keeping the latest; negative means all
	Since  time.Time // only lines printed at this time or later; zero means all
	Follow bool      // after the existing lines, wait for further ones until the instance can print no more
}

// LogLines are the lines of a log, oldest first. The sequence ends after an error, including the context's.
type LogLines = iter.Seq2[LogLine, error]

// Text returns the text of the lines, up to the first error.
func Text(lines LogLines) ([]byte, error) {
	var text bytes.Buffer
	for line, err := range lines {
		if err != nil {
			return text.Bytes(), err
		}
		text.WriteString(line.Text)
		if !line.Partial {
			text.WriteByte('\n')
		}
	}
	return text.Bytes(), nil
}

// Printed formats the last lines of an instance's log as the end of an error message. It returns "" for an empty log.
func Printed(log []byte) string {
	text := strings.TrimRight(string(log), "\n")
	if text == "" {
		return ""
	}
	return fmt.Sprintf("\nit printed last:\n  %s", strings.ReplaceAll(text, "\n", "\n  "))
}
