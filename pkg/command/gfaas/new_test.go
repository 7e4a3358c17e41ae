package gfaas

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
)

// TestTemplatesHaveFolders checks that every template has a folder, and that every folder except shared belongs to a
// template.
func TestTemplatesHaveFolders(t *testing.T) {
	entries, err := fs.ReadDir(templates, "templates")
	if err != nil {
		t.Fatal(err)
	}
	got := append([]string{"shared"}, templateNames()...)
	var want []string
	for _, e := range entries {
		want = append(want, e.Name())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("shared and the templates are %q, the folders %q", got, want)
	}
}

// TestTemplatesAreValid checks that the function of every template can be applied and has the requests that new names.
// For a server that the user installs, function.yaml sets the keys that matter and has a comment on each line.
func TestTemplatesAreValid(t *testing.T) {
	for _, tm := range templateList {
		t.Run(tm.name, func(t *testing.T) {
			files, err := tm.files("f-1")
			if err != nil {
				t.Fatal(err)
			}
			texts := map[string][]byte{}
			for _, f := range files {
				texts[f.name] = f.text
			}
			functions, err := function.Parse(bytes.NewReader(texts["function.yaml"]), "f-1/function.yaml")
			if err != nil {
				t.Fatal(err)
			}
			fn := functions[0]
			if len(functions) != 1 || fn.Name != "f-1" || fn.GPUMem == 0 || len(texts["README.md"]) == 0 {
				t.Errorf("got %+v; want one function f-1 with gpu_mem, and a README.md", functions)
			}
			if (tm.request == "") == (tm.try == "") {
				t.Errorf("request %q and try %q, want one of them", tm.request, tm.try)
			}
			if text := texts[tm.request]; tm.request != "" && (len(text) == 0 || strings.HasSuffix(tm.request, ".json") && !json.Valid(text)) {
				t.Errorf("%s has the content %q, want a request", tm.request, text)
			}
			if tm.run != "" {
				return
			}
			if fn.Contract == "auto" || fn.Timeout == 0 || fn.Scale == function.DefaultScale {
				t.Errorf("got %+v; want a contract, timeout and scale", fn)
			}
			if command := strings.Join(fn.Command, " "); !strings.HasPrefix(command, "sh -c exec ") || !strings.Contains(command, "port $PORT") {
				t.Errorf("command %q, want one that the shell replaces by a server at $PORT", command)
			}
			for n, line := range strings.Split(strings.TrimSpace(string(texts["function.yaml"])), "\n") {
				if !strings.Contains(line, "# ") {
					t.Errorf("line %d of function.yaml has no comment: %s", n+1, line)
				}
			}
		})
	}
}
