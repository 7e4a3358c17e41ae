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

// pluginKey is the annotation of a command that a separate program implements.
const pluginKey = "gfaas-plugin"

// IsPlugin reports whether a command stands for a separate program.
func IsPlugin(cmd *cobra.Command) bool { return cmd.Annotations[pluginKey] != "" }

// plugins returns a command for each separate program of gfaas, for the help. A command runs only if
// its program cannot be found, and returns that error.
func plugins() (commands []subcommand) {
	for _, p := range [][2]string{
		{"kerneld", "Run graphs of GPU kernels as functions"},
		{"modeld", "Keep one copy of each model on a GPU for all programs that use it"},
		{"place", "Plan instances on slices of GPUs for a demand"},
		{"profile", "Measure functions under slices of a GPU"},
		{"sim", "Simulate scheduling policies on a virtual clock"},
		{"tokend", "Share GPUs by time, and limit every process to its slice"},
	} {
		commands = append(commands, subcommand{p[0], func(*tool) *cobra.Command {
			return &cobra.Command{
				Use: p[0], Short: p[1], Annotations: map[string]string{pluginKey: "true"},
				DisableFlagParsing: true, DisableFlagsInUseLine: true,
				Long: "This command is the separate program gfaas-" + p[0] + ", which is not installed: it is\nneither in the folder of gfaas nor on PATH.",
				Args: cobra.ArbitraryArgs,
				RunE: func(*cobra.Command, []string) error {
					return cli.Fail(cli.ExitUnavailable, "install all programs of gfaas, or add the folder of gfaas-"+p[0]+" to PATH",
						fmt.Errorf("cannot find gfaas-%s, the program behind gfaas %s: it is neither in the folder of gfaas nor on PATH", p[0], p[0]))
				},
			}
		}})
	}
	return commands
}

// runPlugin replaces this process with the program gfaas-X for `gfaas X …`. It returns ran = false if X
// is a command of gfaas or has no program. If the program cannot be started, it returns ran = true and
// the exit status. Flags before X are passed to the program, `gfaas help X` runs `gfaas-X --help`, and
// the program completes its own arguments.
func runPlugin(root *cobra.Command, args []string) (status int, ran bool) {
	var request []string // cobra's completion request, if a shell completes the program's arguments
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		request, args = args[:1], args[1:]
	}
	at := firstWord(root, args)
	if request != nil && at == len(args)-1 {
		return 0, false // the shell completes the program's name
	}
	if request == nil && at >= 0 && args[at] == "help" && at+1 < len(args) {
		args = slices.Concat(args[:at], args[at+1:], []string{"--help"}) // not the program's own help command
	}
	if at < 0 || !pluginName.MatchString(args[at]) || builtIn(root, args[at]) {
		return 0, false
	}
	path, err := findPlugin("gfaas-" + args[at])
	if err != nil {
		return 0, false
	}
	argv := slices.Concat([]string{"gfaas-" + args[at]}, request, args[:at], args[at+1:])
	err = syscall.Exec(path, argv, os.Environ())
	fmt.Fprintf(os.Stderr, "gfaas: error: %s: %v\n", path, err)
	return cli.ExitFailure, true
}

// firstWord returns the index of the first argument that is neither a flag nor a flag's value, or -1 if
// there is none. It assumes that a flag unknown to gfaas takes a value, like -o, which every command
// has.
func firstWord(root *cobra.Command, args []string) int {
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	isSwitch := func(f *pflag.Flag) bool { return f != nil && f.NoOptDefVal != "" }
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--":
			return -1
		case strings.HasPrefix(arg, "--"):
			if !strings.Contains(arg, "=") && !isSwitch(root.Flag(arg[2:])) {
				i++
			}
		case len(arg) == 2 && arg[0] == '-':
			if name := arg[1:]; !isSwitch(root.Flags().ShorthandLookup(name)) && !isSwitch(root.PersistentFlags().ShorthandLookup(name)) {
				i++
			}
		case !strings.HasPrefix(arg, "-"):
			return i
		}
	}
	return -1
}

// builtIn reports whether cobra or gfaas has a command with the name.
func builtIn(root *cobra.Command, name string) bool {
	switch name {
	case "help", "completion", "__complete", "__completeNoDesc":
		return true
	}
	return slices.ContainsFunc(root.Commands(), func(cmd *cobra.Command) bool {
		return !IsPlugin(cmd) && (cmd.Name() == name || cmd.HasAlias(name))
	})
}

// findPlugin searches for a program in the folder of this one and then in PATH.
func findPlugin(name string) (string, error) {
	if exe, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(exe), name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}
