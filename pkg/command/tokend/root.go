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

// NewRoot builds the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	o := &serveOptions{env: env}
	root := &cobra.Command{
		Use:   "gfaas-tokend",
		Short: "Share GPUs by time: hold every process to its slice",
		Long: `Serve the token daemon of the run directory, in the foreground. The run directory is
$GFAAS_RUN_DIR. If that is not set, it is $XDG_RUNTIME_DIR/gfaas or the user's default;
see gfaas-environment(7).

Processes under the gfaas preload library launch GPU work only while they hold a lease.
The daemon grants leases in windows (--window). In each window, an instance gets the
fraction that it requests, and up to its limit if other instances leave time unused.
The SM shares of all leases sum to at most --sm-limit; an instance whose own SM share is
larger runs only while no other instance runs. When the daemon revokes a lease, the
process keeps its SMs until its work in flight has finished, and time beyond its budget
is deducted from its next windows.

Clients that do not fit side by side take turns. A window is divided into equal rounds of
at most --round, and each client gets its part of every round. A client that was idle
joins at the next turn. Rounds become longer if hand-overs of the GPU would cost more than
2% of its time. If --round is not shorter than --window, or if a GPU has a plan's timetable,
there are no rounds: turns end when budgets are used, as in the paper.

These are the rules of the policy multi-token (FaST-GShare). With --policy introspective
(Dilu), all clients run at once, and the daemon meters their launches: every 5 ms, it
issues each instance kernel blocks, between its request and its limit, which are fractions
of the GPU (sm_pct/100 times the quota). Instances with a latency objective (slo) have
priority: when the intervals between their launches grow, they get their limit at once,
and all other instances are scaled down; while they are idle, the others get up to their
limits. From time to time, the daemon lets an instance run alone for 20 to 100 ms, to
measure its speed. This policy ignores --round, --sm-limit and timetables.

On SIGTERM, the daemon closes all gates, removes its sockets and exits with status 0.
Programs then stall at their next launch, and continue when a daemon is back. On SIGHUP,
it reads the settings file again. New values of --window, --round and --sm-limit apply at
once; all other settings need a restart.`,
		Example: `  # serve with the default policy
  gfaas-tokend
  # use shorter windows, keep 10% of the SMs free, and serve metrics
  gfaas-tokend --window 50ms --sm-limit 90 --listen 127.0.0.1:9400
  # protect latency objectives (gfaas run --slo)
  gfaas-tokend --policy introspective
  # show the state of a running daemon
  gfaas-tokend status -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	root.PersistentFlags().StringVar(&o.socket, "socket", filepath.Join(cli.RunDir(), "token.sock"),
		"control socket; its folder is the run directory")
	o.flags(root.Flags())
	cli.Files(root, "sock", "socket")
	cli.Words(root, "policy", policy.Names()...)
	cli.Words(root, "mps", "auto", "off")
	root.AddCommand(newStatus(env, &o.socket), newCheckpoint())
	cli.UsesDaemons(root)
	return root
}
