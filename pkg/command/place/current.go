package place

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/planning"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/diff"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// currentOptions holds the flags of the plan command that concern the running plan (--current).
type currentOptions struct {
	path      string
	plan      plan.Plan // contents of the file at path
	moves     int
	threshold int
}

func (c *currentOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.path, "current", "", "running plan to start from (JSON), which is changed as little as possible")
	cli.CompleteFiles(cmd, "json", "current")
	f.IntVar(&c.moves, "max-moves", 0, "maximum number of running instances to move to other places, if that serves more demand or frees a GPU; needs --current")
	f.IntVar(&c.threshold, "restructure", maxrect.DefaultThreshold,
		"when an instance has stopped, rebuild the list of free rectangles of its GPU if the list has more entries than this; needs --current")
}

func (c *currentOptions) check(cmd *cobra.Command) error {
	for _, name := range []string{"max-moves", "restructure"} {
		if value, _ := cmd.Flags().GetInt(name); value < 0 {
			return cli.Usagef("--%s %d: expected 0 or more", name, value)
		} else if c.path == "" && cli.OnCommandLine(cmd.Flags(), name) {
			return cli.Usagef("--%s has no effect without --current", name)
		}
	}
	return nil
}

// plan makes a plan without regard to running instances.
func (o *planOptions) plan(in policy.Input) (plan.Plan, error) {
	if o.instances.maxPerGPU == 0 {
		return o.runAlgorithm(in)
	}
	return policy.AtMost(in, o.instances.maxPerGPU, o.options.ShareModels, o.runAlgorithm)
}

// withoutReasons returns a copy of the options with verbose output off, so that
// an algorithm does not print the reasons for its plan.
func (o *planOptions) withoutReasons() *planOptions {
	env, quiet := *o.env, *o
	env.Verbose, quiet.env = false, &env
	return &quiet
}

// makePlan makes a new plan or changes the current plan. For a changed
// plan, it also returns the changes.
func (o *planOptions) makePlan(cmd *cobra.Command, in policy.Input) (plan.Plan, []diff.Change, error) {
	if o.current.path == "" {
		p, err := o.plan(in)
		return policy.ValidIDs(p), nil, err
	}
	current := o.current.plan
	if err := o.adoptModel(cmd, current); err != nil {
		return plan.Plan{}, nil, err
	}
	replanned, err := policy.Incremental(current, o.kind().WithLimits(in), policy.IncrementalOptions{
		TieBreak: o.options.TieBreak, MaxMoves: o.current.moves, Threshold: o.current.threshold, ShareModels: o.options.ShareModels,
	}, o.withoutReasons().runAlgorithm) // its plan is not the result, so its reasons would mislead
	if err != nil {
		return plan.Plan{}, nil, err
	}
	changes := diff.Plans(current, replanned.Plan)
	for i, c := range changes {
		if c.Kind != diff.Keep {
			changes[i].Reason = replanned.Reasons[c.ID]
		}
	}
	o.current.noteServable(o.env, replanned.Servable)
	return replanned.Plan, changes, nil
}

// noteServable prints a note about demand that only a new plan, without the running instances, serves.
func (c *currentOptions) noteServable(env *cli.Env, servable []plan.Unplaced) {
	if len(servable) == 0 {
		return
	}
	parts := lists.Map(servable, func(u plan.Unplaced) string { return csvfile.Format(u.RPS) + " requests/s of " + u.Function })
	env.Notef("note: the plan leaves demand unplaced that a new plan would serve: %s; allow more moves of running instances (--max-moves is %d), or plan without --current; gfaas up then replaces the running instances",
		planning.List(parts), c.moves)
}

// adoptModel sets the model of how instances share a GPU to that of the current
// plan. It returns an error if the current plan's model is none, or if --model
// is given and names another model.
func (o *planOptions) adoptModel(cmd *cobra.Command, current plan.Plan) error {
	if current.Model == plan.ModelNone {
		return cli.Fail(cli.ExitFailure, "plan without --current; gfaas up then replaces the running instances",
			errors.New("the model of the current plan is none, so it has no places to keep"))
	}
	if cmd.Flags().Changed("model") && o.options.Model != current.Model {
		return cli.Usagef("--model %s: the model of the current plan is %s", o.options.Model, current.Model)
	}
	o.options.Model = current.Model
	return nil
}

// printSummary prints a summary of the changes to standard error if the
// output format does not show them.
func (o *planOptions) printSummary(changes []diff.Change) {
	if o.current.path == "" || o.env.Output == "table" || o.env.Output == "html" {
		return
	}
	o.env.Notef("changes: %s", totals(changes))
	for _, c := range changes {
		if c.Kind != diff.Keep {
			o.env.Debugf("%s %s on %s: %s", c.Kind, c.ID, strings.Join(c.GPUs, ","), c.Reason)
		}
	}
}

func totals(changes []diff.Change) string {
	return fmt.Sprintf("stop %d, start %d, keep %d", diff.Count(changes, diff.Stop), diff.Count(changes, diff.Start), diff.Count(changes, diff.Keep))
}

// printChanges prints a table of the instances that stop, start and stay.
func printChanges(w io.Writer, changes []diff.Change) error {
	if _, err := fmt.Fprintf(w, "\nChanges: %s.\n", totals(changes)); err != nil {
		return err
	}
	if len(changes) == 0 {
		return nil
	}
	return cli.Table(w, changeTable(changes))
}

func changeTable(changes []diff.Change) [][]string {
	n := csvfile.Format
	return cli.Rows(changes, func(c diff.Change) []cli.Cell {
		return []cli.Cell{{"CHANGE", c.Kind}, {"INSTANCE", c.ID}, {"FUNCTION", c.Function},
			{"GPU", strings.Join(c.GPUs, ",")}, {"SM%", n(c.SMPct)}, {"QUOTA", n(c.Quota)}, {"RPS", n(c.RPS)},
			{"WHY", c.Reason.String()}}
	})
}
