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

// runPlugin becomes the program gfaas-X for `gfaas X …`, unless X is a command
// of gfaas itself or there is no such program. Flags before X are the program's
// too, and `gfaas help X` is `gfaas X --help`. When it returns ran, the program
// could not be started and status is the exit status.
func runPlugin(root *cobra.Command, args []string) (status int, ran bool) {
	at := firstWord(root, args)
	if at >= 0 && args[at] == "help" && at+1 < len(args) {
		args = slices.Concat(args[:at], args[at+1:], []string{"--help"}) // or else cobra's own, which says the same
	}
	if at < 0 || !pluginName.MatchString(args[at]) || builtIn(root, args[at]) {
		return 0, false
	}
	path, err := findPlugin("gfaas-" + args[at])
	if err != nil {
		return 0, false
	}
	argv := slices.Concat([]string{"gfaas-" + args[at]}, args[:at], args[at+1:])
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
	return slices.ContainsFunc(root.Commands(), func(cmd *cobra.Command) bool { return cmd.Name() == name || cmd.HasAlias(name) })
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
