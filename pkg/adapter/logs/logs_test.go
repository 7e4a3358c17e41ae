package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

var all = ports.LogOptions{Tail: -1}

func newWriter(t *testing.T, max int64) (*writer, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{root: root, max: max}
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = w.file.Close(), root.Close() })
	return w, dir
}

func read(t *testing.T, dir string, o ports.LogOptions) (lines []ports.LogLine) {
	t.Helper()
	for line, err := range Read(t.Context(), dir, o) {
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

func texts(lines []ports.LogLine) string {
	var all []string
	for _, line := range lines {
		all = append(all, line.Text)
	}
	return strings.Join(all, "|")
}

// at returns the nth second of a day.
func at(n int) time.Time { return time.Date(2026, 1, 2, 0, 0, n, 5, time.UTC) }

func TestLines(t *testing.T) {
	long := strings.Repeat("x", ports.MaxLogLine)
	for name, c := range map[string]struct {
		printed []string
		want    []ports.LogLine
	}{
		"nothing": {},
		"lines":   {[]string{"a\nb\n"}, []ports.LogLine{{Time: at(0), Text: "a"}, {Time: at(0), Text: "b"}}},
		"a line in parts has the time of its first": {[]string{"a", "b", "c\nd\n"},
			[]ports.LogLine{{Time: at(0), Text: "abc"}, {Time: at(2), Text: "d"}}},
		"no end":       {[]string{"a\n", "b"}, []ports.LogLine{{Time: at(0), Text: "a"}, {Time: at(1), Text: "b"}}},
		"empty lines":  {[]string{"\n\n"}, []ports.LogLine{{Time: at(0)}, {Time: at(0)}}},
		"not text":     {[]string{"\x00\xff F \r\n"}, []ports.LogLine{{Time: at(0), Text: "\x00\xff F \r"}}},
		"just so long": {[]string{long + "\n"}, []ports.LogLine{{Time: at(0), Text: long}}},
		"longer":       {[]string{long + "y\n"}, []ports.LogLine{{Time: at(0), Text: long, Partial: true}, {Time: at(0), Text: "y"}}},
		"long, its end later": {[]string{long, "\n"},
			[]ports.LogLine{{Time: at(0), Text: long, Partial: true}, {Time: at(1)}}},
	} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWriter(t, MaxFile)
			for n, text := range c.printed {
				w.writeLines(chunk{at: at(n), text: []byte(text)})
			}
			w.finish()
			got := read(t, dir, all)
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%.200q, want %.200q", fmt.Sprint(got), fmt.Sprint(c.want))
			}
		})
	}
}

// Reading yields the last lines of the output, complete, for any file size and any division
// into pieces. The log never exceeds twice the file size.
func TestBound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		max := rapid.Int64Range(1, 2000).Draw(rt, "max")
		w, dir := newWriter(t, max)
		var printed []string
		longest := 0
		for n := range rapid.IntRange(0, 60).Draw(rt, "pieces") {
			var text []byte
			for range rapid.IntRange(0, 8).Draw(rt, "lines") {
				printed = append(printed, fmt.Sprintf("%d %s", len(printed), rapid.StringMatching(`[a-z]{0,40}`).Draw(rt, "text")))
				text = append(text, printed[len(printed)-1]+"\n"...)
			}
			before := w.size
			w.writeLines(chunk{at: at(n), text: text})
			if before == 0 || w.size < before {
				longest = int(w.size)
			}
			for _, name := range []string{currentFile, previousFile} {
				if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Size() > max && info.Size() > int64(60*8+longest) {
					rt.Fatalf("%s has %d bytes, want about %d", name, info.Size(), max)
				}
			}
		}
		w.finish()
		tail := rapid.IntRange(-1, 100).Draw(rt, "tail")
		got := read(t, dir, ports.LogOptions{Tail: tail})
		if tail >= 0 && len(got) > tail || tail != 0 && len(printed) > 0 && len(got) == 0 {
			rt.Fatalf("%d lines of %d, want %d", len(got), len(printed), tail)
		}
		if want := printed[len(printed)-len(got):]; texts(got) != strings.Join(want, "|") {
			rt.Fatalf("read %q, want the end of %q", texts(got), printed)
		}
		if everything := read(t, dir, all); tail >= 0 && len(got) != min(tail, len(everything)) {
			rt.Fatalf("%d lines of %d that there are, want %d", len(got), len(everything), tail)
		}
	})
}

func TestSince(t *testing.T) {
	w, dir := newWriter(t, MaxFile)
	for n := range 5 {
		w.writeLines(chunk{at: at(n), text: fmt.Appendf(nil, "%d\n", n)})
	}
	for _, c := range []struct {
		o    ports.LogOptions
		want string
	}{
		{ports.LogOptions{Tail: -1, Since: at(3)}, "3|4"},
		{ports.LogOptions{Tail: 1, Since: at(3)}, "4"},
		{ports.LogOptions{Tail: 4, Since: at(3)}, "3|4"},
		{ports.LogOptions{Tail: -1, Since: at(9)}, ""},
		{ports.LogOptions{Tail: 0}, ""},
	} {
		if got := texts(read(t, dir, c.o)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.o, got, c.want)
		}
	}
}

