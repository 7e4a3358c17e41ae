package logs

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Saved lines are read back unchanged and replace the previous log.
func TestSave(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	broken := errors.New("broken")
	some := []ports.LogLine{{Time: at, Text: "first"}, {Time: at, Text: strings.Repeat("x", ports.MaxLogLine), Partial: true}, {Time: at.Add(time.Second), Text: "end\xff"}}
	dir := filepath.Join(t.TempDir(), "logs", "a")
	for _, c := range []struct {
		name  string
		lines []ports.LogLine
		err   error
		none  bool // the folder is removed
	}{
		{"none", nil, nil, true},
		{"some", some, nil, false},
		{"fewer", some[2:], nil, false},
		{"an error after a line", some[:1], broken, false},
		{"an error alone", nil, broken, true},
		{"some again", some, nil, false},
		{"none again", nil, nil, true},
	} {
		err := Save(dir, func(yield func(ports.LogLine, error) bool) {
			for _, line := range c.lines {
				if !yield(line, nil) {
					return
				}
			}
			if c.err != nil {
				yield(ports.LogLine{}, c.err)
			}
		})
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		var got []ports.LogLine
		for line, err := range Read(t.Context(), dir, ports.LogOptions{Tail: -1}) {
			if err != nil {
				t.Errorf("%s: read the saved lines: %v", c.name, err)
			}
			got = append(got, line)
		}
		if !reflect.DeepEqual(got, c.lines) {
			t.Errorf("%s: %d lines, want %d", c.name, len(got), len(c.lines))
		}
		if _, err := os.Stat(filepath.Dir(dir)); c.none != os.IsNotExist(err) {
			t.Errorf("%s: folder of the log: got %v, want it to be missing: %v", c.name, err, c.none)
		}
	}
}
