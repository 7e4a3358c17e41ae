package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// formOfErrors is the usage of -o for commands that print only errors in that form.
const formOfErrors = "form of error messages on standard error: table prints text, and json prints text and then a JSON object"

// isCommon reports whether a flag has the same meaning in every command: the root's persistent
// flags, cobra's own, and -o if it affects only errors.
func isCommon(cmd *cobra.Command, f *pflag.Flag) bool {
	return f.Name == "help" || f.Name == "version" || f.Usage == formOfErrors ||
		cmd.Root().PersistentFlags().Lookup(f.Name) == f
}

// printHelp prints a command's reference (summary, usage, examples, flags), followed by the
// description and the common notes.
func printHelp(w io.Writer, cmd *cobra.Command) {
	var b strings.Builder
	b.WriteString(cmd.Short + "\n\nUsage:\n")
	for _, usage := range Usages(cmd) {
		b.WriteString("  " + usage + "\n")
	}
	if len(cmd.Aliases) > 0 {
		b.WriteString("\nAliases:\n  " + cmd.NameAndAliases() + "\n")
	}
	if cmd.HasExample() {
		b.WriteString("\nExamples:\n" + strings.TrimRight(cmd.Example, "\n") + "\n")
	}
	printCommands(&b, cmd)
	own, common := Flags(cmd)
	if own.HasAvailableFlags() {
		b.WriteString("\nFlags:\n" + own.FlagUsages())
	}
	b.WriteString("\nCommon flags:\n" + common.FlagUsages())
	notes := NotesOf(cmd)
	if long := strings.TrimSpace(cmd.Long); long != "" && long != cmd.Short {
		notes = slices.Insert(notes, 0, Note{Title: "DESCRIPTION", Text: long})
	}
	for _, n := range notes {
		b.WriteString("\n" + n.Title + "\n" + Entries(n.Entries))
		if n.Text == "" {
			continue
		}
		if len(n.Entries) > 0 {
			b.WriteString("\n")
		}
		for line := range strings.Lines(n.Text + "\n") {
			if line != "\n" {
				line = "  " + line
			}
			b.WriteString(line)
		}
	}
	_, _ = io.WriteString(w, b.String()) // the writer keeps the error
}

// Usages returns the usage lines of a command.
func Usages(cmd *cobra.Command) (lines []string) {
	if cmd.Runnable() && cmd.Annotations[parentKey] == "" {
		lines = append(lines, cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		lines = append(lines, cmd.CommandPath()+" COMMAND")
	}
	return lines
}

// Flags returns the flags of a command for its help and its man page: its own, and those that have the same meaning
// in every command.
func Flags(cmd *cobra.Command) (own, common *pflag.FlagSet) {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	own, common = pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, set := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.InheritedFlags()} {
		set.VisitAll(func(f *pflag.Flag) {
			if isCommon(cmd, f) {
				common.AddFlag(f)
			} else {
				own.AddFlag(displayed(f))
			}
		})
	}
	return own, common
}

// alternatives returns the words of a flag whose value is optional, such as swap|checkpoint, which
// is also the name of its type. It returns "" for other flags.
func alternatives(f *pflag.Flag) string {
	if f.NoOptDefVal == "" || !strings.Contains(f.Value.Type(), "|") {
		return ""
	}
	return f.Value.Type()
}

// displayed returns a flag as the help shows it. A value that is optional has the usage --park[=swap|checkpoint]: the
// form that pflag prints, --park swap|checkpoint[=swap], suggests a value after a blank, which pflag would not accept.
// A default of 0s is not shown, because pflag recognizes zero durations only in its own types.
func displayed(f *pflag.Flag) *pflag.Flag {
	shown := *f
	if words := alternatives(f); words != "" {
		shown.NoOptDefVal, shown.Value = words, withoutTypeName{f.Value}
	}
	if f.DefValue == "0s" {
		shown.DefValue = ""
	}
	return &shown
}

// withoutTypeName is a flag value without a type name.
type withoutTypeName struct{ pflag.Value }

func (withoutTypeName) Type() string { return "" }

// parentKey is the annotation of a command that only prints its help.
const parentKey = "gfaas-parent"

// showHelp makes a command without an action print its help.
func showHelp(cmd *cobra.Command) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[parentKey] = "true"
	cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// printCommands lists the subcommands of a command by group.
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
	fmt.Fprintf(b, "\nRun '%s COMMAND --help' for the help of a command.\n", cmd.CommandPath())
}
