// Package modeld is the gfaas-modeld command: the model daemon and what it can be
// asked.
package modeld

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// Main runs the command on the process's arguments. The result is its exit
// status.
func Main() int { return cli.Main("gfaas-modeld", NewRoot) }

// tool is what all verbs have.
type tool struct {
	env    *cli.Env
	socket string
}

// NewRoot is the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	t := &tool{env: env}
	o := &serveOptions{tool: t}
	root := &cobra.Command{
		Use:   "gfaas-modeld",
		Short: "Hold models on a GPU, one copy for all that use them",
		Long: `Serve the model daemon of the run directory ($GFAAS_RUN_DIR, else
$XDG_RUNTIME_DIR/gfaas, else the user's default; see gfaas-environment(7)). It
runs in the foreground.

It loads a model's weights from a safetensors file into GPU memory once, and
hands them, read-only, to every process and container that asks by the model
client library (libgfaas-model.so, gfaas_model.py). All models together have at
most --capacity; to make room the least recently used one goes that nobody
holds, and comes back from its file when somebody asks. What a process holds is
free when it ends, however it does.

A FILE that ends in .safetensors.index.json stands for the files it names, in
its own folder.

Models are a tenant's, and no other's unless they were put with --public.
model.sock speaks for every tenant. A tenant's containers are given the socket
model-TENANT.sock, which speaks for it alone. All models of a tenant together
have at most SIZE (--tenant TENANT=SIZE). Tenants without a size share the rest of
--capacity equally. The tenant default has no such bound unless --tenant names it.

Memory that a process stores and has not committed counts against the memory limit
of the process's slice: the daemon tells gfaas-tokend in the run directory. A store
beyond the limit is refused with slice-memory. Without a token daemon, and for a
process in no slice, only the bounds above apply.

The daemon keeps its models' names and files in the state file, and knows them
when it is started again. Programs that have mapped a model keep it when the
daemon ends. SIGHUP reads the settings again. It applies --capacity (models in use stay
even if it is smaller), new tenants and the sizes of tenants; all other settings need a
restart.`,
		Example: `  gfaas-modeld --capacity 8GiB --models /srv/models
  gfaas-modeld put resnet50 resnet50.safetensors
  gfaas-modeld ls`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	root.PersistentFlags().StringVar(&t.socket, "socket", filepath.Join(cli.RunDir(), "model.sock"),
		"the daemon's socket; its folder is the run directory")
	cli.Files(root, "sock", "socket")
	o.flags(root)
	root.AddCommand(newPut(t), newGet(t), newList(t), newStat(t), newRemove(t))
	return root
}

// dial connects to the daemon.
func (t *tool) dial(ctx context.Context) (*modeld.Client, error) { return modeld.Dial(ctx, t.socket) }

// explain gives what the daemon refuses its exit status.
func explain(err error) error {
	var refused *wire.Error
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case wire.CodeUsage:
		return cli.Usagef("%w", err)
	case wire.CodeBusy:
		return cli.Fail(cli.ExitTimeout, "stop what holds models, wait with --timeout, or give the daemon more --capacity", busyError{err})
	case wire.CodeCapacity:
		return cli.Fail(cli.ExitFailure, "give the daemon more --capacity, or the tenant more by --tenant TENANT=SIZE", err)
	case wire.CodeChanged:
		return cli.Fail(cli.ExitFailure, "put the model again", err)
	}
	return err
}

// busyError is that there was no room: with -o json its code is busy, not that of the
// exit status.
type busyError struct{ error }

func (e busyError) Unwrap() error { return e.error }

// JSONCode returns the code of the error under -o json.
func (busyError) JSONCode() string { return wire.CodeBusy }

// checkModel says what is wrong with a model's and a tenant's name, if anything.
func checkModel(name, tenant string) error {
	if err := wire.CheckName(name); err != nil {
		return cli.Usagef("%w", err)
	}
	if tenant == "" {
		return nil
	}
	if err := wire.CheckTenant(tenant); err != nil {
		return cli.Usagef("--tenant: %w", err)
	}
	return nil
}
