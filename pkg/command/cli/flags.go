package cli

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// outputKey is the annotation of a command that lists the forms its -o takes.
const outputKey = "gfaas-output"

// anyForm are the forms that some command somewhere offers: a setting for all
// commands may name any of them, and holds for those that offer it.
var anyForm = []string{"table", "wide", "json", "jsonl", "csv", "yaml", "svg", "html"}

// form is the value of one command's -o. Commands differ in their defaults, so
// the chosen form reaches the Env only when it is set, or when the command is
// about to run.
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

// Outputs gives the command -o with these forms; the first is the default.
func (env *Env) Outputs(cmd *cobra.Command, forms ...string) {
	env.addOutput(cmd, "form of the output", forms)
}

func (env *Env) addOutput(cmd *cobra.Command, what string, forms []string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[outputKey] = strings.Join(forms, "|")
	cmd.Flags().VarP(&form{env: env, value: forms[0]}, "output", "o", what+": "+strings.Join(forms, ", "))
	Words(cmd, "output", forms...)
}

// outputBefore is the form of the output that the arguments, else the
// environment, name: for errors from before the flags are parsed.
func outputBefore(args []string) string {
	asked := os.Getenv("GFAAS_OUTPUT")
	for i, arg := range args {
		value, joined := strings.CutPrefix(arg, "--output=")
		switch {
		case arg == "--":
			return asked
		case joined:
			asked = value
		case arg == "-o" || arg == "--output":
			asked = strings.Join(args[i+1:min(i+2, len(args))], "")
		case strings.HasPrefix(arg, "-o"):
			asked = strings.TrimPrefix(arg[len("-o"):], "=")
		}
	}
	return asked
}

// addCommon gives the whole tree what every binary has: the common flags,
// settings from the environment and the config file, and usage errors with
// their exit status and hint.
func (env *Env) addCommon(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	pf := root.PersistentFlags()
	pf.StringVar(&env.OutFile, "out-file", "", "write the output to this file, whole or not at all")
	pf.BoolVarP(&env.Quiet, "quiet", "q", false, "say nothing but errors on standard error")
	pf.BoolVarP(&env.Verbose, "verbose", "v", false, "say more on standard error")
	pf.BoolVar(&env.noColor, "no-color", false, "no colour in what is printed (also NO_COLOR)")
	pf.StringVar(&env.config, "config", "", "settings file (default $XDG_CONFIG_HOME/gfaas/config.yaml)")
	Files(root, "yaml yml", "config")
	Files(root, "", "out-file")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return env.settleFlags(cmd) }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if first := cmd.Flags().Arg(0); first != "" && cmd.HasSubCommands() {
			err = unknownCommand(cmd, first) // whose flags nobody knows
		}
		return Fail(ExitUsage, seeHelp(cmd), flagFault(unknownFlag(cmd, err)))
	})
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		cmd.InitDefaultHelpFlag()
		cmd.InitDefaultVersionFlag()
		printHelp(cmd.OutOrStdout(), cmd)
	})
	root.SetVersionTemplate(env.Prog + " version {{.Version}}\n")
	walk(root, func(cmd *cobra.Command) {
		cmd.Version = Version
		if cmd.HasParent() && cmd.Runnable() && cmd.Flags().Lookup("output") == nil {
			env.addOutput(cmd, formOfErrors, []string{"table", "json"})
		}
		checkArgs(cmd)
		refuseVanished(cmd.Flags())
		refuseVanished(cmd.PersistentFlags())
		if cmd.RunE == nil && cmd.Run == nil {
			showHelp(cmd)
		}
	})
	refuseHelp(root)
}

// noteTwice tells of flags that have one value and are given two.
func (env *Env) noteTwice(cmd *cobra.Command) {
	_, rest, err := cmd.Root().Find(env.args)
	if err != nil {
		return
	}
	given := map[string]string{}
	_ = cmd.Flags().ParseAll(rest, func(f *pflag.Flag, value string) error { // which has been parsed before
		if _, list := f.Value.(pflag.SliceValue); list {
			return nil
		}
		if before, twice := given[f.Name]; twice && before != value {
			env.Notef("note: --%s is given twice, %s and %s: the last counts", f.Name, before, value)
		}
		given[f.Name] = value
		return nil
	})
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

// Flag is the value of a flag of the command that runs, where it is given or set;
// else it is empty.
func (env *Env) Flag(name string) string {
	if env.flags == nil {
		return ""
	}
	if f := env.flags.Lookup(name); f != nil && f.Changed {
		return f.Value.String()
	}
	return ""
}

// settleFlags fills the flags that were not given from the environment and the
// config file, and checks the form of the output.
func (env *Env) settleFlags(cmd *cobra.Command) error {
	env.flags = cmd.Flags()
	output := cmd.Flags().Lookup("output")
	chosen := output != nil && output.Changed
	usual := ""
	if output != nil {
		usual = output.DefValue
	}
	if err := applySettings(cmd.Flags(), env.config); err != nil {
		return err
	}
	env.noteStray(cmd.Flags(), os.Environ())
	env.noteTwice(cmd)
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
		return output.Value.Set(usual)
	}
	bad := env.Output
	env.Output = ""
	return Usagef("--output %q is not offered here: expected %s", bad, strings.ReplaceAll(forms, "|", ", "))
}
