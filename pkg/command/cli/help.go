package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// formOfErrors is the usage of -o where a command prints nothing else by it.
const formOfErrors = "form of errors"

// isCommon says whether a flag means the same to every command: one of the root's own
// that all inherit, those of cobra's, and -o where it is of errors alone.
func isCommon(cmd *cobra.Command, f *pflag.Flag) bool {
	return f.Name == "help" || f.Name == "version" || strings.HasPrefix(f.Usage, formOfErrors) ||
		cmd.Root().PersistentFlags().Lookup(f.Name) == f
}

// printHelp prints what a command is, how it is called and by which flags, for who
// wants to be reminded, and after that all there is to be said.
func printHelp(w io.Writer, cmd *cobra.Command) {
	var b strings.Builder
	b.WriteString(cmd.Short + "\n\nUsage:\n")
	if cmd.Runnable() && cmd.Annotations[parentKey] == "" {
		b.WriteString("  " + cmd.UseLine() + "\n")
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("  " + cmd.CommandPath() + " COMMAND\n")
	}
	if len(cmd.Aliases) > 0 {
		b.WriteString("\nAliases:\n  " + cmd.NameAndAliases() + "\n")
	}
	if cmd.HasExample() {
		b.WriteString("\nExamples:\n" + strings.TrimRight(cmd.Example, "\n") + "\n")
	}
	printCommands(&b, cmd)
	own, common := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, set := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.InheritedFlags()} {
		set.VisitAll(func(f *pflag.Flag) {
			if isCommon(cmd, f) {
				common.AddFlag(f)
			} else {
				own.AddFlag(shown(f))
			}
		})
	}
	if own.HasAvailableFlags() {
		b.WriteString("\nFlags:\n" + own.FlagUsages())
	}
	b.WriteString("\nCommon flags:\n" + common.FlagUsages())
	notes := NotesOf(cmd)
	if long := strings.TrimSpace(cmd.Long); long != "" && long != cmd.Short {
		notes = slices.Insert(notes, 0, Note{"DESCRIPTION", long})
	}
	for _, n := range notes {
		b.WriteString("\n" + n.Title + "\n")
		for line := range strings.Lines(n.Text + "\n") {
			if line != "\n" {
				line = "  " + line
			}
			b.WriteString(line)
		}
	}
	_, _ = io.WriteString(w, b.String()) // the writer keeps the error
}

// Alternatives are the words that a flag takes which may be given alone too, as
// swap|checkpoint, which its type is called; empty for other flags.
func Alternatives(f *pflag.Flag) string {
	if f.NoOptDefVal == "" || !strings.Contains(f.Value.Type(), "|") {
		return ""
	}
	return f.Value.Type()
}

// shown is a flag as usages show it: pflag would write --park swap|checkpoint[=swap],
// and a value behind a blank is none.
func shown(f *pflag.Flag) *pflag.Flag {
	words := Alternatives(f)
	if words == "" {
		return f
	}
	c := *f
	c.NoOptDefVal, c.Value = words, nameless{f.Value}
	return &c
}

// nameless is a value without a name for its type.
type nameless struct{ pflag.Value }

func (nameless) Type() string { return "" }

// parentKey is the annotation of a command that by itself only prints its help.
const parentKey = "gfaas-parent"

// showHelp makes a command that does nothing by itself print its help.
func showHelp(cmd *cobra.Command) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[parentKey] = "true"
	cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// printCommands lists the commands below one, by their groups.
func printCommands(b *strings.Builder, cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	list := func(title, group string) {
		first := true
		for _, sub := range cmd.Commands() {
			if sub.GroupID != group || !sub.IsAvailableCommand() && sub.Name() != "help" {
				continue
			}
			if first {
				b.WriteString("\n" + title + "\n")
				first = false
			}
			fmt.Fprintf(b, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
		}
	}
	for _, g := range cmd.Groups() {
		list(g.Title, g.ID)
	}
	list("Commands:", "")
	fmt.Fprintf(b, "\n'%s COMMAND --help' says more of one.\n", cmd.CommandPath())
}
