package cli

import (
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	for name, c := range map[string]struct {
		rows [][]string
		want string
	}{
		"nothing":        {nil, ""},
		"columns":        {[][]string{{"A", "LONG", "C"}, {"aaaa", "b", "c"}, {"a", "bbbbbb", "c"}}, "A     LONG    C\naaaa  b       c\na     bbbbbb  c\n"},
		"not only ASCII": {[][]string{{"±95%", "X"}, {"é…", "y"}}, "±95%  X\né…    y\n"},
		"empty cells":    {[][]string{{"A", "B"}, {"", "b"}, {"a", ""}, {"", ""}}, "A  B\n   b\na\n\n"},
		"ragged":         {[][]string{{"A"}, {"a", "b"}}, "A\na  b\n"},
		"one line":       {[][]string{{"A", "B"}, {"a\nb\tc", "d"}}, "A      B\na b c  d\n"},
	} {
		for how, print := range map[string]func(io.Writer, [][]string) error{"table": Table, "long table": longTable} {
			var out strings.Builder
			if err := print(&out, c.rows); err != nil || out.String() != c.want {
				t.Errorf("%s as a %s: %q, %v, want %q", name, how, out.String(), err, c.want)
			}
		}
	}
}

// TestTableOfAMillion checks that the time to print a table grows linearly: a million rows take ten times as long as a
// hundred thousand, not a hundred times.
func TestTableOfAMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: prints millions of rows")
	}
	rows := [][]string{{"BIN", "ITEM"}}
	for i := range 1_000_000 {
		n := strconv.Itoa(i)
		rows = append(rows, []string{n, "item-" + n})
	}
	// Measure processor time, which does not depend on other processes.
	cpuTime := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	minTime := func(n int) time.Duration {
		best := time.Hour
		for range 3 {
			before := cpuTime()
			if err := Table(io.Discard, rows[:n]); err != nil {
				t.Fatal(err)
			}
			best = min(best, cpuTime()-before)
		}
		return best
	}
	if few, many := minTime(100_000), minTime(len(rows)); many > 40*few {
		t.Errorf("time for a million rows: got %v, want at most 40 times the %v for 100,000 rows", many, few)
	}
}

func BenchmarkTable(b *testing.B) {
	rows := [][]string{{"BIN", "ITEM", "X", "Y", "QUOTA", "SM%"}}
	for i := range 100_000 {
		n := strconv.Itoa(i)
		rows = append(rows, []string{n, "item-" + n, "0.25", n, "1", "12"})
	}
	for b.Loop() {
		if err := Table(io.Discard, rows); err != nil {
			b.Fatal(err)
		}
	}
}
