// Package tokend implements the command gfaas-tokend: it serves the token daemon of a run directory (package
// daemon/token) and, with subcommands, shows the daemon's status. NewRoot builds the command tree; the main
// function of cmd/gfaas-tokend calls Main.
package tokend

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// Main runs the command with the process's arguments and returns the exit status.
func Main() int { return cli.Main("gfaas-tokend", NewRoot) }

// introspectiveHelp lists the parameters of the policy introspective.
func introspectiveHelp() string {
	var entries []cli.Entry
	for _, p := range policy.IntrospectiveSettings() {
		entries = append(entries, cli.Entry{Name: p.Key + "=" + p.Default, Help: p.Help})
	}
	return cli.Entries(entries)
}

// NewRoot builds the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	o := &serveOptions{env: env}
	root := &cobra.Command{
		Use:   "gfaas-tokend",
		Short: "Share GPUs by time, and limit every process to its slice",
		Long: `Serve the token daemon of the run directory, in the foreground. The run directory is
$GFAAS_RUN_DIR. If that is not set, it is $XDG_RUNTIME_DIR/gfaas or the user's default;
see gfaas-environment(7).

The clients of the daemon are the processes of instances and jobs. gfaas loads its preload
library into them. A client may launch GPU work only while it holds a lease of its GPU,
which the daemon grants and revokes.

The daemon divides time into windows (--window). In each window, an instance gets the
fraction that its quota requests, and up to the limit of its quota if other instances leave
time unused. The SM shares of the instances that hold leases at the same time sum to at most
--sm-limit. An instance with a larger share than that runs only while no other instance
runs. When the daemon revokes a lease, the work that is already on the GPU still finishes.
If an instance exceeds its time in this way, the excess is deducted from its next windows.

Clients whose SM shares do not fit at the same time take turns. A window is divided into
equal rounds of at most --round, and each client gets its part of every round. A client that
was idle joins at the next turn, or at once if its instance uses much less time than it
requests (docs/sharing.md). Rounds become longer if the changes from one client to the next
would cost more than 2% of the GPU's time. There are no rounds if --round is not shorter
than --window, or if a plan contains a timetable for the GPU: a turn then ends when the
client has used its time of the window, or its entry in the timetable ends.

These are the rules of the policy multi-token, which is that of the FaST-GShare paper. With
--policy introspective, that of the Dilu paper, all clients run at once, and the daemon
limits the number of kernel blocks that they launch. Every 5 ms, an instance may launch a
number of blocks between its request and its limit, which are fractions of the speed of the
whole GPU (SM share times quota). Instances with a latency objective (gfaas run --slo, or slo
of a function) have priority: if the intervals between their launches grow, they get their
limit at once, and all other instances get less. While they are idle, the others get up to
their limits. From time to time, the daemon lets an instance run alone for 20 to 100 ms, to
measure its speed. This policy ignores --round, --sm-limit and timetables. It has these
parameters (--set KEY=VALUE):

` + introspectiveHelp() + `
With --trust, instances can register themselves. A process of such an instance presents a
grant: a document that a trusted key has signed, and that allows the instance a slice on the
node --node (see gfaas-place export --sign and docs/fleet.md). Its socket is
granted/token.sock in the run directory; containers mount the folder granted, and processes
of all users may use it. The registration stays until --grant-keep after the last process of
the instance has ended, and the next daemon with --trust knows it. A grant does not replace
an instance that was registered otherwise. gfaas down, or a registration of the name by
another command, revokes it.

On SIGTERM, the daemon removes its sockets and exits with status 0. Programs then pause at
their next launch, and continue when a daemon runs again. On SIGHUP, the daemon reads the
settings file again. New values of --window, --round, --grant-order and --sm-limit, and the
keys in the file of --trust, apply at once; all other settings need a restart.`,
		Example: `  # serve with the default policy
  gfaas-tokend
  # use shorter windows, keep 10% of the SMs free, and serve metrics
  gfaas-tokend --window 50ms --sm-limit 90 --listen 127.0.0.1:9400
  # protect latency objectives (gfaas run --slo)
  gfaas-tokend --policy introspective
  # register instances whose grants the key of a signer has signed
  gfaas-tokend --trust /etc/gfaas/grant.pub --node gpu-1
  # show the state of a running daemon
  gfaas-tokend status -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	root.PersistentFlags().StringVar(&o.socket, "socket", filepath.Join(cli.RunDir(), "token.sock"),
		"socket for commands; the folder of this socket is used as the run directory")
	o.flags(root.Flags())
	cli.CompleteFiles(root, "sock", "socket")
	cli.CompleteWords(root, "policy", policy.Names()...)
	cli.CompleteWords(root, "mps", "auto", "off")
	cli.CompleteFiles(root, "pub", "trust")
	root.AddCommand(newStatus(env, &o.socket), newCheckpoint())
	cli.UsesDaemons(root)
	return root
}
