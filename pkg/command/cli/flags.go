package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// outputKey is the annotation of a command that lists its output forms.
const outputKey = "gfaas-output"

// anyForm lists the output forms of all commands. The setting "output" may name any of them; a
// command that does not offer the form ignores the setting.
var anyForm = []string{"table", "wide", "json", "jsonl", "csv", "yaml", "svg", "html"}

// form is the value of one command's -o. Because defaults differ between commands, Env.Output
// changes only when the flag is set or settleFlags prepares the command.
type form struct {
	env   *Env
	value string
}

func (f *form) String() string { return f.value }
func (f *form) Type() string   { return "string" }
func (f *form) Set(s string) error {
	f.value, f.env.Output = s, s
	return nil
}

// Outputs adds the flag -o with the given forms to a command. The first form is the default.
func (env *Env) Outputs(cmd *cobra.Command, forms ...string) {
	addOutput(env, cmd, "output format: "+strings.Join(forms, ", "), forms)
}

func addOutput(env *Env, cmd *cobra.Command, usage string, forms []string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[outputKey] = strings.Join(forms, "|")
	cmd.Flags().VarP(&form{env: env, value: forms[0]}, "output", "o", usage)
	CompleteWords(cmd, "output", forms...)
}

// outputBefore returns the output form from the arguments or, failing that, the environment. It
// serves errors that occur before cobra has parsed the flags.
func outputBefore(args []string) string {
	form := os.Getenv("GFAAS_OUTPUT")
	for i, arg := range args {
		value, joined := strings.CutPrefix(arg, "--output=")
		switch {
		case arg == "--":
			return form
		case joined:
			form = value
		case arg == "-o" || arg == "--output":
			form = strings.Join(args[i+1:min(i+2, len(args))], "")
		case strings.HasPrefix(arg, "-o"):
			form = strings.TrimPrefix(arg[len("-o"):], "=")
		}
	}
	return form
}

// addCommon prepares a whole command tree: common flags, settings from the environment and the
// config file, help texts, and usage errors with their exit status and hint.
func (env *Env) addCommon(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	pf := root.PersistentFlags()
	pf.StringVar(&env.OutFile, "out-file", "", "write the output of this gfaas command to this `file` instead of standard output; an existing file is replaced only when the output is complete")
	pf.BoolVarP(&env.Quiet, "quiet", "q", false, "print only errors to standard error, and warnings about misspelt columns in CSV files")
	pf.BoolVarP(&env.Verbose, "verbose", "v", false, "print more details to standard error")
	pf.BoolVar(&env.noColor, "no-color", false, "print without colours (also NO_COLOR)")
	pf.StringVar(&env.config, "config", "", "settings `file` (default $XDG_CONFIG_HOME/gfaas/config.yaml)")
	CompleteFiles(root, "yaml yml", "config")
	CompleteFiles(root, "", "out-file")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return env.settleFlags(cmd) }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if first := cmd.Flags().Arg(0); first != "" && cmd.HasSubCommands() {
			err = unknownCommand(cmd, first) // the flags belong to an unknown command
		}
		return Fail(ExitUsage, seeHelp(cmd), flagFault(unknownFlag(cmd, err)))
	})
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		cmd.InitDefaultHelpFlag()
		cmd.InitDefaultVersionFlag()
		printHelp(cmd.OutOrStdout(), cmd)
	})
	root.SetVersionTemplate(env.Prog + " version {{.Version}}\n")
	Walk(root, func(cmd *cobra.Command) {
		cmd.Version = Version
		if cmd.HasParent() && cmd.Runnable() && cmd.Flags().Lookup("output") == nil {
			addOutput(env, cmd, formOfErrors, []string{"table", "json"})
		}
		checkArgs(cmd)
		rejectRoundedToZero(cmd.Flags())
		rejectRoundedToZero(cmd.PersistentFlags())
		if cmd.RunE == nil && cmd.Run == nil {
			showHelp(cmd)
		}
	})
	rejectUnknownTopics(root)
}

// repeatedFlags returns a note for each flag of a command that holds one value and has two different ones in
// the program's arguments.
func repeatedFlags(cmd *cobra.Command, args []string) (notes []string) {
	_, args, err := cmd.Root().Find(args)
	if err != nil {
		return nil
	}
	given := map[string]string{}
	_ = cmd.Flags().ParseAll(args, func(f *pflag.Flag, value string) error { // cannot fail: cobra has parsed the same arguments
		if _, list := f.Value.(pflag.SliceValue); list {
			return nil
		}
		if first, twice := given[f.Name]; twice && first != value {
			notes = append(notes, fmt.Sprintf("note: --%s is given twice, %s and %s: using the last value", f.Name, first, value))
		}
		given[f.Name] = value
		return nil
	})
	return notes
}

// Walk calls visit with a command and all commands below it.
func Walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		Walk(sub, visit)
	}
}

// Flag returns the value of a flag of the running command if it was given on the command line or
// by a setting, and "" otherwise.
func (env *Env) Flag(name string) string {
	if env.flags == nil {
		return ""
	}
	if f := env.flags.Lookup(name); f != nil && f.Changed {
		return f.Value.String()
	}
	return ""
}

// settleFlags sets the flags that are not on the command line from the environment and the config
// file, and checks the output form.
func (env *Env) settleFlags(cmd *cobra.Command) error {
	env.flags = cmd.Flags()
	output := cmd.Flags().Lookup("output")
	chosen := output != nil && output.Changed
	if err := applySettings(cmd.Flags(), env.config); err != nil {
		return err
	}
	for _, note := range slices.Concat(unknownVariables(cmd.Flags(), os.Environ()), repeatedFlags(cmd, env.args)) {
		env.Notef("%s", note)
	}
	if os.Getenv("NO_COLOR") != "" {
		env.noColor = true
	}
	forms, ok := cmd.Annotations[outputKey]
	if !ok {
		return nil
	}
	env.Output = output.Value.String()
	switch {
	case slices.Contains(strings.Split(forms, "|"), env.Output):
		return nil
	case !chosen && slices.Contains(anyForm, env.Output):
		return output.Value.Set(output.DefValue)
	}
	bad := env.Output
	env.Output = ""
	return Usagef("--output %q is not offered here: expected %s", bad, strings.ReplaceAll(forms, "|", ", "))
}
