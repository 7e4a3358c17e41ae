package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What --help lists everywhere is on every page too, and a flag that may be given alone
// says what else it takes.
func TestPagesListFlags(t *testing.T) {
	for name, build := range trees {
		dir := t.TempDir()
		if err := generate(name, build, dir, t.TempDir()); err != nil {
			t.Fatal(err)
		}
		pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %d pages, %v", name, len(pages), err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte("[=]")) || bytes.Contains(text, []byte(`[=""]`)) {
				t.Errorf("%s has a flag that does not say what it takes", filepath.Base(page))
			}
			for _, flag := range []string{"--version", "--help"} {
				if !bytes.Contains(text, []byte(flag+`\fP`)) {
					t.Errorf("%s has no %s", filepath.Base(page), flag)
				}
			}
		}
	}
}
