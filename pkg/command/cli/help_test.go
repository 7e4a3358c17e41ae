package cli

import (
	"bytes"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

// tree is a program with a command that has flags of its own, and one with a form of
// its output.
func tree(env *Env) *cobra.Command {
	root := &cobra.Command{Use: "tool", Short: "Do things", Long: "All about tool.\n\nAt length."}
	do := &cobra.Command{
		Use: "do THING", Short: "Do a thing", Long: "All about do.", Example: "  tool do it", Args: cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	do.Flags().String("name", "", "what it is called")
	do.Flags().StringArray("set", nil, "a parameter")
	do.Flags().Bool("fast", false, "faster")
	do.Flags().Var(way{}, "how", "in which way")
	do.Flags().Lookup("how").NoOptDefVal = "well"
	ls := &cobra.Command{Use: "ls", Short: "List things", RunE: func(*cobra.Command, []string) error { return nil }}
	env.Outputs(ls, "table", "json")
	root.AddCommand(do, ls)
	return root
}

// way is a value that may be left out.
type way struct{}

func (way) String() string   { return "" }
func (way) Type() string     { return "well|badly" }
func (way) Set(string) error { return nil }

// said runs a command line and returns what it prints.
func said(t *testing.T, args ...string) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	env := &Env{Prog: "tool", In: strings.NewReader(""), Out: &o, Err: &e}
	if status := env.run(t.Context(), env.Tree(tree), args, func() syscall.Signal { return 0 }); status != 0 {
		t.Errorf("%v: status %d, %s", args, status, e.String())
	}
	return o.String(), e.String()
}

// Whoever asks for help sees first how a command is called, and last all about it;
// what all commands have is apart from what is its own.
func TestHelp(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, c := range []struct {
		args  []string
		order []string
	}{
		{[]string{"do", "--help"}, []string{"Do a thing\n", "\nUsage:\n  tool do THING [flags]\n", "\nExamples:\n  tool do it\n", "\nFlags:\n", "--fast", "--how[=well|badly]   in which way\n", "--name string", "--set",
			"\nCommon flags:\n", "--config", "--help", "--out-file", "-o, --output", "--quiet", "--version", "\nDESCRIPTION\n  All about do.\n", "\nSETTINGS\n", "\nEXIT STATUS\n"}},
		{[]string{"help", "ls"}, []string{"List things\n", "\nUsage:\n", "\nFlags:\n  -o, --output", "\nCommon flags:\n", "--config", "\nSETTINGS\n"}},
		{[]string{}, []string{"Do things\n", "\nUsage:\n  tool COMMAND\n", "\nCommands:\n", "  completion ", "  do ", "  help ", "  ls ", "\nCommon flags:\n", "--config", "\nDESCRIPTION\n  All about tool.\n\n  At length.\n", "\nSETTINGS\n"}},
	} {
		text, _ := said(t, c.args...)
		rest := text
		for _, part := range c.order {
			_, after, found := strings.Cut(rest, part)
			if !found {
				t.Errorf("%v: no %q where it is expected, in\n%s", c.args, part, text)
				break
			}
			rest = after
		}
		if strings.Contains(text, "\n\n\n") || strings.Contains(text, " \n") {
			t.Errorf("%v: blanks at the end of a line, or two empty lines, in\n%s", c.args, text)
		}
	}
}

// A flag that is given twice says which one counts.
func TestFlagsGivenTwice(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	const note = "tool: note: --name is given twice, a and b: the last counts\n"
	for _, c := range []struct {
		args string
		want string
	}{
		{"do --name a --name b", note},
		{"do --name=a it --name=b", note},
		{"--out-file x do --name a --name b", note},
		{"do --name a --name a", ""},
		{"do --set a=1 --set b=2", ""},
		{"do --name a -- --name b", ""},
		{"do -q --name a --name b", ""},
		{"do --fast --fast=false", "tool: note: --fast is given twice, true and false: the last counts\n"},
	} {
		if _, errs := said(t, strings.Fields(c.args)...); errs != c.want {
			t.Errorf("%s: %q, want %q", c.args, errs, c.want)
		}
	}
}

// A list is completed after each comma, with what it has not yet.
func TestListOf(t *testing.T) {
	cmd := &cobra.Command{Use: "tool", Run: func(*cobra.Command, []string) {}}
	cmd.Flags().StringSlice("policy", nil, "")
	ListOf(cmd, "policy", "fcfs", "sjf", "lb")
	for begun, want := range map[string]string{"": "fcfs sjf lb", "f": "fcfs sjf lb", "fcfs,": "fcfs,sjf fcfs,lb", "lb,fcfs,s": "lb,fcfs,sjf"} {
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"__complete", "--policy", begun})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		words, _, _ := strings.Cut(out.String(), ":")
		if got := strings.Join(strings.Fields(words), " "); got != want {
			t.Errorf("%q: %q, want %q", begun, got, want)
		}
	}
}
