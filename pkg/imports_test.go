// Package pkg_test holds what is true of the tree as a whole.
package pkg_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gfaas/gfaas/pkg/"

// layers says, for each folder of pkg, which others its packages may import:
// gpu ← formats ← policy ← {daemon, sim} ← command, and adapters on gpu,
// formats and wire alone.
var (
	formats = []string{"gpu", "function", "profile", "plan", "trace", "events", "instance", "wire", "csvfile", "jsonfile", "textfile", "splitmix"}
	layers  = map[string][]string{
		"gpu":        {},
		"transcript": {},
		"policy":     append([]string{"policy"}, formats...),
		"load":       {"gpu", "load"},
		"daemon":     append([]string{"daemon", "policy"}, formats...),
		"sim":        append([]string{"sim", "policy"}, formats...),
		"adapter":    append([]string{"adapter"}, formats...),
		"command":    append([]string{"command", "adapter", "daemon", "policy", "sim", "load"}, formats...),
	}
)

type pkgInfo struct {
	ImportPath string
	Imports    []string
}

func TestImportDirection(t *testing.T) {
	for _, p := range list(t) {
		from := layer(p.ImportPath)
		if from == "" {
			continue
		}
		allowed, special := layers[from]
		if !special {
			allowed = formats
		}
		for _, imported := range p.Imports {
			to := layer(imported)
			if to != "" && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: %s may import only %v", p.ImportPath, imported, from, allowed)
			}
		}
	}
}

// TestPoliciesArePure holds rule 1 of the design: a policy imports value types
// and what of the standard library does no I/O.
func TestPoliciesArePure(t *testing.T) {
	impure := []string{"os", "net", "syscall", "log", "io/ioutil", "math/rand", "context"}
	for _, p := range list(t) {
		if layer(p.ImportPath) != "policy" {
			continue
		}
		for _, imported := range p.Imports {
			first, _, _ := strings.Cut(imported, "/")
			if strings.Contains(first, ".") && layer(imported) == "" {
				t.Errorf("%s imports %s: a policy imports the standard library and value types only", p.ImportPath, imported)
			}
			if slices.Contains(impure, first) || slices.Contains(impure, imported) {
				t.Errorf("%s imports %s: a policy does no I/O", p.ImportPath, imported)
			}
		}
	}
}

// layer is the folder of pkg that an import path lies in; empty for others'.
func layer(path string) string {
	rest, ours := strings.CutPrefix(path, module)
	if !ours {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

func list(t *testing.T) []pkgInfo {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkgInfo
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkgInfo
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}
