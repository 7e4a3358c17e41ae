// Package modeld implements the gfaas-modeld command: the model daemon (serve.go) and subcommands that act
// as its clients. The daemon itself is pkg/daemon/model.
package modeld

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// Main runs the command with the process's arguments and returns its exit status.
func Main() int { return cli.Main("gfaas-modeld", NewRoot) }

// tool holds the state that all subcommands share.
type tool struct {
	env    *cli.Env
	socket string
}

// NewRoot returns the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	t := &tool{env: env}
	o := &serveOptions{tool: t}
	root := &cobra.Command{
		Use:   "gfaas-modeld",
		Short: "Keep one copy of each model on a GPU for all programs that use it",
		Long: `Serve the model daemon of the run directory, in the foreground. The run directory is
$GFAAS_RUN_DIR. If that is not set, it is $XDG_RUNTIME_DIR/gfaas or the user's default;
see gfaas-environment(7).

The daemon loads the weights of a model from a safetensors file into GPU memory once. All
processes and containers that use the model map this copy, read-only, with the client
library (libgfaas-model.so, gfaas_model.py). All models together use at most --capacity. To
make room, the daemon evicts the least recently used models that no process holds, and loads
them again from their files when they are requested. A process's hold ends when the process
ends, even if it is killed.

A model can consist of several files. Such a model is named by its index, a file whose name
ends in .safetensors.index.json and which lists files in the same folder.

A model belongs to a tenant. Other tenants can use it only if it was put with --public. The
socket model.sock serves all tenants. The containers of a tenant get the socket
model-TENANT.sock, which serves only that tenant. --tenant TENANT=SIZE limits the GPU memory
of all models of a tenant together. Tenants without a size share the rest of --capacity
equally. The tenant with the name default has no such limit, unless --tenant names it.

Instead of loading a file, a process can write a model itself, with the client library or
the protocol: it requests memory from the daemon (a store), writes to this memory, and
publishes the model (a commit). Such a model has no file. It is gone when it is evicted or
when the daemon ends, unless you save it first (gfaas-modeld get). Until the commit, the memory counts against the memory limit of the process's slice. If it exceeds the
limit, the daemon refuses the store with the error code slice-memory. This needs gfaas-tokend
in the run directory. Without it, and for a process that is not in a slice, only the limits
of the daemon apply.

The daemon records the names and files of its models in the state file, and reads them when
it starts again. When the daemon ends, programs keep the models that they have mapped. On
SIGHUP, the daemon reads its settings again. It applies --capacity (models in use stay even
if it is smaller), new tenants and the sizes of tenants; all other settings need a restart.`,
		Example: `  # serve up to 8 GiB of models, and find models by name in a folder
  gfaas-modeld --capacity 8GiB --models /srv/models
  # load a model under a name
  gfaas-modeld put resnet50 resnet50.safetensors
  # list the models
  gfaas-modeld ls`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	root.PersistentFlags().StringVar(&t.socket, "socket", filepath.Join(cli.RunDir(), "model.sock"),
		"socket of the daemon (model.sock) or of one tenant (model-TENANT.sock); the folder of this socket is used as the run directory")
	cli.CompleteFiles(root, "sock", "socket")
	o.flags(root)
	root.AddCommand(newPut(t), newGet(t), newList(t), newStat(t), newRemove(t))
	cli.UsesDaemons(root)
	return root
}

// dial connects to the daemon.
func (t *tool) dial(ctx context.Context) (*modeld.Client, error) { return modeld.Dial(ctx, t.socket) }

// call sends a request to the daemon. doing begins the message of an error.
func (t *tool) call(ctx context.Context, doing string, r wire.Request) (wire.Answer, error) {
	client, err := t.dial(ctx)
	if err != nil {
		return wire.Answer{}, err
	}
	defer client.Close()
	a, files, err := client.Call(ctx, r)
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return a, explain(fmt.Errorf("%s: %w", doing, err))
	}
	return a, nil
}

// explain maps an error of the daemon to the command's exit status, with a hint.
func explain(err error) error {
	var refused *wire.Error
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case wire.CodeUsage:
		return cli.Usagef("%w", err)
	case wire.CodeBusy:
		return cli.Fail(cli.ExitTimeout, "stop programs that hold models, wait with --timeout, or give the daemon more --capacity", busyError{err})
	case wire.CodeCapacity:
		return cli.Fail(cli.ExitFailure, "give the daemon more --capacity, or the tenant more with --tenant TENANT=SIZE", err)
	case wire.CodeChanged:
		return cli.Fail(cli.ExitFailure, "put the model again", err)
	}
	return err
}

// busyError reports a lack of room. With -o json its code is "busy" instead of the code for its exit
// status.
type busyError struct{ error }

func (e busyError) Unwrap() error { return e.error }

// JSONCode returns the error code for -o json.
func (busyError) JSONCode() string { return wire.CodeBusy }

// checkModel returns a usage error if the name of the model, the tenant or the timeout is invalid.
func checkModel(name, tenant string, timeout time.Duration) error {
	if err := wire.CheckName(name); err != nil {
		return cli.Usagef("%w", err)
	}
	if err := checkTenant(tenant); err != nil || timeout >= 0 {
		return err
	}
	return cli.Usagef("--timeout %v: expected 0 or more", timeout)
}

// checkTenant returns a usage error if --tenant is given and invalid.
func checkTenant(tenant string) error {
	if tenant == "" {
		return nil
	}
	if err := wire.CheckTenant(tenant); err != nil {
		return cli.Usagef("--tenant: %w", err)
	}
	return nil
}
