// Package gfaas implements the command gfaas, which applies functions, starts, lists, invokes and stops
// their instances, runs the gateway, and runs any program under a slice.
//
// NewRoot builds the command tree. Each subcommand is one file: options, flags, run. The work is done by
// other packages: rollout reconciles instances with a plan, launch starts instances, daemon/gateway
// serves calls, doctor checks the host. The subcommands share a tool: the state file, the run directory
// and the streams. The main function of cmd/gfaas calls Main.
package gfaas

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/rollout"
)

// Main runs gfaas and returns the exit status. It runs a subcommand or a plugin, or serves as the
// log keeper of a process (host.KeepLog) or as the supervisor of a job (host.SuperviseJob).
func Main() int {
	if status, supervised := host.SuperviseJob(os.Args[1:]); supervised {
		return status
	}
	if status, isKeeper := host.KeepLog(os.Args[1:]); isKeeper {
		return status
	}
	env := cli.Process("gfaas")
	root := env.Tree(func(env *cli.Env) *cobra.Command { return newRoot(newTool(env), os.Args[1:]) })
	if status, ran := runPlugin(root, os.Args[1:]); ran {
		return status
	}
	return env.Main(root)
}

// tool holds the state that the subcommands share.
type tool struct {
	env    *cli.Env
	store  *bolt.DB
	runDir string
}

// controller returns a controller for the instances of the run directory.
func (t *tool) controller(launcher *launch.Launcher) *rollout.Controller {
	return &rollout.Controller{
		Catalog: t.store, Launcher: launcher, Note: t.env.Notef, Debug: t.env.Debugf,
		Progress: func(total int, description, units string) rollout.Progress {
			return t.env.Progress(total, description, units)
		},
	}
}

func (t *tool) notes(texts []string) {
	for _, text := range texts {
		t.env.Notef("note: %s", text)
	}
}

// NewRoot builds the command tree for the user's state file and run directory.
func NewRoot(env *cli.Env) *cobra.Command { return newRoot(newTool(env), nil) }

func newTool(env *cli.Env) *tool {
	runDir := cli.RunDir()
	if dir, err := filepath.Abs(runDir); err == nil {
		runDir = dir
	}
	return &tool{env: env, store: bolt.Open(cli.StatePath(), env.Notef), runDir: runDir}
}

// subcommand is a command of gfaas that is built when it is needed.
type subcommand struct {
	name  string
	build func(*tool) *cobra.Command
}

// group is a group of commands in the help.
type group struct {
	id, title string
	commands  []subcommand
}

// newRoot builds the command tree for the given arguments. If they begin with the name of a command, the
// tree contains no other commands, because only help, completion and the message about an unknown command
// need those, and building them all would add 0.3 ms to each start.
func newRoot(t *tool, args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "gfaas",
		Short: "Run functions on slices of GPUs",
		Long: `Run functions on slices of GPUs. A slice is a share of a GPU's streaming
multiprocessors (SMs), a quota of its time, and a limit on its memory.

Describe each function in a file and apply the file with gfaas apply. There are two
ways to start instances of the applied functions. gfaas serve, the gateway, starts
them when calls arrive. gfaas up starts them according to a plan: gfaas-profile
measures the functions, and gfaas-place plans where the instances go. In both cases,
gfaas invoke calls a function.

To put any other command under a slice, use gfaas run.

'gfaas NAME' runs the program gfaas-NAME if gfaas has no command NAME and the
program is in the folder of gfaas or on PATH. Flags before NAME are passed on.

The page gfaas-environment(7) lists the environment variables.`,
		Example: `  # Apply a function and call it through the gateway
  gfaas apply -f function.yaml
  gfaas serve &
  gfaas invoke resnet < image.jpg

  # Plan for 100 requests per second, start the planned instances, stop them
  gfaas-place plan --profile profile.csv --demand resnet=100 -o json > plan.json
  gfaas up plan.json
  gfaas down

  # Run a command on 24% of the SMs, for 30% to 80% of the time
  gfaas run --sm 24 --quota 0.3:0.8 --mem 2GiB -- python train.py`,
	}
	groups := []group{
		{"functions", "Functions:", []subcommand{{"new", newNew}, {"apply", newApply}, {"ls", newLs}, {"show", newShow}, {"rm", newRm}}},
		{"instances", "Instances:", []subcommand{{"up", newUp}, {"down", newDown}, {"ps", newPs}, {"wait", newWait}, {"logs", newLogs}, {"set", newSet},
			{"invoke", newInvoke}, {"register", newRegister}, {"docker-args", newDockerArgs}, {"grant", newGrant}}},
		{"gateway", "Gateway:", []subcommand{{"serve", newServe}, {"scale", newScale}, {"replay", newReplay}, {"top", newTop}, {"node", newNode}}},
		{"machine", "This machine:", []subcommand{{"run", newRun}, {"doctor", newDoctor}, {"version", newVersion}}},
		{"programs", "Separate programs:", plugins()},
	}
	called := func(sub subcommand) bool { return len(args) > 0 && args[0] == sub.name }
	only := slices.ContainsFunc(groups, func(g group) bool { return slices.ContainsFunc(g.commands, called) })
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, sub := range g.commands {
			if only && !called(sub) {
				continue
			}
			cmd := sub.build(t)
			cmd.GroupID = g.id
			root.AddCommand(cmd)
		}
	}
	cli.UsesDaemons(root)
	root.SetHelpCommandGroupID("machine")
	root.SetCompletionCommandGroupID("machine")
	return root
}

// completeFunctions completes an argument with the names of applied functions.
func (t *tool) completeFunctions(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	state, err := t.store.List(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := lists.Map(state.Functions, func(fn function.Function) string { return fn.Name })
	return without(names, args), cobra.ShellCompDirectiveNoFileComp
}

// without removes the used names from names.
func without(names, used []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(used, name) })
}
