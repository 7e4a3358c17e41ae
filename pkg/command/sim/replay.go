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
		Short: "Replay the recorded events of a gateway",
		Long: `Replay a record of gfaas serve --record: give its events to the policy with which it
was recorded, and compare the decisions. If all decisions are the same, the exit
status is 0. At the first difference, the command prints its line and exits with
status 3. An incomplete last line, which a killed gateway can leave, is ignored.

--as-trace prints the arrivals of the calls as a trace. With that trace and the costs
of the functions, gfaas-sim queue and compare show the results of other policies.`,
		Example: `  # Check that the policy decides as recorded
  gfaas-sim replay record.jsonl
  # Convert a record to a trace
  gfaas-sim replay record.jsonl --as-trace > trace.csv`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("jsonl"),
		RunE: func(_ *cobra.Command, args []string) error {
			if asTrace {
				return printTrace(env, args[0])
			}
			_, err := cli.Load(env, args[0], replay)
			return err
		},
	}
	cmd.Flags().BoolVar(&asTrace, "as-trace", false, "print the arrivals as a trace")
	cli.Meaning(cmd, cli.ExitNo, "the policy decides differently than recorded")
	return cmd
}

func replay(in io.Reader, name string) (result struct{}, err error) {
	r, err := record.NewReader(in, name)
	if err != nil {
		return result, err
	}
	c := queue.Config{Policy: r.Policy, Pool: r.Pool, Options: queue.Defaults()}
	for _, key := range slices.Sorted(maps.Keys(r.Set)) {
		if err := cli.SetParameter(queue.Parameters(), &c.Options, key+"="+r.Set[key]); err != nil {
			return result, cli.Fail(cli.ExitFailure, "", fmt.Errorf("%s:1: set: %w", name, err))
		}
	}
	policy, err := queue.New(c)
	if err != nil {
		return result, fmt.Errorf("%s:1: policy: %w", name, err)
	}
	err = record.Replay(r, policy)
	if _, differs := errors.AsType[*record.Difference](err); differs {
		err = cli.Fail(cli.ExitNo, "another version of the policy may decide differently", err)
	}
	return result, err
}

// printTrace prints the arrival times of calls.
func printTrace(env *cli.Env, path string) error {
	return env.Emit(func(w io.Writer) error {
		_, err := cli.Load(env, path, func(in io.Reader, name string) (result struct{}, err error) {
			r, err := record.NewReader(in, name)
			if err != nil {
				return result, err
			}
			return result, writeTrace(w, r)
		})
		return err
	})
}

func writeTrace(w io.Writer, r *record.Reader) error {
	rows := csv.NewWriter(w)
	if err := rows.Write([]string{"function", "invoke_time_ms"}); err != nil {
		return err
	}
	for {
		event, _, err := r.Next()
		if errors.Is(err, io.EOF) {
			rows.Flush()
			return rows.Error()
		}
		if err != nil {
			return err
		}
		if event == nil || event.Event != "arrived" {
			continue
		}
		if err := rows.Write([]string{event.Function, trace.Millis(time.Duration(event.ArrivedMS))}); err != nil {
			return err
		}
	}
}
