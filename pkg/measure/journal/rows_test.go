package journal

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
)

// read reads a file.
func read[T any](path string, parse func(io.Reader, string) (T, error)) (T, error) {
	f, err := os.Open(path)
	if err != nil {
		var none T
		return none, err
	}
	defer f.Close()
	return parse(f, path)
}

func drawRow(t *rapid.T, sm float64) profile.Row {
	return profile.Row{
		Function: "f", GPU: "sim", Config: profile.Config{SMPct: sm, Quota: 1, Batch: 1},
		ThroughputRPS: rapid.Float64Range(0.0001, 1e5).Draw(t, "rps"),
		P50MS:         1, P95MS: rapid.Float64Range(0.001, 1e6).Draw(t, "p95"), P99MS: 3,
		GPUMemMiB: rapid.SampledFrom([]float64{0, 12.5}).Draw(t, "mem"),
		Errors:    rapid.Int64Range(0, 9).Draw(t, "errors"), Samples: 10, TrialS: 1,
	}
}

// A crash may tear the file at any byte: resuming keeps every whole row once, and appended
// rows can be read back.
func TestResumeAfterTearAtAnyByte(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		path := filepath.Join(dir, "p.csv")
		_ = os.Remove(path)
		var rows []profile.Row
		first := &File{path: path}
		for i := range rapid.IntRange(1, 5).Draw(rt, "rows") {
			rows = append(rows, drawRow(rt, float64(i+1)))
			if err := first.Append(rows[i]); err != nil {
				rt.Fatal(err)
			}
		}
		if err := first.Close(); err != nil {
			rt.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			rt.Fatal(err)
		}
		cut := rapid.IntRange(0, len(data)).Draw(rt, "cut")
		if err := os.Truncate(path, int64(cut)); err != nil {
			rt.Fatal(err)
		}
		p, err := readEarlier(path, profile.Form{})
		if err != nil {
			rt.Fatal(err)
		}
		if p.Torn != (cut > 0 && data[cut-1] != '\n') {
			rt.Fatalf("cut at %d of %d: torn %v", cut, len(data), p.Torn)
		}
		second := &File{path: path, size: p.size, appending: p.size > 0}
		for _, row := range rows[len(p.Rows):] {
			if err := second.Append(row); err != nil {
				rt.Fatal(err)
			}
		}
		if err := second.Close(); err != nil {
			rt.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil || len(p.Rows) < len(rows) && string(content) != string(data) {
			rt.Fatalf("cut at %d:\n%s\nwant\n%s (%v)", cut, content, data, err)
		}
		back, err := read(path, profile.Read)
		if err != nil || len(back) != len(rows) {
			rt.Fatalf("%d rows of %d, %v", len(back), len(rows), err)
		}
		for i := range back {
			back[i].Line = 0
		}
		if !slices.Equal(back, rows) {
			rt.Fatalf("%v\nwant\n%v", back, rows)
		}
	})
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestAppendReportsMissingFolder(t *testing.T) {
	j := &File{path: filepath.Join(t.TempDir(), "absent", "p.csv")}
	if err := j.Append(profile.Row{Function: "f"}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Resume does not read from a pipe, which may have no end.
func TestResumeRefusesPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() { _, err := readEarlier(path, profile.Form{}); refused <- err }()
	select {
	case err := <-refused:
		if err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it is read")
	}
}

// TestResumeWithLimits checks that a file with limits keeps them when rows without limits are appended.
func TestResumeWithLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.csv")
	row := profile.Row{Function: "f", Config: profile.Config{SMPct: 10, Quota: 0.5, Batch: 1}, ThroughputRPS: 5, P95MS: 9, SMLimitPct: 20, QuotaLimit: 1}
	text, err := csvLines(profile.Form{Limits: true}, withHeader, row)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, j, err := Resume(path, profile.Form{})
	if err != nil {
		t.Fatal(err)
	}
	other := row
	other.SMPct, other.SMLimitPct, other.QuotaLimit = 20, 0, 0
	if err := errors.Join(j.Append(other), j.Close()); err != nil {
		t.Fatal(err)
	}
	if rows, err := read(path, profile.Read); err != nil || len(rows) != 2 || rows[0].SMLimitPct != 20 || rows[0].QuotaLimit != 1 || rows[1].QuotaLimit != 0 {
		t.Errorf("got %+v, %v, want limits of 20%% and 1 in the first row, and none in the second", rows, err)
	}
}

