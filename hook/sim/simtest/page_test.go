package simtest

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPage checks that docs/simulated-gpu.md names every operation of kernels, every
// setting of a comment and every key of the shape, and no operation that does not
// exist.
func TestPage(t *testing.T) {
	page := read(t, "../../../docs/simulated-gpu.md")
	ops := map[string]bool{}
	for _, c := range []struct{ file, names string }{
		{"../ops.c", `\{"(\w+_f32)"`},
		{"../ptx.c", `!strcmp\(word, "(\w+)"\)`},
		{"../config.c", `!strcmp\(key, "(\w+)"\)`},
	} {
		found := regexp.MustCompile(c.names).FindAllStringSubmatch(read(t, c.file), -1)
		if len(found) < 2 {
			t.Errorf("%s: %d names, want at least 2", c.file, len(found))
		}
		for _, m := range found {
			ops[m[1]] = true
			if !strings.Contains(page, "| `"+m[1]+"`") && !strings.Contains(page, "| `"+m[1]+"=") {
				t.Errorf("the page does not describe %s of %s, want a row of a table", m[1], c.file)
			}
		}
	}
	for _, m := range regexp.MustCompile(`\w+_f32`).FindAllString(page, -1) {
		if !ops[m] {
			t.Errorf("the page describes %s, which the simulated driver does not have", m)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
