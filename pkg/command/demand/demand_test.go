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

// TestLongList checks that a list may be longer than the longest file name.
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

// TestEmptyDemand checks the note about an empty demand.
func TestEmptyDemand(t *testing.T) {
	for text, noted := range map[string]bool{"function,rps\n": true, "function,rps\n,\n": true, "function,rps\na,1\n": false} {
		path := filepath.Join(t.TempDir(), "d.csv")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		_, err := Load(&cli.Env{Err: &errs}, path)
		if err != nil || strings.Contains(errs.String(), "note: the demand in "+path+" is empty, so there is nothing to plan") != noted {
			t.Errorf("%q: %q, %v", text, errs.String(), err)
		}
	}
}
