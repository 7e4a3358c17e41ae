package kerneld

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/number"
)

func newStats(env *cli.Env, socket *string) *cobra.Command {
	cmd := withClient(&cobra.Command{
		Use:   "stats",
		Short: "Show clients, GPUs, and why requests are queued",
		Long: `Show the state of each client and, in JSON, also of the GPUs and of the host memory.

A client is a user of the daemon with objects of its own (--client of gfaas-kerneld). SHARE
is the client's part of the time for which GPUs have run requests since the daemon started.
WHY is the reason why the client's next request waits or, if no request waits, the reason
why its last request was dispatched: a code with parameters (docs/reasons.md).

-o csv has the fields of "clients" below, one row for each client.

JSON: {"policy","host":{"used","budget"},"requests":{"used","budget"},
"gpus":[{"gpu","device","name","running","client","used","budget","objects",
"modules","busy_ms","evicted","executors","started","faults"}],"clients":[{"client",
"weight","objects","bytes","modules","runs","waiting","running","held","done","failed","busy","ran_ms",
"gpu_ms","phases","why","last","share","reason","last_reason"}]}.
"phases" sums up the phases of the client's completed requests (gfaas-kerneld-run(1)).
"why" is the reason why the next request waits, and "last" why the last one was dispatched,
both as texts; "reason" and "last_reason" are the same reasons as JSON objects. Memory is in
bytes. "host" is the host memory of objects. "requests" is the host memory of requests, from
their arrival until their answers have been received, and "held" is a client's part of it.
"busy" counts requests that were refused because too many were waiting, or because they
needed too much memory.`,
		Example: `  # show what each client waits for
  gfaas-kerneld stats`,
		Args: cobra.NoArgs,
	}, socket, func(ctx context.Context, c *kerneld.Client, _ []string) error {
		var s kernel.Stats
		if err := c.Stats(ctx, &s); err != nil {
			return err
		}
		return env.Show(s, func() [][]string {
			if env.Output == "csv" {
				return clientRecords(s.Clients)
			}
			rows := [][]string{{"CLIENT", "WEIGHT", "OBJECTS", "MEM", "WAITING", "RUNNING", "DONE", "FAILED", "SHARE", "WHY"}}
			for _, c := range s.Clients {
				why := c.Why
				if why == "" {
					why = c.Last
				}
				rows = append(rows, []string{c.Client, number.Plain(c.Weight), strconv.Itoa(c.Objects), fmt.Sprintf("%.0fMiB", float64(c.Bytes)/(1<<20)),
					strconv.Itoa(c.Waiting), strconv.Itoa(c.Running), strconv.Itoa(c.Completed), strconv.Itoa(c.Failed), fmt.Sprintf("%.3f", c.Share), why})
			}
			return rows
		})
	})
	env.Outputs(cmd, "table", "json", "yaml", "csv")
	return cmd
}

// clientRecords returns the rows of -o csv. The header has the names of the JSON fields.
func clientRecords(clients []kernel.ClientStats) [][]string {
	rows := [][]string{{"client", "weight", "objects", "bytes", "waiting", "running", "held", "done", "failed", "busy", "ran_ms", "gpu_ms", "share", "why", "last"}}
	n, whole := csvfile.Format, strconv.Itoa
	for _, c := range clients {
		rows = append(rows, []string{c.Client, n(c.Weight), whole(c.Objects), fmt.Sprint(c.Bytes), whole(c.Waiting), whole(c.Running), fmt.Sprint(c.RequestBytes),
			whole(c.Completed), whole(c.Failed), whole(c.Busy), n(c.RanMS), n(c.GPUMS), n(c.Share), c.Why, c.Last})
	}
	return rows
}
