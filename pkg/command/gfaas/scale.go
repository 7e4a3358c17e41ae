package gfaas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
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
		Short: "Say how many instances are kept ready",
		Long: `Sets how many instances of a function the gateway keeps ready: scale.min of its
file. NAME=0 lets it go to none, and stops at once what is idle. Without
arguments it lists the functions: how many instances are kept (min), how many
there may be (max), are wanted now, and are ready.

With --wait it returns when so many are ready, or at 0 none is left. No gateway is
exit 4, more than a function's max exit 2, no instances in time exit 5.`,
		Example: "  gfaas scale\n  gfaas scale resnet=2 bert=0 --wait",
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
	cmd.Flags().BoolVar(&o.wait, "wait", false, "return when the instances are ready, or gone")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "with --wait: for how long")
	t.env.Outputs(cmd, "table", "json", "jsonl", "csv", "yaml")
	return cmd
}

// scaled is how many instances there are of a function.
type scaled struct {
	Function string `json:"function"`
	Min      int    `json:"min"`
	Max      int    `json:"max"`
	Wanted   int    `json:"wanted"`
	Ready    int    `json:"ready"`
}

// wish is NAME=N.
type wish struct {
	name string
	min  int
}

// ask has the gateway keep so many instances.
func (w wish) ask(ctx context.Context, client *gateway.Client) error {
	err := client.Ask(ctx, http.MethodPost, "/system/scale-function/"+url.PathEscape(w.name), map[string]int{"replicas": w.min}, nil)
	if err != nil {
		return fmt.Errorf("scale %s: %w", w.name, err)
	}
	return nil
}

func parseWishes(args []string) ([]wish, error) {
	var wishes []wish
	for _, arg := range args {
		name, number, ok := strings.Cut(arg, "=")
		n, err := strconv.Atoi(number)
		if !ok || name == "" || err != nil || n < 0 {
			return nil, cli.Usagef("%q: expected NAME=N, like resnet=2", arg)
		}
		if slices.ContainsFunc(wishes, func(w wish) bool { return w.name == name }) {
			return nil, cli.Usagef("%s is named twice: expected once", name)
		}
		wishes = append(wishes, wish{name, n})
	}
	return wishes, nil
}

func (o *scaleOptions) run(ctx context.Context, t *tool, args []string) error {
	wishes, err := parseWishes(args)
	if err != nil {
		return err
	}
	if o.timeout <= 0 {
		return cli.Usagef("--timeout %v: expected more than 0", o.timeout)
	}
	client := gateway.Dial(t.runDir)
	defer client.Close()
	if len(wishes) == 0 {
		return o.list(ctx, t, client)
	}
	known, err := scales(ctx, client)
	if err != nil {
		return err
	}
	// All that are named are set, or none.
	for _, w := range wishes {
		switch at := slices.IndexFunc(known, func(s scaled) bool { return s.Function == w.name }); {
		case at < 0:
			return cli.Fail(cli.ExitFailure, "'gfaas ls' lists what is applied", fmt.Errorf("no such function: %s", w.name))
		case w.min > known[at].Max:
			return cli.Usagef("%s=%d: expected at most %d, the scale.max of its file (%d where that gives none)", w.name, w.min, known[at].Max, function.DefaultScale.Max)
		}
	}
	for _, w := range wishes {
		if err := w.ask(ctx, client); err != nil {
			return err
		}
	}
	if !o.wait {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err = settled(limited, client, wishes)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return cli.Fail(cli.ExitTimeout, "'gfaas top' shows what is starting, 'gfaas logs' what it prints", fmt.Errorf("not scaled within %v: %w", o.timeout, err))
	}
	return err
}

// scales asks how many instances there are of each function.
func scales(ctx context.Context, client *gateway.Client) ([]scaled, error) {
	var functions []struct {
		Name              string
		Replicas          int
		AvailableReplicas int
		Labels            map[string]string
	}
	if err := client.Ask(ctx, http.MethodGet, "/system/functions", nil, &functions); err != nil {
		return nil, err
	}
	list := []scaled{}
	for _, fn := range functions {
		s := scaled{Function: fn.Name, Wanted: fn.Replicas, Ready: fn.AvailableReplicas}
		_, minimum := fmt.Sscan(fn.Labels["com.openfaas.scale.min"], &s.Min)
		_, maximum := fmt.Sscan(fn.Labels["com.openfaas.scale.max"], &s.Max)
		if err := cmp.Or(minimum, maximum); err != nil {
			return nil, fmt.Errorf("the gateway does not say the scale of %s: %w", fn.Name, err)
		}
		list = append(list, s)
	}
	return list, nil
}

func (o *scaleOptions) list(ctx context.Context, t *tool, client *gateway.Client) error {
	list, err := scales(ctx, client)
	if err != nil {
		return err
	}
	return t.env.Show(list, func() [][]string {
		header := []string{"FUNCTION", "MIN", "MAX", "WANTED", "READY"}
		if t.env.Output == "csv" {
			header = []string{"function", "min", "max", "wanted", "ready"}
		}
		rows := [][]string{header}
		for _, s := range list {
			rows = append(rows, []string{s.Function, strconv.Itoa(s.Min), strconv.Itoa(s.Max), strconv.Itoa(s.Wanted), strconv.Itoa(s.Ready)})
		}
		return rows
	})
}

// settled waits until all are as wished. A function whose instances do not start
// is an error. Instances that are busy are asked to go again, once they may be idle.
func settled(ctx context.Context, client *gateway.Client, wishes []wish) error {
	const asksEvery = 10 // ticks
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; n++ {
		list, err := scales(ctx, client)
		if err != nil {
			return err
		}
		left := slices.DeleteFunc(slices.Clone(wishes), func(w wish) bool {
			return slices.ContainsFunc(list, func(s scaled) bool {
				return s.Function == w.name && (s.Ready >= w.min && w.min > 0 || w.min == 0 && s.Wanted == 0)
			})
		})
		if len(left) == 0 {
			return nil
		}
		for _, w := range left {
			if w.min == 0 && n%asksEvery == 0 {
				if err := w.ask(ctx, client); err != nil {
					return err
				}
			}
		}
		stands, err := client.Status(ctx)
		if err != nil {
			return err
		}
		for _, fn := range stands.Functions {
			if fn.State == status.Failing && slices.ContainsFunc(left, func(w wish) bool { return w.name == fn.Function && w.min > 0 }) {
				return fmt.Errorf("function %s does not start: %s", fn.Function, fn.Why)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