// In a damaged file, only the damaged lines are lost.
func TestDamaged(t *testing.T) {
	w, dir := newWriter(t, MaxFile)
	w.writeLines(chunk{at: at(0), text: []byte("a\n")})
	junk := "2026-01-02T00:00:01 F b\n\n2026-01-02T00:00:01.000000000Z X c\n" + strings.Repeat("z", 3*maxRecord) + "\n"
	if _, err := io.WriteString(w.file, junk); err != nil {
		t.Fatal(err)
	}
	w.writeLines(chunk{at: at(1), text: []byte("d\n")})
	got := read(t, dir, all)
	if got[0].Text != "a" || got[len(got)-1].Text != "d" || !got[1].Time.IsZero() {
		t.Errorf("log with damaged lines: got %.300q, want the first line \"a\" and the last \"d\", and no time where it is damaged", texts(got))
	}
	for _, line := range got {
		if len(line.Text) > maxRecord {
			t.Errorf("a line of %d bytes, want at most %v", len(line.Text), maxRecord)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte("2026-01-02T00:00:01.000000005Z F text"))
	f.Add([]byte("2026-01-02T00:00:01.000000005Z P "))
	f.Fuzz(func(t *testing.T, record []byte) {
		line := parseLine(record)
		if line.Time.IsZero() {
			if line.Text != strings.TrimSuffix(string(record), "\n") {
				t.Errorf("text of the record %q: got %q, want its bytes without the final newline", record, line.Text)
			}
			return
		}
		tag := byte(whole)
		if line.Partial {
			tag = partial
		}
		if again := parseLine(appendLine(nil, line.Time, []byte(line.Text), tag)); again != line {
			t.Errorf("record %q written again: got %+v, want %+v", record, again, line)
		}
	})
}

// Following continues through any number of files to the keeper's end. If the reader is
// slow, output is missing in at most one place.
func TestFollow(t *testing.T) {
	w, dir := newWriter(t, 4000)
	lock, err := acquireLog(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	const count = 3000
	w.writeLines(chunk{at: at(0), text: []byte("line 0\n")})
	var got []string
	for line, err := range Read(t.Context(), dir, ports.LogOptions{Tail: -1, Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, line.Text)
		// Stay within the amount that the log keeps for a slow reader.
		if n := len(got); n < count {
			w.writeLines(chunk{at: at(n), text: fmt.Appendf(nil, "line %d\n", n)})
		} else if n == count {
			_ = lock.Close()
		}
	}
	if len(got) != count {
		t.Fatalf("%d lines, want %d", len(got), count)
	}
	for n, text := range got {
		if text != fmt.Sprintf("line %d", n) {
			t.Fatalf("line %d: got %q, want \"line %d\"", n, text, n)
		}
	}
}

func TestFollowGivenUp(t *testing.T) {
	_, dir := newWriter(t, MaxFile)
	lock, err := acquireLog(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for line, err := range Read(ctx, dir, ports.LogOptions{Follow: true}) {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("read that was given up: got %+v, %v; want %v", line, err, context.DeadlineExceeded)
		}
	}
}

// The printing process waits once for a blocked disk, and the log reports the lost output.
func TestSlowDisk(t *testing.T) {
	w, dir := newWriter(t, MaxFile)
	in, out := io.Pipe()
	stuck, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		copyChunks(in, func(p chunk) { <-stuck; w.writeLines(p) }, 10*time.Millisecond)
		w.finish()
	}()
	text := append(bytes.Repeat([]byte("x"), 999), '\n')
	const lines = 200 * 60
	for range lines / 60 {
		if _, err := out.Write(bytes.Repeat(text, 60)); err != nil {
			t.Fatal(err)
		}
	}
	close(stuck)
	_ = out.Close()
	<-done
	var kept, missing int
	for _, line := range read(t, dir, all) {
		if n, err := fmt.Sscanf(line.Text, "gfaas: %d bytes are missing here: the disk was too slow", &missing); n != 1 || err != nil {
			kept += len(line.Text) + 1
		}
	}
	if kept == 0 || missing == 0 || kept+missing != lines*len(text) {
		t.Errorf("output of %d bytes to a slow disk: got %d stored and %d reported as missing, want their sum", lines*len(text), kept, missing)
	}
}

// On a full disk, lines are lost and reported, no line is torn, and writing continues when
// there is space.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Skipf("only root can fill a disk of its own: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w := &writer{root: root, max: MaxFile}
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.file.Close() }()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, make([]byte, 40<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	text := append(bytes.Repeat([]byte("x"), 999), '\n')
	for n := range 40 {
		if n == 35 {
			if err := os.Remove(other); err != nil {
				t.Fatal(err)
			}
		}
		w.writeLines(chunk{at: at(n), text: text})
	}
	w.finish()
	var kept, missing int
	for _, line := range read(t, dir, all) {
		switch {
		case strings.HasPrefix(line.Text, "gfaas: "):
			if n, err := fmt.Sscanf(line.Text, "gfaas: %d bytes are missing here: no space left on device", &missing); n != 1 || err != nil {
				t.Errorf("line after a full disk: got %q, want the number of missing bytes", line.Text)
			}
		case len(line.Text) != 999 || line.Time.IsZero():
			t.Errorf("line: got %d bytes with the time %v, want 999 with a time", len(line.Text), line.Time)
		default:
			kept += 1000
		}
	}
	if kept < 20_000 || missing < 5_000 || kept+missing != 40_000 {
		t.Errorf("output of 40000 bytes to a full disk: got %d stored and %d reported as missing, want at least 20000 and 5000, and their sum", kept, missing)
	}
}
