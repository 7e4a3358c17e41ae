package tokend

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
)

// TestOwnLogIsBounded checks that the log of a long-running daemon is bounded to two files, without lost lines in them.
func TestOwnLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	f, err := tokend.OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const records = 50
	pad := strings.Repeat("x", 100_000)
	log := bounded(f, dir)
	for n := range records {
		if _, err := fmt.Fprintf(log, "%s %d\n", pad, n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(f, "last words\n"); err != nil { // like the runtime in a crash
		t.Fatal(err)
	}
	var text string
	for _, path := range []string{tokend.LogPath(dir) + ".old", tokend.LogPath(dir)} {
		part, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(part) > tokend.MaxLog+len(pad)+100 {
			t.Errorf("%s: got %d bytes, want at most %d", path, len(part), tokend.MaxLog+len(pad)+100)
		}
		text += string(part)
	}
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(text, pad+" ", "")), "\n")
	first := records - (len(lines) - 1)
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprint(first+i) {
			t.Errorf("line %d of %d is %q, want %d", i, len(lines), line, first+i)
		}
	}
	if len(lines) < 12 || lines[len(lines)-1] != "last words" {
		t.Errorf("log: got %d lines, the last %q; want at least 12, the last \"last words\"", len(lines), lines[len(lines)-1])
	}
	if all, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(all) != 2 {
		t.Errorf("files of the log: got %v, %v; want 2", all, err)
	}
}

// TestOtherLogIsNotRotated checks that standard error is not rotated if it is another file.
func TestOtherLogIsNotRotated(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "mine.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if log := bounded(f, dir); log != io.Writer(f) {
		t.Errorf("log of another file: got %T, want the file itself", log)
	}
}
