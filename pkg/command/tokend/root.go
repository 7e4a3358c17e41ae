// Package tokend is the gfaas-tokend command: the token daemon and what it can
// be asked.
package tokend

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// Main runs the command on the process's arguments. The result is its exit
// status.
func Main() int { return cli.Main("gfaas-tokend", NewRoot) }

// NewRoot is the command tree.
func NewRoot(env *cli.Env) *cobra.Command {
	o := &serveOptions{env: env}
	root := &cobra.Command{
		Use:   "gfaas-tokend",
		Short: "Share GPUs by time: hold every process to its slice",
		Long: `Serve the token daemon of the run directory ($GFAAS_RUN_DIR, else
$XDG_RUNTIME_DIR/gfaas, else the user's default; see gfaas-environment(7)). It
runs in the foreground.

Processes under the gfaas preload library launch GPU work only while they hold
a lease. The daemon gives leases out, in windows: every instance gets the
fraction of each window that it requests, up to its limit where others leave
time, and the SM shares of those that hold a lease sum to at most the SM limit.
A process that was asked back keeps its SMs until its work has ended, and what
it ran over is taken off its next windows. An instance whose SM share alone is
above the SM limit runs only when nobody else does.

While several wait that do not fit beside each other they take turns: in a round
(--round, 16ms or as much less as makes a window of whole rounds) each has its
part of it, and in a window what its quota says. A process that was idle joins
with the next turn. Rounds are longer where passing the GPU on would lose more
than a fiftieth of its time. With a --round as long as a window turns end where
budgets do, as in the paper; so they do on a GPU with a plan's timetable.

That is the policy multi-token (FaST-GShare). With --policy introspective (Dilu)
everybody runs at once, time-shared, and what each may launch is metered: every
5 ms an instance is issued kernel blocks, between its request and its limit as
parts of the GPU (sm_pct/100 times the quota). Instances with a latency
objective (slo) come first: when their launch cycles stretch they are issued
their limit at once and all others are scaled down; while they idle the others
grow to their limits. What the GPU does for an instance is measured now and then
by letting it run alone for 20 to 100 ms. --round, --sm-limit and a
plan's turns do not count then.

SIGTERM ends it cleanly, with status 0: it closes all gates and removes its
sockets. Programs then stall at their next launch, and go on when a daemon is
back. SIGHUP reads the settings file again; a new --window, --round or
--sm-limit counts from then on, any other after a restart.`,
		Example: `  gfaas-tokend
  gfaas-tokend --window 50ms --sm-limit 90 --listen 127.0.0.1:9400
  gfaas-tokend --policy introspective
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
	return root
}
