package gfaas

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// TestRootOfOneCommand checks that the tree for a command's arguments contains this command alone, with the help that it
// has in the whole tree.
func TestRootOfOneCommand(t *testing.T) {
	tree := func(args ...string) *cobra.Command {
		env := &cli.Env{Prog: "gfaas", Out: t.Output(), Err: t.Output()}
		return env.Tree(func(env *cli.Env) *cobra.Command { return newRoot(newTool(env), args) })
	}
	help := func(root *cobra.Command, name string) string {
		t.Helper()
		var out strings.Builder
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		cmd.SetOut(&out)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	whole := tree()
	for _, cmd := range whole.Commands() {
		if cmd.Name() == "help" {
			continue
		}
		var names []string
		root := tree(cmd.Name(), "--help")
		for _, cmd := range root.Commands() {
			names = append(names, cmd.Name())
		}
		if got := strings.Join(names, " "); got != cmd.Name() && got != cmd.Name()+" help" && got != "help "+cmd.Name() {
			t.Errorf("gfaas %s: got the commands %s, want only this one and help", cmd.Name(), got)
		}
		if got, want := help(root, cmd.Name()), help(whole, cmd.Name()); got != want || got == "" {
			t.Errorf("help of gfaas %s: got\n%s\nwant\n%s", cmd.Name(), got, want)
		}
	}
	for _, args := range [][]string{{"help"}, {"--quiet", "run"}, {"rn"}, {"__complete", "run", ""}} {
		if got, want := len(tree(args...).Commands()), len(whole.Commands()); got != want {
			t.Errorf("gfaas %q: got %d commands, want all %d", args, got, want)
		}
	}
}
