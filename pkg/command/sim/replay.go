package sim

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/record"
	"github.com/gfaas/gfaas/pkg/trace"
)

func newReplay(env *cli.Env) *cobra.Command {
	asTrace, seriesOf := false, ""
	cmd := &cobra.Command{
		Use:   "replay RECORD",
		Short: "Replay the recorded events of a gateway",
		Long: `Replay a record of gfaas serve --record: give its events to the policy with which it
was recorded, and compare the decisions. If all decisions are the same, the exit
status is 0. At the first difference, the command prints its line and exits with
status 3. An incomplete last line, which a killed gateway can leave, is ignored.

--as-trace prints the arrivals of the calls as a trace. With that trace and the costs
of the functions, gfaas-sim queue and compare show the results of other policies.

--as-series FUNCTION prints the load that the autoscaler of the function received each
second. With this series, gfaas-sim scale shows the results of other autoscalers. The
record must be one of a gateway with --scaler.`,
		Example: `  # Check that the policy decides as recorded
  gfaas-sim replay record.jsonl
  # Convert a record to a trace
  gfaas-sim replay record.jsonl --as-trace > trace.csv
  # Try another autoscaler on the recorded load
  gfaas-sim replay record.jsonl --as-series resnet | gfaas-sim scale --rps - --scaler lazy --profile profile.csv --function resnet`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("jsonl"),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case asTrace && seriesOf != "":
				return cli.Usagef("--as-trace and --as-series exclude each other")
			case asTrace:
				return export(env, args[0], writeTrace)
			case seriesOf != "":
				return export(env, args[0], func(w io.Writer, r *record.Reader) error { return writeSeries(w, r, args[0], seriesOf) })
			}
			_, err := cli.Load(env, args[0], replay)
			return err
		},
	}
	cmd.Flags().BoolVar(&asTrace, "as-trace", false, "print the arrivals as a trace")
	cmd.Flags().StringVar(&seriesOf, "as-series", "", "print the load that the autoscaler of `FUNCTION` received each second, as a series for gfaas-sim scale")
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
		if err := cli.SetParameters("set", queue.Parameters(), &c.Options, key+"="+r.Set[key]); err != nil {
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

// export prints what write extracts from a record.
func export(env *cli.Env, path string, write func(io.Writer, *record.Reader) error) error {
	return env.Emit(func(w io.Writer) error {
		_, err := cli.Load(env, path, func(in io.Reader, name string) (result struct{}, err error) {
			r, err := record.NewReader(in, name)
			if err != nil {
				return result, err
			}
			return result, write(w, r)
		})
		return err
	})
}

// writeTrace prints the arrival times of calls.
func writeTrace(w io.Writer, r *record.Reader) error {
	rows := csv.NewWriter(w)
	if err := rows.Write([]string{"function", "invoke_time_ms"}); err != nil {
		return err
	}
	err := each(r, "arrived", func(e *record.Event) error {
		return rows.Write([]string{e.Function, trace.Millis(time.Duration(e.ArrivedMS))})
	})
	rows.Flush()
	return errors.Join(err, rows.Error())
}

// writeSeries prints the load that the scaler of a function received each second; the first is second 0.
func writeSeries(w io.Writer, r *record.Reader, path, function string) error {
	rows, second := csv.NewWriter(w), 0
	if err := rows.Write([]string{"second", "rps"}); err != nil {
		return err
	}
	err := each(r, record.Load, func(e *record.Event) error {
		if e.Function != function {
			return nil
		}
		second++
		return rows.Write([]string{strconv.Itoa(second - 1), number.Plain(e.RPS)})
	})
	if err == nil && second == 0 {
		return cli.Fail(cli.ExitFailure, "record one with gfaas serve --scaler --record", fmt.Errorf("%s has no load of %s that a scaler received", path, csvfile.Quote(function)))
	}
	rows.Flush()
	return errors.Join(err, rows.Error())
}

// each calls do for each event of that kind, until the end of the record.
func each(r *record.Reader, kind string, do func(*record.Event) error) error {
	for {
		event, _, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && event != nil && event.Event == kind {
			err = do(event)
		}
		if err != nil {
			return err
		}
	}
}
