// Package kerneld is the gfaas-kerneld command: the kernel daemon and what it can
// be asked.
package kerneld

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Main runs the command on the process's arguments. The result is its exit
// status.
func Main() int { return cli.Main("gfaas-kerneld", NewRoot) }

// NewRoot is the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	o := &serveOptions{env: env}
	root := &cobra.Command{
		Use:   "gfaas-kerneld",
		Short: "Run graphs of GPU kernels as functions",
		Long: `Serve the kernel daemon of the run directory ($GFAAS_RUN_DIR, else
$XDG_RUNTIME_DIR/gfaas, else the user's default; see gfaas-environment(7)). It
runs in the foreground.

A request names kernels in PTX and the buffers they work on; no code of users runs
on the host. docs/kernels.md describes it. Requests come over HTTP, on kernel.sock
of the run directory, where the header Gfaas-Client says for whom, and on
kernel-NAME.sock of each --client, where NAME alone is served.

Objects are kept on the host, and on the GPU while there is room. Kernels run in
processes of their own: one that faults, or makes no progress for --kernel-timeout,
costs its request and nobody else's. With --isolation keys one process runs all
kernels of a GPU: clients cannot name each other's objects, but a kernel that is
told an address may reach them. With --isolation process each client has its own,
and the GPU keeps them apart.

A request takes memory from when it comes until its answer is taken, about as much as
its text, more where that is many small values: --request-mem is what all may take.
One client has at most as much of it as is left for others, half where it is alone; a
request for which there is no room is refused (busy, 429), those that wait stay.

--quota and --sm put the kernels under a slice of the GPU, as gfaas run does; the
daemon may also be run by gfaas run, in its slice.

SIGTERM lets the requests that have come end, and ends with status 0. All objects
are forgotten then.`,
		Example: `  gfaas-kerneld
  gfaas-kerneld --gpu 0,1 --gpu-mem 16GiB --host-mem 32GiB
  gfaas-kerneld --client alice:2 --client bob --isolation process
  gfaas-kerneld run request.json --in vec/x=x.bin --out vec/y=y.bin`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.Flags().Changed) },
	}
	root.PersistentFlags().StringVar(&o.socket, "socket", kerneld.Socket(cli.RunDir()),
		"the daemon's socket, or kernel-NAME.sock beside it; its folder is the run directory")
	cli.Files(root, "sock", "socket")
	o.flags(root)
	at := &o.socket
	root.AddCommand(newRun(env, at), newPut(env, at), newGet(env, at), newLs(env, at), newRm(env, at), newStats(env, at), newCheck(env), newImport(env, at), newFunction(env, at))
	return root
}

// clientFlag gives a command --client.
func clientFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "client", "", "for whom (default the socket's own, else default)")
}

// dial is a client of the daemon at a socket.
func dial(socket, name string) (*kerneld.Client, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, err
	}
	return kerneld.Dial(path, name), nil
}
