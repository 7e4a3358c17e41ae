package kerneld

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/number"
)

func newStats(env *cli.Env, socket *string) *cobra.Command {
	cmd := withClient(&cobra.Command{
		Use:   "stats",
		Short: "Show clients, GPUs and why what waits does",
		Long: `Shows the clients, and in JSON the GPUs and the host's tier too.

SHARE is the part of the time in which GPUs ran requests, since the beginning; WHY
is why a client's next request waits or, where none does, why its last one went
when and where it did.

JSON: {"policy","host":{"used","budget"},"requests":{"used","budget"},
"gpus":[{"gpu","device","name","running","client","used","budget","objects",
"modules","busy_ms","evicted","executors","started","faults"}],"clients":[{"client",
"weight","objects","bytes","waiting","running","held","done","failed","busy","ran_ms",
"gpu_ms","why","last","share"}]}.
Memory is in bytes, that of requests from when they come until their answers are taken,
held a client's part of it; busy counts requests that were refused because too many
waited, or too much of them.`,
		Args: cobra.NoArgs,
	}, socket, func(ctx context.Context, c *kerneld.Client, _ []string) error {
		var s kernel.Stats
		if err := c.Stats(ctx, &s); err != nil {
			return err
		}
		return env.Show(s, func() [][]string {
			rows := [][]string{{"CLIENT", "WEIGHT", "OBJECTS", "MEM", "WAITING", "RUNNING", "DONE", "FAILED", "SHARE", "WHY"}}
			for _, c := range s.Clients {
				why := c.Why
				if why == "" {
					why = c.LastWhy
				}
				rows = append(rows, []string{c.Client, number.Plain(c.Weight), strconv.Itoa(c.Objects), fmt.Sprintf("%.0fMiB", float64(c.Bytes)/(1<<20)),
					strconv.Itoa(c.Waiting), strconv.Itoa(c.Running), strconv.Itoa(c.Done), strconv.Itoa(c.Failed), fmt.Sprintf("%.3f", c.Share), why})
			}
			return rows
		})
	})
	env.Outputs(cmd, "table", "json", "yaml")
	return cmd
}
