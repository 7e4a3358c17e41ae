package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// reads matches names of variables in source code: the arguments of getenv and similar functions, and quoted names with
// the prefixes of gfaas and CUDA.
var reads = regexp.MustCompile(`(?:[gG]etenv|LookupEnv|environ\.get)\(\s*"([A-Z_0-9]+)"|"(GFAAS_[A-Z_0-9]+|CUDA_(?:MPS|VISIBLE|DEVICE)_[A-Z_]+)"`)

// ordinary lists variables that every program reads when it starts others.
var ordinary = []string{"PATH"}

// TestEnvironmentIsListed checks that gfaas-environment(7) lists exactly the variables that the programs and libraries
// read or set.
func TestEnvironmentIsListed(t *testing.T) {
	if testing.Short() {
		t.Skip("runs in one goroutine, and make race checks goroutines")
	}
	listed := map[string]bool{}
	for _, group := range environment {
		for _, v := range group.variables {
			if listed[v.name] {
				t.Errorf("gfaas-environment(7) lists %s twice, want once", v.name)
			}
			listed[v.name] = true
		}
	}
	var all strings.Builder
	for _, root := range []string{"../../../cmd", "../../../pkg", "../../../hook"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := entry.Name()
			if entry.IsDir() && (strings.HasSuffix(name, "test") || slices.Contains([]string{"testdata", "check", "gpucheck", "gendocs", "templates"}, name)) {
				return filepath.SkipDir
			}
			if !slices.Contains([]string{".go", ".c", ".h", ".py"}, filepath.Ext(name)) || strings.HasSuffix(name, "_test.go") {
				return nil
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			for _, m := range reads.FindAllStringSubmatch(string(text), -1) {
				read := m[1] + m[2]
				setting := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(read, "GFAAS_")), "_", "-")
				if !listed[read] && !slices.Contains(ordinary, read) && !slices.Contains(cli.Settings(), setting) {
					t.Errorf("%s reads %s, want it in gfaas-environment(7)", path, read)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	delete(listed, "GFAAS_FLAG") // represents all settings
	for name := range listed {
		if !strings.Contains(all.String(), name) {
			t.Errorf("gfaas-environment(7) lists %s, want only variables that the source names", name)
		}
		if strings.HasPrefix(name, "GFAAS_") && !slices.Contains(cli.Variables(), name) {
			t.Errorf("variables known to package cli: got no %s, want it, or programs report it as unknown", name)
		}
	}
}
