package gfaas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/rollout"
	"github.com/gfaas/gfaas/pkg/status"
)

type scaleOptions struct {
	wait    bool
	timeout time.Duration
}

func newScale(t *tool) *cobra.Command {
	var o scaleOptions
	cmd := &cobra.Command{
		Use:   "scale [NAME=N…]",
		Short: "Set how many instances the gateway keeps ready",
		Long: `Set how many instances of a function the gateway keeps ready, like scale: {min: N} in
the file of the function. With NAME=0, the gateway stops idle instances at once, and may
stop all instances of the function. Without arguments, the command lists for each
function the number of instances that are kept ready (min), the maximum number of
instances (max), the number that the gateway wants now, and the number of ready ones.

With --wait, the command returns when the given number of instances is ready or, for
NAME=0, when no instance remains.

The exit status is 2 if a number exceeds the function's max, 4 if no gateway runs, and
5 if the instances are not ready in time.`,
		Example: `  # List the numbers of instances
  gfaas scale

  # Keep two instances of resnet ready and none of bert, and wait for that
  gfaas scale resnet=2 bert=0 --wait`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			names, _ := t.completeFunctions(cmd, nil, "")
			for i := range names {
				names[i] += "="
			}
			return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		},
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args) },
	}
	cmd.Flags().BoolVar(&o.wait, "wait", false, "wait until the instances are ready, or have ended")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "with --wait: how long to wait")
	t.env.Outputs(cmd, "table", "json", "jsonl", "csv", "yaml")
	return cmd
}

func parseTargets(args []string) ([]rollout.ScaleTarget, error) {
	var targets []rollout.ScaleTarget
	for _, arg := range args {
		name, number, ok := strings.Cut(arg, "=")
		n, err := strconv.Atoi(number)
		if !ok || name == "" || err != nil || n < 0 {
			return nil, cli.Usagef("%q: expected NAME=N, like resnet=2", arg)
		}
		if slices.ContainsFunc(targets, func(t rollout.ScaleTarget) bool { return t.Function == name }) {
			return nil, cli.Usagef("%s is named twice: expected once", name)
		}
		targets = append(targets, rollout.ScaleTarget{Function: name, Min: n})
	}
	return targets, nil
}

func (o *scaleOptions) run(ctx context.Context, t *tool, args []string) error {
	targets, err := parseTargets(args)
	if err != nil {
		return err
	}
	if o.timeout <= 0 {
		return cli.Usagef("--timeout %v: expected more than 0", o.timeout)
	}
	client := gateway.Dial(t.runDir)
	defer client.Close()
	if len(targets) == 0 {
		return listScales(ctx, t, client)
	}
	if err := rollout.Scale(ctx, client, targets); err != nil || !o.wait {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err = rollout.AwaitScale(limited, client, targets)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return cli.Fail(cli.ExitTimeout, "'gfaas top' shows starting instances, and 'gfaas logs' their output", fmt.Errorf("scaling did not finish within %v: %w", o.timeout, err))
	}
	return err
}

func listScales(ctx context.Context, t *tool, client *gateway.Client) error {
	list, err := client.Scales(ctx)
	if err != nil {
		return err
	}
	return t.env.Show(list, func() [][]string {
		rows := cli.Rows(list, func(s status.Scale) []cli.Cell {
			return []cli.Cell{{"function", s.Function}, {"min", strconv.Itoa(s.Min)}, {"max", strconv.Itoa(s.Max)},
				{"wanted", strconv.Itoa(s.Wanted)}, {"ready", strconv.Itoa(s.Ready)}}
		})
		if t.env.Output == "table" {
			rows[0] = lists.Map(rows[0], strings.ToUpper)
		}
		return rows
	})
}
