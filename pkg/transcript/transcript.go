// Package transcript runs tests that are recorded as transcripts. A line is an input of a
// policy; the indented lines below it are the actions of the policy.
package transcript

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// Lines passes each input line of a transcript to step and returns the transcript with
// the present results of step. Lines that begin with two blanks are earlier results and are
// replaced. Empty lines and comments (#) are copied.
func Lines(text string, step func(line string) (did []string, err error)) (string, error) {
	var out strings.Builder
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		did, err := step(line)
		if err != nil {
			return "", fmt.Errorf("line %d: %q: %w", n+1, line, err)
		}
		for _, what := range did {
			fmt.Fprintln(&out, "  "+what)
		}
	}
	return out.String(), nil
}

// Test runs a subtest for each file that matches pattern, which fails if play, given the
// transcript, returns another text. go test -update writes the returned text to the file.
func Test(t *testing.T, pattern string, play func(text string) (string, error)) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := play(string(old))
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(old) {
				t.Errorf("%s reads otherwise (go test -update rewrites it):\n%s", path, got)
			}
		})
	}
}
