// Package gfaas is the command gfaas: functions are applied, started by a
// plan, looked at, invoked and stopped; any program runs under a slice.
package gfaas

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Main is the program: it runs the tool's own commands or a plugin, or keeps a
// log, and returns the exit status.
func Main() int {
	if status, kept := host.KeepLog(os.Args[1:]); kept {
		return status
	}
	env := cli.Process("gfaas")
	root := env.Tree(NewRoot)
	if status, ran := runPlugin(root, os.Args[1:]); ran {
		return status
	}
	return env.Main(root)
}

// tool is what the commands share.
type tool struct {
	env    *cli.Env
	store  ports.Catalog
	runDir string
}

// NewRoot builds the command tree on the user's state and run directory.
func NewRoot(env *cli.Env) *cobra.Command {
	runDir := cli.RunDir()
	if dir, err := filepath.Abs(runDir); err == nil {
		runDir = dir
	}
	return newRoot(&tool{env: env, store: bolt.Open(cli.StatePath(), env.Notef), runDir: runDir})
}

func newRoot(t *tool) *cobra.Command {
	root := &cobra.Command{
		Use:   "gfaas",
		Short: "Run functions on slices of GPUs",
		Long: `gfaas runs functions on slices of GPUs: a share of the streaming
multiprocessors, a quota of time, a limit on memory.

Functions are described in files and applied; gfaas-profile measures them,
gfaas-place plans where their instances go, gfaas up starts the plan, and
gfaas invoke calls them. gfaas run puts any command under a slice.

'gfaas NAME' runs the program gfaas-NAME when gfaas has no command NAME and
such a program is beside it or on PATH; flags before NAME go to it too.

gfaas-environment(7) lists the variables of the environment.`,
		Example: `  gfaas apply -f function.yaml
  gfaas-place plan --profile profile.csv --demand resnet=100 -o json > plan.json
  gfaas up plan.json
  gfaas invoke resnet < image.jpg
  gfaas down
  gfaas run --sm 24 --quota 0.3:0.8 --mem 2GiB -- python train.py`,
	}
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"functions", "Functions:", []*cobra.Command{newNew(t), newApply(t), newLs(t), newShow(t), newRm(t)}},
		{"instances", "Instances:", []*cobra.Command{newUp(t), newDown(t), newPs(t), newLogs(t), newSet(t), newInvoke(t), newRegister(t), newDockerArgs(t)}},
		{"gateway", "Gateway:", []*cobra.Command{newServe(t), newScale(t), newReplay(t), newTop(t)}},
		{"machine", "This machine:", []*cobra.Command{newRun(t), newDoctor(t), newVersion(t)}},
		{"programs", "Programs of their own:", newPlugins()},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.id
			root.AddCommand(cmd)
		}
	}
	t.env.Statuses(root, cli.ExitText+".\nThose of gfaas run are the command's, and of gfaas run itself 125 to 127: gfaas-run(1)", nil)
	root.SetHelpCommandGroupID("machine")
	root.SetCompletionCommandGroupID("machine")
	return root
}

// completeFunctions offers the applied functions' names to a shell.
func (t *tool) completeFunctions(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	state, err := t.store.Look(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, fn := range state.Functions {
		names = append(names, fn.Name)
	}
	return without(names, args), cobra.ShellCompDirectiveNoFileComp
}

func without(names, used []string) []string {
	var out []string
	for _, name := range names {
		if !slices.Contains(used, name) {
			out = append(out, name)
		}
	}
	return out
}
