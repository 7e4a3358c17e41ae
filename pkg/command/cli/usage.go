package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// expected describes the values of each pflag type for error messages. Flag types of this project
// return such a description in their own errors.
var expected = map[string]string{
	"bool": "true or false", "duration": "a duration like 1.5s", "float64": "a number like 12.5",
	"int": "a whole number", "intSlice": "whole numbers, with commas between them", "int64": "a whole number", "uint": "a whole number from 0", "uint64": "a whole number from 0",
}

// flagFault rewords pflag's error about a flag's value, which otherwise quotes the strconv or time
// function that failed.
func flagFault(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	want, known := expected[bad.GetFlag().Value.Type()]
	if !known {
		return err
	}
	switch {
	case errors.Is(err, errVanished):
		want += " farther from 0, or exactly 0"
	case errors.Is(err, strconv.ErrRange):
		want += " closer to 0"
	}
	return fmt.Errorf("invalid argument %q for \"--%s\" flag: expected %s", bad.GetValue(), bad.GetFlag().Name, want)
}

// unknownFlag adds a suggestion to the error about an unknown flag.
func unknownFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, suggestion("--"+unknown.GetSpecifiedName(), flags))
}

// checkArgs turns a wrong number of arguments into a usage error.
func checkArgs(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		return Fail(ExitUsage, seeHelp(c), argsFault(c, args, check(c, args)))
	}
}

// argsFault adds to the error about a wrong number of arguments either the arguments of the usage
// line or the suggestion of a subcommand.
func argsFault(cmd *cobra.Command, args []string, err error) error {
	if err == nil {
		return nil
	}
	_, expected, takesArgs := strings.Cut(cmd.Use, " ")
	unknown := cobra.NoArgs(cmd, args) // reports the first argument as an unknown command
	switch {
	case unknown != nil && err.Error() == unknown.Error() && !cmd.HasSubCommands():
		if !takesArgs {
			expected = flagsBefore(cmd, args[0])
		}
		return fmt.Errorf("%q: %s takes no arguments, expected %s", args[0], cmd.CommandPath(), expected)
	case takesArgs:
		return fmt.Errorf("%w: expected %s", err, expected)
	case len(args) > 0:
		return fmt.Errorf("%w%s", err, suggestedCommand(cmd, args[0]))
	}
	return err
}

// flagsBefore returns the flags that probably belong before a file given as an argument: those that are
// not set and complete file names with the same extension.
func flagsBefore(cmd *cobra.Command, file string) string {
	var flags []string
	extension := strings.TrimPrefix(filepath.Ext(file), ".")
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		complete, ok := cmd.GetFlagCompletionFunc(f.Name)
		if f.Changed || extension == "" || !ok {
			return
		}
		if extensions, directive := complete(cmd, nil, ""); directive == cobra.ShellCompDirectiveFilterFileExt && slices.Contains(extensions, extension) {
			flags = append(flags, "--"+f.Name)
		}
	})
	if len(flags) == 0 {
		return "only flags"
	}
	return strings.Join(flags, " or ") + " before it"
}

// subcommands returns the names of the available subcommands.
func subcommands(cmd *cobra.Command) []string {
	return lists.Map(lists.Filter(cmd.Commands(), (*cobra.Command).IsAvailableCommand), (*cobra.Command).Name)
}

// rejectUnknownTopics makes the help command fail for an unknown topic. Cobra's own prints the root's help
// and exits with 0.
func rejectUnknownTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil || help == root {
		return // the program has no subcommands
	}
	help.Args = func(_ *cobra.Command, args []string) error {
		cmd, unmatched, err := root.Find(args)
		if err == nil && len(unmatched) > 0 {
			err = unknownCommand(cmd, unmatched[0])
		}
		return Fail(ExitUsage, seeHelp(cmd), err)
	}
}

// rejectUnknownShells makes the completion command fail for an unknown shell. Cobra's own prints its help and
// exits with 0.
func rejectUnknownShells(root *cobra.Command, args []string) {
	root.InitDefaultCompletionCmd(args...)
	completion, _, err := root.Find([]string{"completion"})
	if err != nil || completion == root {
		return // the arguments do not use the command
	}
	Walk(completion, checkArgs)
	showHelp(completion)
}

func unknownCommand(parent *cobra.Command, name string) error {
	return fmt.Errorf("unknown command %q for %q%s", name, parent.CommandPath(), suggestedCommand(parent, name))
}

// suggestedCommand returns ": COMMAND?" for the command that lists the name in SuggestFor or, failing
// that, has the most similar name. It returns "" if there is none.
func suggestedCommand(parent *cobra.Command, name string) string {
	for _, sub := range parent.Commands() {
		if slices.Contains(sub.SuggestFor, name) {
			return ": " + sub.Name() + "?"
		}
	}
	return suggestion(name, subcommands(parent))
}

func seeHelp(cmd *cobra.Command) string { return fmt.Sprintf("see '%s --help'", cmd.CommandPath()) }

// suggestion returns ": WORD?" with the word most similar to the user's, or "" if none is similar.
func suggestion(word string, words []string) string {
	if near := textfile.Near(strings.ToLower(word), words); near != "" {
		return ": " + near + "?"
	}
	return ""
}

// Note is a section at the end of a help text and man page: a list, which may be empty, and a text.
type Note struct {
	Title   string
	Entries []Entry
	Text    string
}

// notes holds the sections whose text all commands share.
var notes = []Note{
	{Title: "SETTINGS", Text: `You can also set every flag in the environment or in the settings file. For
example, --gpu-mem 16GiB is the same as GFAAS_GPU_MEM=16GiB in the environment, and
as the line "gpu-mem: 16GiB" in the file. A flag takes precedence over the environment,
and the environment over the file. All gfaas programs read the same file. A line that
sets no flag of any gfaas program is an error.`},
}
