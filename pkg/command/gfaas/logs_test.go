package gfaas

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// logOf returns a log with a line at each of the given seconds, followed by an error unless err is nil.
func logOf(err error, seconds ...int64) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) {
		for _, s := range seconds {
			if !yield(ports.LogLine{Time: time.Unix(s, 0), Text: strings.Repeat("x", int(s))}, nil) {
				return
			}
		}
		if err != nil {
			yield(ports.LogLine{}, err)
		}
	}
}

// TestLogsOfSeveral checks that the lines of several instances are in order of time, and that an unreadable log does not
// hide the others.
func TestLogsOfSeveral(t *testing.T) {
	broken := errors.New("broken")
	all := []instance.Record{{ID: "a"}, {ID: "bb"}, {ID: "c"}}
	logs := []ports.LogLines{logOf(broken, 1, 4), logOf(nil, 2, 3, 5), logOf(nil)}
	var out strings.Builder
	err := (&logsOptions{}).print(&out, "text", all, launch.Merged(logs))
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "instance a: ") {
		t.Errorf("print merged logs: got %v, want %v of instance a", err, broken)
	}
	if want := "a  | x\nbb | xx\nbb | xxx\na  | xxxx\nbb | xxxxx\n"; out.String() != want {
		t.Errorf("merged logs: got %q, want %q", out.String(), want)
	}
	out.Reset()
	if err := (&logsOptions{follow: true}).print(&out, "text", all, launch.AsTheyCome(logs)); !errors.Is(err, broken) || strings.Count(out.String(), "\n") != 5 {
		t.Errorf("followed logs: got %q, %v; want 5 lines and %v", out.String(), err, broken)
	}
	full := errors.New("full")
	if err := (&logsOptions{follow: true}).print(failing{full}, "jsonl", all, launch.AsTheyCome(logs)); !errors.Is(err, full) {
		t.Errorf("to where nothing can be written: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestLastLine checks that the last line fits into a table's cell and contains no control characters.
func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\x1b[31mb\tc \r": "a [31mb c", "": "", strings.Repeat("é", 200): strings.Repeat("é", 80) + "…",
	} {
		s := &logged{text: text}
		if got := lastLine(t.Context(), s, instance.Record{}); got != want {
			t.Errorf("last line of %q: got %q, want %q", text, got, want)
		}
	}
}

type logged struct {
	ports.Starter
	text string
}

func (l *logged) Logs(context.Context, instance.Record, ports.LogOptions) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) { yield(ports.LogLine{Text: l.text}, nil) }
}
