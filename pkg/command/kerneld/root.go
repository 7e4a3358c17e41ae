// Package kerneld implements the gfaas-kerneld command: the kernel daemon (serve.go) and subcommands that
// act as its clients. The daemon itself is pkg/daemon/kernel.
package kerneld

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Main runs the command with the process's arguments and returns its exit status.
func Main() int { return cli.Main("gfaas-kerneld", NewRoot) }

// NewRoot returns the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	o := &serveOptions{env: env}
	root := &cobra.Command{
		Use:   "gfaas-kerneld",
		Short: "Run graphs of GPU kernels as functions",
		Long: `Serve the kernel daemon of the run directory, in the foreground. The run directory is
$GFAAS_RUN_DIR. If that is not set, it is $XDG_RUNTIME_DIR/gfaas or the user's default;
see gfaas-environment(7).

A request lists GPU kernels and the buffers that they use (docs/kernels.md). The
daemon runs no other code of users. It serves HTTP on sockets in the run directory. On
kernel.sock, a request names its client in the header Gfaas-Client. For each --client NAME,
there is also a socket kernel-NAME.sock, which serves only this client.

Clients store data in the daemon as objects, each under a key. Requests read and write
objects. The daemon has them in host memory, and also on the GPU while there is room.

Kernels run in separate processes, the executors. If a kernel faults, or makes no progress
for --kernel-timeout, only its request fails. With --isolation keys, one executor runs all
kernels of a GPU. A client cannot request the objects of another client, but its kernels can
access all memory of the executor. With --isolation process, each client has its own
executor, and the GPU separates their memory.

A request uses host memory from its arrival until its answer has been sent: about the
length of its text, or more if it has many small values. --request-mem limits this memory
for all clients together. In addition, a client cannot use more of it than remains free, so
a single client can use half. If a request exceeds these limits, it is refused with the code
busy (HTTP status 429). Waiting requests are not affected.

A client can also submit requests without waiting for their answers (gfaas-kerneld run
--async), and refer to their results in other requests before they exist. A finished run
and its results are deleted after --run-ttl.

With --quota and --sm, the kernels run in a slice of each GPU, as with gfaas run. You can
also start the daemon with gfaas run: the kernels then run in that slice.

On SIGTERM, the daemon finishes the requests that it has received, and exits with status 0.
All objects are then lost.`,
		Example: `  # serve on the default GPU
  gfaas-kerneld
  # use two GPUs, and more memory
  gfaas-kerneld --gpu 0,1 --gpu-mem 16GiB --host-mem 32GiB
  # serve two clients, isolated from each other; alice gets twice as much GPU time
  gfaas-kerneld --client alice:2 --client bob --isolation process
  # store an input, run a request and fetch its output
  gfaas-kerneld run request.json --in vec/x=x.bin --out vec/y=y.bin`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.Flags().Changed) },
	}
	root.PersistentFlags().StringVar(&o.socket, "socket", kerneld.Socket(cli.RunDir()),
		"socket of the daemon: kernel.sock, or kernel-NAME.sock to act as the client NAME; the folder of this socket is used as the run directory")
	cli.CompleteFiles(root, "sock", "socket")
	o.flags(root)
	at := &o.socket
	root.AddCommand(newRun(env, at), newRuns(env, at), newWait(env, at), newCancel(env, at), newPut(env, at), newGet(env, at), newLs(env, at), newRm(env, at), newStats(env, at), newModule(env, at), newCheck(env), newImport(env, at), newFunction(env, at))
	cli.UsesDaemons(root)
	return root
}

// clientFlag adds --client to a command.
func clientFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "client", "", "client of the daemon as which the command acts: it uses the objects of this client, and its requests count as requests of this client (default: NAME if --socket is kernel-NAME.sock, otherwise the client named default)")
}

// dial returns a client of the daemon at a socket.
func dial(socket, name string) (*kerneld.Client, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, err
	}
	return kerneld.Dial(path, name), nil
}
