package gfaas

import (
	"io/fs"
	"slices"
	"testing"
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
