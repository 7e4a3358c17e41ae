package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gfaas"
)

// line matches a command line in a text: a program of gfaas at the beginning of a quotation or of an example's line, or
// after a prompt, and its arguments.
var line = regexp.MustCompile("(?m)(?:`|'|^ *(?:\\$ )?)(gfaas(?:-[a-z]+)?)( [^`'\n]*)")

// verb matches words that can be the name of a command.
var verb = regexp.MustCompile(`^[a-z][a-z-]*$`)

// TestDocumentedCommandsExist checks that the programs, commands and flags in command lines of the help and the
// documentation exist.
func TestDocumentedCommandsExist(t *testing.T) {
	roots := map[string]*cobra.Command{}
	texts := map[string]string{}
	for name, build := range trees {
		roots[name] = (&cli.Env{Prog: name, Out: t.Output(), Err: t.Output()}).Tree(build)
		roots[name].InitDefaultCompletionCmd("")
		cli.Walk(roots[name], func(cmd *cobra.Command) { texts[cmd.CommandPath()+" --help"] = cmd.Long + "\n" + cmd.Example })
	}
	var files []string
	for _, pattern := range []string{"docs/*.md", "docs/how-to/*.md", "examples/*/README.md", "README.md"} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("files that match %s: got %d, %v; want at least one", pattern, len(found), err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(text)
	}
	seen := 0
	for where, text := range texts {
		for _, m := range line.FindAllStringSubmatch(text, -1) {
			root, rest := roots[m[1]], strings.Fields(strings.TrimRight(m[2], "\\"))
			if root == nil {
				t.Errorf("%s: %s%s: the program does not exist", where, m[1], m[2])
				continue
			}
			if m[1] == "gfaas" && len(rest) > 0 && roots["gfaas-"+rest[0]] != nil { // such as gfaas place plan
				root, rest = roots["gfaas-"+rest[0]], rest[1:]
			}
			cmd, rest := reached(root, rest)
			if cmd.HasSubCommands() && len(rest) > 0 && verb.MatchString(rest[0]) && !prose[strings.TrimRight(rest[0], ".,:;")] {
				t.Errorf("%s: %s%s: %s has no command %s", where, m[1], m[2], cmd.CommandPath(), rest[0])
			}
			if cmd.HasSubCommands() && len(rest) > 0 && strings.ToUpper(rest[0]) == rest[0] && !strings.HasPrefix(rest[0], "-") {
				continue // a placeholder such as GENERATOR
			}
			for _, flag := range flagsOf(rest) {
				if cmd.Flags().Lookup(flag) == nil && cmd.InheritedFlags().Lookup(flag) == nil && flag != "help" && flag != "version" {
					t.Errorf("%s: %s%s: %s has no flag --%s", where, m[1], m[2], cmd.CommandPath(), flag)
				}
			}
			seen++
		}
	}
	if seen < 100 {
		t.Errorf("command lines in the documentation: got %d, want at least 100", seen)
	}
}

// prose lists words that follow a program's name in sentences.
var prose = map[string]bool{"answers": true, "is": true, "listens": true, "nor": true, "plans": true, "runs": true, "starts": true, "this": true}

// reached returns the command that words lead to, and the remaining words.
func reached(cmd *cobra.Command, words []string) (*cobra.Command, []string) {
	for len(words) > 0 {
		at := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == words[0] || c.HasAlias(words[0]) })
		if at < 0 {
			break
		}
		cmd, words = cmd.Commands()[at], words[1:]
	}
	return cmd, words
}

// flagsOf returns the long flags among words, up to the end of the command.
func flagsOf(words []string) (names []string) {
	for _, w := range words {
		if w == "--" || strings.ContainsAny(w, "|;&<>#()") {
			break
		}
		if name, is := strings.CutPrefix(w, "--"); is {
			name, _, _ = strings.Cut(name, "=")
			names = append(names, strings.TrimRight(name, ".,:"))
		}
	}
	return names
}

// TestProgramsAreListed checks that gfaas lists every program, with the program's own summary.
func TestProgramsAreListed(t *testing.T) {
	summaries := map[string]string{}
	for _, cmd := range (&cli.Env{Prog: "gfaas", Out: t.Output(), Err: t.Output()}).Tree(gfaas.NewRoot).Commands() {
		if gfaas.IsPlugin(cmd) {
			summaries["gfaas-"+cmd.Name()] = cmd.Short
		}
	}
	for name, build := range trees {
		if name == "gfaas" {
			continue
		}
		short := (&cli.Env{Prog: name, Out: t.Output(), Err: t.Output()}).Tree(build).Short
		if summaries[name] != short {
			t.Errorf("summary of %s in gfaas: got %q, want the program's own, %q", name, summaries[name], short)
		}
	}
	if len(summaries) != len(trees)-1 {
		t.Errorf("programs that gfaas lists: got %d, want %d", len(summaries), len(trees)-1)
	}
}
