package kerneld

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

func newRuns(env *cli.Env, socket *string) *cobra.Command {
	cmd := withClient(&cobra.Command{
		Use:   "runs",
		Short: "List a client's asynchronous runs",
		Long: `List the asynchronous runs of a client (--client): those that are queued or run, and those
that have finished, until they are deleted or --run-ttl of the daemon has passed.
gfaas-kerneld run --async submits a run.

JSON: a list of {"id","state","age_ms","results","code"}. The state is queued, running, done
or failed. age_ms is the time since the run was submitted. results is the number of outputs
to which other requests can refer. code is the reason of a failure (docs/kernels.md).`,
		Example: `  # list the runs of the client alice
  gfaas-kerneld runs --client alice`,
		Args: cobra.NoArgs,
	}, socket, func(ctx context.Context, c *kerneld.Client, _ []string) error {
		var answer struct{ Runs []kernel.RunSummary }
		if err := c.ListRuns(ctx, &answer); err != nil {
			return err
		}
		return env.Show(answer.Runs, func() [][]string {
			rows := [][]string{{"ID", "STATE", "AGE", "RESULTS", "CODE"}}
			for _, r := range answer.Runs {
				age := time.Duration(r.AgeMS * float64(time.Millisecond)).Round(time.Second)
				rows = append(rows, []string{r.ID, r.State, age.String(), strconv.Itoa(r.Results), r.Code})
			}
			return rows
		})
	})
	env.Outputs(cmd, "table", "json", "jsonl", "yaml", "csv")
	return cmd
}

func newCancel(_ *cli.Env, socket *string) *cobra.Command {
	return withClient(&cobra.Command{
		Use:   "cancel ID...",
		Short: "Cancel asynchronous runs, or delete their results",
		Long: `Cancel asynchronous runs. A queued run does not start. If a run has started, its kernels run
to their end, and its results are deleted then. The results of a finished run are deleted
at once. Requests that refer to a result of such a run fail with not-found, unless they have
already started.`,
		Example: `  # free the results of a run
  gfaas-kerneld cancel r-12-K7QXWN4P`,
		Args: cobra.MinimumNArgs(1),
	}, socket, func(ctx context.Context, c *kerneld.Client, ids []string) error {
		for _, id := range ids {
			if err := c.DeleteRun(ctx, id); err != nil {
				return err
			}
		}
		return nil
	})
}

func newWait(env *cli.Env, socket *string) *cobra.Command {
	var timeout time.Duration
	cmd := withClient(&cobra.Command{
		Use:   "wait ID",
		Short: "Wait for an asynchronous run and print its answer",
		Long: `Wait until an asynchronous run has finished, and print its answer in the form of
gfaas-kerneld-run(1). If the run failed, the command prints the reason and exits with
status 1. If the run has not finished after --timeout, the exit status is 5, and the run
continues.`,
		Example: `  # print the answer of a run
  gfaas-kerneld wait r-12-K7QXWN4P`,
		Args: cobra.ExactArgs(1),
	}, socket, func(ctx context.Context, c *kerneld.Client, args []string) error {
		answer, err := awaitRun(ctx, c, args[0], timeout)
		if err != nil {
			return err
		}
		return env.Show(answer, func() [][]string { return phaseRows([]json.RawMessage{answer}) })
	})
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait, like 30s (default no limit)")
	env.Outputs(cmd, "json", "yaml", "table")
	return cmd
}

// awaitRun waits for the end of a run and returns its answer. A timeout of 0 means no limit.
func awaitRun(ctx context.Context, c *kerneld.Client, id string, timeout time.Duration) (json.RawMessage, error) {
	const longest = time.Minute // for one request
	for end := time.Now().Add(timeout); ; {
		limit := longest
		if timeout > 0 {
			limit = max(min(longest, time.Until(end)), 0)
		}
		var status struct {
			State  string
			Error  *kernel.Refusal
			Answer json.RawMessage
		}
		if err := c.AwaitRun(ctx, id, limit, &status); err != nil {
			return nil, err
		}
		switch {
		case status.Error != nil:
			return nil, &kerneld.Error{Code: status.Error.Code, Message: status.Error.Message, Where: status.Error.Where}
		case status.Answer != nil:
			return status.Answer, nil
		case timeout > 0 && !time.Now().Before(end):
			return nil, cli.Fail(cli.ExitTimeout, "", fmt.Errorf("run %s is %s after %v", id, status.State, timeout))
		}
	}
}
