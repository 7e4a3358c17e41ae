package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// tree returns a program with a command that has its own flags, and a command with its own output forms.
func tree(env *Env) *cobra.Command {
	root := &cobra.Command{Use: "tool", Short: "Do things", Long: "All about tool.\n\nAt length."}
	do := &cobra.Command{
		Use: "do THING", Short: "Do a thing", Long: "All about do.", Example: "  tool do it", Args: cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	do.Flags().String("name", "", "what it is called")
	do.Flags().StringArray("set", nil, "a parameter")
	do.Flags().Bool("fast", false, "faster")
	do.Flags().Var(optionalValue{}, "how", "in which way")
	do.Flags().Lookup("how").NoOptDefVal = "well"
	ls := &cobra.Command{Use: "ls", Short: "List things", RunE: func(*cobra.Command, []string) error { return nil }}
	env.Outputs(ls, "table", "json")
	root.AddCommand(do, ls)
	return root
}

// optionalValue is a flag whose value is optional.
type optionalValue struct{}

func (optionalValue) String() string   { return "" }
func (optionalValue) Type() string     { return "well|badly" }
func (optionalValue) Set(string) error { return nil }

// runTool runs a command line and returns its output.
func runTool(t *testing.T, args ...string) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	env := &Env{Prog: "tool", In: strings.NewReader(""), Out: &o, Err: &e}
	if status := env.run(t.Context(), env.Tree(tree), args); status != 0 {
		t.Errorf("%v: got exit status %d, want 0; standard error: %s", args, status, e.String())
	}
	return o.String(), e.String()
}

// TestHelp checks the order of the help: first the usage, last the description. The common flags have a section of
// their own.
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
		text, _ := runTool(t, c.args...)
		rest := text
		for _, part := range c.order {
			_, after, found := strings.Cut(rest, part)
			if !found {
				t.Errorf("help of %v: got no %q after the previous part, want it, in\n%s", c.args, part, text)
				break
			}
			rest = after
		}
		if strings.Contains(text, "\n\n\n") || strings.Contains(text, " \n") {
			t.Errorf("help of %v: got blanks at the end of a line or two empty lines, want neither, in\n%s", c.args, text)
		}
	}
}

// TestFlagsGivenTwice checks the note about a flag with two different values.
func TestFlagsGivenTwice(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	const note = "tool: note: --name is given twice, a and b: using the last value\n"
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
		{"do --fast --fast=false", "tool: note: --fast is given twice, true and false: using the last value\n"},
	} {
		if _, errs := runTool(t, strings.Fields(c.args)...); errs != c.want {
			t.Errorf("%s: %q, want %q", c.args, errs, c.want)
		}
	}
}

// TestListOf checks that completion after a comma offers the words that the list does not contain yet.
func TestListOf(t *testing.T) {
	cmd := &cobra.Command{Use: "tool", Run: func(*cobra.Command, []string) {}}
	cmd.Flags().StringSlice("policy", nil, "")
	ListOf(cmd, "policy", "fcfs", "sjf", "lb")
	for prefix, want := range map[string]string{"": "fcfs sjf lb", "f": "fcfs sjf lb", "fcfs,": "fcfs,sjf fcfs,lb", "lb,fcfs,s": "lb,fcfs,sjf"} {
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"__complete", "--policy", prefix})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		words, _, _ := strings.Cut(out.String(), ":")
		if got := strings.Join(strings.Fields(words), " "); got != want {
			t.Errorf("%q: %q, want %q", prefix, got, want)
		}
	}
}

// TestExitStatuses checks that the help of a command lists the exit statuses of the command and of the commands above
// it, and no others.
func TestExitStatuses(t *testing.T) {
	root := &cobra.Command{Use: "tool"}
	check, other := &cobra.Command{Use: "check"}, &cobra.Command{Use: "other"}
	root.AddCommand(check, other)
	Meaning(root, ExitTimeout, "timeout")
	Meaning(check, ExitNo, "the check failed")
	for _, c := range []struct {
		cmd  *cobra.Command
		want string
		text bool
	}{
		{root, "0 1 2 5 130, 143", true},
		{check, "0 1 2 3 5 130, 143", false},
		{other, "0 1 2 5 130, 143", false},
	} {
		all := NotesOf(c.cmd)
		note := all[len(all)-1]
		var statuses []string
		for _, e := range note.Entries {
			statuses = append(statuses, e.Name)
		}
		if got := strings.Join(statuses, " "); got != c.want || (note.Text != "") != c.text {
			t.Errorf("exit statuses of %s: got %s with the text %q, want %s and a text: %t", c.cmd.Name(), got, note.Text, c.want, c.text)
		}
	}
}
