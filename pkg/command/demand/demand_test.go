package demand

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// A list may be longer than the name of a file can be.
func TestLongList(t *testing.T) {
	var parts []string
	for i := range 100 {
		parts = append(parts, fmt.Sprintf("a-function-%d=%d", i, i+1))
	}
	d, err := Load(&cli.Env{}, strings.Join(parts, ","))
	if err != nil || len(d) != 100 || d[99].RPS != 100 {
		t.Errorf("%d demands, %v", len(d), err)
	}
}

// TestEmptyDemand: a demand of nothing gets a note.
func TestEmptyDemand(t *testing.T) {
	for text, noted := range map[string]bool{"function,rps\n": true, "function,rps\n,\n": true, "function,rps\na,1\n": false} {
		path := filepath.Join(t.TempDir(), "d.csv")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		_, err := Load(&cli.Env{Err: &errs}, path)
		if err != nil || strings.Contains(errs.String(), "note: "+path+" has no demand: there is nothing to plan") != noted {
			t.Errorf("%q: %q, %v", text, errs.String(), err)
		}
	}
}
