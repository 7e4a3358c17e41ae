package sim

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/record"
	"github.com/gfaas/gfaas/pkg/trace"
)

func newReplay(env *cli.Env) *cobra.Command {
	asTrace := false
	cmd := &cobra.Command{
		Use:   "replay RECORD",
		Short: "Have a policy decide again what a gateway recorded",
		Long: `Gives the events that gfaas serve --record wrote down to the policy that they
were recorded with, and compares what it decides. The same decisions are status
0; at the first other one the status is 3, and its line is named. What a killed
gateway left of a last line is ignored.

With --as-trace it prints when calls came, as a trace: of what gfaas-sim queue and
compare, with costs of the functions, say what other policies would have done.`,
		Example: `  gfaas-sim replay record.jsonl
  gfaas-sim replay record.jsonl --as-trace > trace.csv`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("jsonl"),
		RunE: func(_ *cobra.Command, args []string) error {
			if asTrace {
				return printTrace(env, args[0])
			}
			_, err := cli.Load(env, args[0], replay)
			return err
		},
	}
	cmd.Flags().BoolVar(&asTrace, "as-trace", false, "print the arrivals as a trace")
	return cmd
}

func replay(in io.Reader, name string) (none struct{}, err error) {
	r, err := record.NewReader(in, name)
	if err != nil {
		return none, err
	}
	c := queue.Config{Policy: r.Policy, Pool: r.Pool, Options: queue.Defaults()}
	for _, key := range slices.Sorted(maps.Keys(r.Set)) {
		if err := cli.SetParameter(queue.Parameters(), &c.Options, key+"="+r.Set[key]); err != nil {
			return none, cli.Fail(cli.ExitFailure, "", fmt.Errorf("%s:1: set: %w", name, err))
		}
	}
	policy, err := queue.New(c)
	if err != nil {
		return none, fmt.Errorf("%s:1: policy: %w", name, err)
	}
	var other *record.Difference
	if err := record.Replay(r, policy); errors.As(err, &other) {
		return none, cli.Fail(cli.ExitNo, "a policy of another version decides otherwise", err)
	} else if err != nil {
		return none, err
	}
	return none, nil
}

// printTrace prints when calls came.
func printTrace(env *cli.Env, path string) error {
	return env.Emit(func(w io.Writer) error {
		_, err := cli.Load(env, path, func(in io.Reader, name string) (none struct{}, err error) {
			r, err := record.NewReader(in, name)
			if err != nil {
				return none, err
			}
			return none, writeTrace(w, r)
		})
		return err
	})
}

func writeTrace(w io.Writer, r *record.Reader) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"function", "invoke_time_ms"}); err != nil {
		return err
	}
	for {
		event, _, err := r.Next()
		if errors.Is(err, io.EOF) {
			out.Flush()
			return out.Error()
		}
		if err != nil {
			return err
		}
		if event == nil || event.Event != "arrived" {
			continue
		}
		if err := out.Write([]string{event.Function, trace.Millis(time.Duration(event.ArrivedMS))}); err != nil {
			return err
		}
	}
}
