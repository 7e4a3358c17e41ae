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

	"github.com/gfaas/gfaas/pkg/textfile"
)

// expected is what the flags of each type take, as messages say it. Types of
// our own say it themselves.
var expected = map[string]string{
	"bool": "true or false", "duration": "a duration like 1.5s", "float64": "a number like 12.5",
	"int": "a whole number", "intSlice": "whole numbers, with commas between them", "int64": "a whole number", "uint": "a whole number from 0", "uint64": "a whole number from 0",
}

// flagFault is an error of parsing flags in the words of the command line, not
// those of the library that parsed the value.
func flagFault(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	want, known := expected[bad.GetFlag().Value.Type()]
	if !known {
		return err
	}
	switch {
	case errors.Is(err, errVanished):
		want += ", or 0, but nothing as near to it"
	case errors.Is(err, strconv.ErrRange):
		want += " nearer to 0"
	}
	return fmt.Errorf("invalid argument %q for \"--%s\" flag: expected %s", bad.GetValue(), bad.GetFlag().Name, want)
}

// unknownFlag adds a suggestion to the error of a flag that a command does not
// have.
func unknownFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, suggestion("--"+unknown.GetSpecifiedName(), flags))
}

// checkArgs makes a wrong number of arguments an error of usage.
func checkArgs(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		return Fail(ExitUsage, seeHelp(c), argsFault(c, args, check(c, args)))
	}
}

// argsFault adds to the error of a wrong number of arguments those that the
// command's usage line names, or a suggestion of a subcommand.
func argsFault(cmd *cobra.Command, args []string, err error) error {
	if err == nil {
		return nil
	}
	_, expected, some := strings.Cut(cmd.Use, " ")
	none := cobra.NoArgs(cmd, args) // which takes the first for a command
	switch {
	case none != nil && err.Error() == none.Error() && !cmd.HasSubCommands():
		if !some {
			expected = flagOf(cmd, args[0])
		}
		return fmt.Errorf("%q: %s takes no arguments, expected %s", args[0], cmd.CommandPath(), expected)
	case some:
		return fmt.Errorf("%w: expected %s", err, expected)
	case len(args) > 0:
		return fmt.Errorf("%w%s", err, suggestedCommand(cmd, args[0]))
	}
	return err
}

// flagOf is the flag that takes a file which stands there without one: those that are
// not given and take files of its ending.
func flagOf(cmd *cobra.Command, file string) string {
	var takers []string
	ending := strings.TrimPrefix(filepath.Ext(file), ".")
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		complete, some := cmd.GetFlagCompletionFunc(f.Name)
		if f.Changed || ending == "" || !some {
			return
		}
		if endings, how := complete(cmd, nil, ""); how == cobra.ShellCompDirectiveFilterFileExt && slices.Contains(endings, ending) {
			takers = append(takers, "--"+f.Name)
		}
	})
	if len(takers) == 0 {
		return "flags alone"
	}
	return strings.Join(takers, " or ") + " before it"
}

// subcommands are the names of a command's own commands.
func subcommands(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// refuseHelp has the help command fail on what it has no help about. Cobra's own
// prints the help of the root and exits 0.
func refuseHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil || help == root {
		return // a program without commands
	}
	help.Args = func(_ *cobra.Command, args []string) error {
		cmd, rest, err := root.Find(args)
		if err == nil && len(rest) > 0 {
			err = unknownCommand(cmd, rest[0])
		}
		return Fail(ExitUsage, seeHelp(cmd), err)
	}
}

// refuseShells has the completion command fail on a shell that it knows nothing of.
// Cobra's own prints its help and exits 0.
func refuseShells(root *cobra.Command, args []string) {
	root.InitDefaultCompletionCmd(args...)
	completion, _, err := root.Find([]string{"completion"})
	if err != nil || completion == root {
		return // not asked for
	}
	walk(completion, checkArgs)
	showHelp(completion)
}

func unknownCommand(parent *cobra.Command, name string) error {
	return fmt.Errorf("unknown command %q for %q%s", name, parent.CommandPath(), suggestedCommand(parent, name))
}

// suggestedCommand is ": COMMAND?" with the command that says it is meant by that name,
// else the one whose name is nearest.
func suggestedCommand(parent *cobra.Command, name string) string {
	for _, sub := range parent.Commands() {
		if slices.Contains(sub.SuggestFor, name) {
			return ": " + sub.Name() + "?"
		}
	}
	return suggestion(name, subcommands(parent))
}

func seeHelp(cmd *cobra.Command) string { return fmt.Sprintf("see '%s --help'", cmd.CommandPath()) }

// suggestion is ": WORD?" with the word that is nearest to what the user wrote;
// empty when none is near.
func suggestion(what string, words []string) string {
	if near := textfile.Near(strings.ToLower(what), words); near != "" {
		return ": " + near + "?"
	}
	return ""
}

const exitTitle = "EXIT STATUS"

// Note is a section that every help text and man page ends with.
type Note struct{ Title, Text string }

// ExitText describes the exit statuses of every binary.
const ExitText = `0 done; 1 failed (bad input included); 2 wrong usage; 3 the answer is no;
4 something needed is missing; 5 timed out; 6 state locked; 7 partly done,
can be resumed; 130, 143 ended by SIGINT, SIGTERM`

// notes are all of them.
var notes = []Note{
	{"SETTINGS", `Every flag can be given as GFAAS_FLAG in the environment (GFAAS_GPU_MEM is
--gpu-mem), or as a line of the settings file (gpu-mem: 16GiB); a flag wins
over the environment, the environment over the file. The file is for all
programs; a line that none of them knows is an error.`},
	{exitTitle, ExitText},
}
