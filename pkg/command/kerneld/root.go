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

A request lists kernels in PTX and the buffers that they use (docs/kernels.md). Users'
code runs only on the GPU. The daemon serves HTTP on two kinds of sockets in the run
directory. On kernel.sock, the header Gfaas-Client names the client. On kernel-NAME.sock,
which each --client creates, the client is NAME.

Objects are stored on the host, and also on the GPU while there is room. Kernels run in
separate processes, the executors: if a kernel faults, or makes no progress for
--kernel-timeout, only its request fails. With --isolation keys, one executor runs all
kernels of a GPU. Clients cannot name each other's objects there, but a kernel can access
any address of its executor. With --isolation process, each client has its own executor,
and the GPU separates them.

A request uses host memory from its arrival until its answer has been sent: about the
length of its text, or more if it has many small values. --request-mem limits the memory of
all requests. The requests of one client can use at most as much as is then still free, so
a single client can use half. Requests beyond that are refused (busy, 429); waiting
requests stay.

--quota and --sm run the kernels in a slice of each GPU, like gfaas run. You can also
start the daemon with gfaas run: the kernels then run in that slice.

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
		"socket of the daemon; its folder is the run directory, and the socket of client NAME there is kernel-NAME.sock")
	cli.Files(root, "sock", "socket")
	o.flags(root)
	at := &o.socket
	root.AddCommand(newRun(env, at), newPut(env, at), newGet(env, at), newLs(env, at), newRm(env, at), newStats(env, at), newCheck(env), newImport(env, at), newFunction(env, at))
	cli.UsesDaemons(root)
	return root
}

// clientFlag adds --client to a command.
func clientFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "client", "", "client that the command acts for (default: NAME for a socket kernel-NAME.sock, and the client named default for kernel.sock)")
}

// dial returns a client of the daemon at a socket.
func dial(socket, name string) (*kerneld.Client, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, err
	}
	return kerneld.Dial(path, name), nil
}
