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

// LogLine is what an instance printed up to an end of line, on either of its
// streams.
type LogLine struct {
	Time    time.Time // when; zero where nobody knows
	Text    string    // without its end, as it was printed: it need not be UTF-8
	Partial bool      // the line is longer than MaxLogLine and goes on in the next
}

// LogOptions says which lines are wanted.
type LogOptions struct {
	Tail   int       // of those that are there the last so many; negative is all
	Since  time.Time // those printed at this time or later; zero is all
	Follow bool      // then those to come, until nobody can print any more
}

// LogLines are the lines of a log as they are read, oldest first. After an error,
// the context's among them, comes nothing more.
type LogLines = iter.Seq2[LogLine, error]

// Text is what lines say, up to the first error.
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

// Printed is the end of a message about an instance that printed log last.
func Printed(log []byte) string {
	text := strings.TrimRight(string(log), "\n")
	if text == "" {
		return ""
	}
	return fmt.Sprintf("\nit printed last:\n  %s", strings.ReplaceAll(text, "\n", "\n  "))
}