// Spreadsheets write a byte order mark and CRLF.
func TestResumeWithMarkAndCRLF(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.csv")
	row := profile.Row{Function: "f", GPU: "sim", Config: profile.Config{SMPct: 10, Quota: 1, Batch: 1}, ThroughputRPS: 5, P95MS: 9, Samples: 10, TrialS: 1}
	text, err := csvLines(profile.Form{}, withHeader, row)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("\uFEFF"+strings.ReplaceAll(string(text), "\n", "\r\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := readEarlier(path, profile.Form{})
	if err != nil || len(p.Rows) != 1 || !p.same {
		t.Fatalf("%+v, %v", p, err)
	}
	j := &File{path: path, size: p.size, form: p.form, appending: true}
	row.SMPct = 20
	if err := errors.Join(j.Append(row), j.Close()); err != nil {
		t.Fatal(err)
	}
	if rows, err := read(path, profile.Read); err != nil || len(rows) != 2 || rows[1].SMPct != 20 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// Two runs that resume the same file would not see each other's rows.
func TestResumeRefusesFileInUse(t *testing.T) {
	for name, before := range map[string]string{
		"new": "", "whole": strings.Join(profile.Form{}.Header(), ",") + "\n",
		"other columns": "function,sm_pct,quota,throughput_rps,p95_ms\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.csv")
			if before != "" {
				if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			row := profile.Row{Function: "f", GPU: "sim", Config: profile.Config{SMPct: 10, Quota: 1, Batch: 1}, ThroughputRPS: 5, P95MS: 9, Samples: 10, TrialS: 1}
			_, first, err := Resume(path, profile.Form{})
			if err != nil {
				t.Fatal(err)
			}
			_, early, refused := Resume(path, profile.Form{})
			if err := first.Append(row); err != nil {
				t.Fatal(err)
			}
			if refused == nil {
				refused = early.Append(row)
				_ = early.Close()
			}
			_, _, late := Resume(path, profile.Form{})
			for when, err := range map[string]error{"before a row": refused, "after it": late} {
				var e *InUseError
				if !errors.As(err, &e) || !e.Locked() || e.Hint() == "" || !strings.Contains(err.Error(), path) {
					t.Errorf("the second, %s: %v", when, err)
				}
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			p, resumed, err := Resume(path, profile.Form{})
			if err != nil || len(p.Rows) != 1 {
				t.Fatalf("%+v, %v; want the row of the first", p, err)
			}
			_ = resumed.Close()
			if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// The rows of the first run would be lost if a second one replaced its file.
func TestCreateRefusesFileInUse(t *testing.T) {
	for name, before := range map[string]string{"new": "", "there": "anything\n"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.csv")
			if before != "" {
				if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			row := profile.Row{Function: "f", GPU: "sim", Config: profile.Config{SMPct: 10, Quota: 1, Batch: 1}, ThroughputRPS: 5, P95MS: 9, Samples: 10, TrialS: 1}
			first, err := Create(path, profile.Form{})
			if err != nil {
				t.Fatal(err)
			}
			early, refused := Create(path, profile.Form{})
			if err := first.Append(row); err != nil {
				t.Fatal(err)
			}
			if refused == nil {
				refused = early.Append(row)
				_ = early.Close()
			}
			_, late := Create(path, profile.Form{})
			row.SMPct = 20
			if err := errors.Join(first.Append(row), first.Close()); err != nil {
				t.Fatal(err)
			}
			for when, err := range map[string]error{"before a row": refused, "after it": late} {
				var e *InUseError
				if !errors.As(err, &e) || !e.Locked() || e.Hint() == "" || !strings.Contains(err.Error(), path) {
					t.Errorf("the second, %s: %v", when, err)
				}
			}
			if rows, err := read(path, profile.Read); err != nil || len(rows) != 2 {
				t.Errorf("%+v, %v; want the rows of the first", rows, err)
			}
			file, err := Create(path, profile.Form{})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(file.Append(row), file.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}
