package pkg_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVulncheck: the exit status of make vulncheck distinguishes a found vulnerability,
// no vulnerability, and a missing database.
func TestVulncheck(t *testing.T) {
	for name, c := range map[string]struct {
		tool string // shell commands that act as govulncheck
		code int
		says string
	}{
		"nothing":               {`echo "No vulnerabilities found."`, 0, "No vulnerabilities"},
		"a fault":               {`echo "Vulnerability #1: GO-2024-1"; exit 3`, 3, "GO-2024-1"},
		"no folder":             {`echo "creating client: stat /nowhere: no such file or directory" >&2; exit 1`, 4, "cannot read the database at file:///db"},
		"no network":            {`echo "govulncheck: fetching vulnerabilities: Get \"https://vuln.go.dev/\": dial tcp" >&2; exit 1`, 4, "VULNDB=file:///"},
		"it cannot be compiled": {`echo "govulncheck: loading packages: errors" >&2; exit 1`, 1, "loading packages"},
		"wrong usage":           {`exit 2`, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tool := filepath.Join(t.TempDir(), "govulncheck")
			if err := os.WriteFile(tool, []byte("#!/bin/sh\n[ \"$*\" = '-db file:///db ./...' ] || exit 99\n"+c.tool+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			text, err := exec.Command("./vulncheck.sh", "file:///db", tool).CombinedOutput()
			code := 0
			var ended *exec.ExitError
			if errors.As(err, &ended) {
				code = ended.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != c.code || !strings.Contains(string(text), c.says) {
				t.Errorf("exit %d, want %d: %s", code, c.code, text)
			}
		})
	}
}
