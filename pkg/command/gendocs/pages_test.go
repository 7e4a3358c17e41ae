package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gfaas"
)

// generatePages returns the man pages of a program by file name.
func generatePages(t *testing.T, name string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	if err := generate(name, trees[name], dir, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(files) == 0 {
		t.Fatalf("man pages of %s: got %d, %v; want at least one", name, len(files), err)
	}
	pages := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(file)] = string(text)
	}
	return pages
}

// TestPagesListFlags checks that each man page describes the common flags once, and shows the values of flags whose value
// is optional.
func TestPagesListFlags(t *testing.T) {
	for name := range trees {
		for page, text := range generatePages(t, name) {
			if strings.Contains(text, "[=]") || strings.Contains(text, `[=""]`) {
				t.Errorf("%s: got a flag without a name for its value, want one", page)
			}
			_, common, _ := strings.Cut(text, "\n.SH COMMON OPTIONS\n")
			common, _, _ = strings.Cut(common, "\n.SH ")
			for _, flag := range []string{"config", "help", "no-color", "out-file", "quiet", "verbose", "version"} {
				entry := regexp.MustCompile(`(?m)^\\fB(\\-[a-z], )?\\-\\-` + strings.ReplaceAll(flag, "-", `\\-`) + `( [a-z]+)?\\fP$`)
				if !entry.MatchString(common) || len(entry.FindAllString(text, -1)) != 1 {
					t.Errorf("%s: want the option --%s described once, with the common options", page, flag)
				}
			}
		}
	}
}

// TestPagesOrder checks the order of the sections: examples come directly after the description, before the options.
func TestPagesOrder(t *testing.T) {
	order := []string{"NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "COMMANDS", "OPTIONS", "COMMON OPTIONS", "SETTINGS", "EXIT STATUS", "SEE ALSO"}
	for name := range trees {
		for page, text := range generatePages(t, name) {
			var titles []string
			for _, m := range regexp.MustCompile(`(?m)^\.SH (.*)$`).FindAllStringSubmatch(text, -1) {
				titles = append(titles, m[1])
			}
			want := slices.DeleteFunc(slices.Clone(order), func(title string) bool {
				return !slices.Contains(titles, title) && slices.Contains([]string{"EXAMPLES", "COMMANDS", "OPTIONS"}, title)
			})
			if !slices.Equal(titles, want) {
				t.Errorf("%s has the sections %q, want %q", page, titles, want)
			}
		}
	}
}

// TestPageListsCommands checks that gfaas(1) lists every command with its summary.
func TestPageListsCommands(t *testing.T) {
	text := generatePages(t, "gfaas")["gfaas.1"]
	for _, cmd := range documented((&cli.Env{Prog: "gfaas", Out: t.Output(), Err: t.Output()}).Tree(gfaas.NewRoot)) {
		entry := ".TP\n\\fB" + roff.Replace("gfaas-"+cmd.Name()) + "\\fP(1)\n" + roff.Replace(cmd.Short) + "\n"
		if strings.Count(text, entry) != 1 {
			t.Errorf("gfaas.1: want the command %s once, as in\n%s", cmd.Name(), entry)
		}
	}
}

// TestPreformatted checks that lists in descriptions become blocks of code, which keep their lines.
func TestPreformatted(t *testing.T) {
	for text, want := range map[string]string{
		"a\nb\n\nc":                 "a\nb\n\nc",
		"a:\n\n  x  1\n  y  2\n\nb": "a:\n\n      x  1\n      y  2\n\nb",
		"a:\n  x\nb":                "a:\n\n      x\nb",
	} {
		if got := preformatted(text); got != want {
			t.Errorf("preformatted(%q) = %q, want %q", text, got, want)
		}
	}
	if !bytes.Contains([]byte(generatePages(t, "gfaas")["gfaas-ps.1"]), []byte("\n  starting  it has not answered yet\n  ready     it has answered\n")) {
		t.Error("gfaas-ps.1: got the lines of its list joined or lost, want them kept")
	}
}
