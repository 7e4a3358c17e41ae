package gfaas

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

var pluginName = regexp.MustCompile(`^[a-z0-9][-a-z0-9]*$`)

// pluginKey is the annotation of a command that is a program of its own.
const pluginKey = "gfaas-plugin"

// IsPlugin says whether a command is there to tell of a program that has its own.
func IsPlugin(cmd *cobra.Command) bool { return cmd.Annotations[pluginKey] != "" }

// newPlugins tell of the programs that belong to gfaas. They run where such a program
// is not to be found, and say so.
func newPlugins() (out []*cobra.Command) {
	for _, p := range [][2]string{
		{"kerneld", "Run graphs of GPU kernels as functions"},
		{"modeld", "Hold models on a GPU, one copy for all that use them"},
		{"place", "Plan which slices of which GPUs serve a demand"},
		{"profile", "Measure what a function sustains under slices of a GPU"},
		{"sim", "Try policies on a virtual clock"},
		{"tokend", "Share GPUs by time: hold every process to its slice"},
	} {
		out = append(out, &cobra.Command{
			Use: p[0], Short: p[1], Annotations: map[string]string{pluginKey: "true"},
			DisableFlagParsing: true, DisableFlagsInUseLine: true,
			Long: "This is the program gfaas-" + p[0] + ", which is not installed here: it is neither beside\ngfaas nor on PATH.",
			Args: cobra.ArbitraryArgs,
			RunE: func(*cobra.Command, []string) error {
				return cli.Fail(cli.ExitUnavailable, "install gfaas as a whole, or add the folder of gfaas-"+p[0]+" to PATH",
					fmt.Errorf("gfaas %s is the program gfaas-%s, which is neither beside gfaas nor on PATH", p[0], p[0]))
			},
		})
	}
	return out
}

// runPlugin becomes the program gfaas-X for `gfaas X …`, unless X is a command
// of gfaas itself or there is no such program. Flags before X are the program's
// too, `gfaas help X` is `gfaas X --help`, and what follows X it completes. When it returns ran, the program
// could not be started and status is the exit status.
func runPlugin(root *cobra.Command, args []string) (status int, ran bool) {
	var asked []string // by a shell, that the program complete its command line
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		asked, args = args[:1], args[1:]
	}
	at := firstWord(root, args)
	if asked != nil && at == len(args)-1 {
		return 0, false // the name itself is being written
	}
	if asked == nil && at >= 0 && args[at] == "help" && at+1 < len(args) {
		args = slices.Concat(args[:at], args[at+1:], []string{"--help"}) // or else cobra's own, which says the same
	}
	if at < 0 || !pluginName.MatchString(args[at]) || builtIn(root, args[at]) {
		return 0, false
	}
	path, err := findPlugin("gfaas-" + args[at])
	if err != nil {
		return 0, false
	}
	argv := slices.Concat([]string{"gfaas-" + args[at]}, asked, args[:at], args[at+1:])
	err = syscall.Exec(path, argv, os.Environ())
	fmt.Fprintf(os.Stderr, "gfaas: error: %s: %v\n", path, err)
	return cli.ExitFailure, true
}

// firstWord is the place of the first argument that is neither a flag nor a
// flag's value, -1 if there is none. As for commands of its own, a flag that
// gfaas does not know takes a value, like -o, which every command has.
func firstWord(root *cobra.Command, args []string) int {
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	alone := func(f *pflag.Flag) bool { return f != nil && f.NoOptDefVal != "" }
	lookup := func(name string) *pflag.Flag {
		if f := root.Flags().Lookup(name); f != nil {
			return f
		}
		return root.PersistentFlags().Lookup(name)
	}
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--":
			return -1
		case strings.HasPrefix(arg, "--"):
			if !strings.Contains(arg, "=") && !alone(lookup(arg[2:])) {
				i++
			}
		case len(arg) == 2 && arg[0] == '-':
			f := root.Flags().ShorthandLookup(arg[1:])
			if f == nil {
				f = root.PersistentFlags().ShorthandLookup(arg[1:])
			}
			if !alone(f) {
				i++
			}
		case !strings.HasPrefix(arg, "-"):
			return i
		}
	}
	return -1
}

// builtIn says whether cobra or we have a command of that name.
func builtIn(root *cobra.Command, name string) bool {
	switch name {
	case "help", "completion", "__complete", "__completeNoDesc":
		return true
	}
	return slices.ContainsFunc(root.Commands(), func(cmd *cobra.Command) bool {
		return !IsPlugin(cmd) && (cmd.Name() == name || cmd.HasAlias(name))
	})
}

// findPlugin looks beside this program, then on PATH.
func findPlugin(name string) (string, error) {
	if exe, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(exe), name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}
