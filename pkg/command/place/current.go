package place

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/diff"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// currentOptions are the flags of plan about what runs already.
type currentOptions struct {
	path      string
	plan      plan.Plan // in the file
	moves     int
	threshold int
}

func (c *currentOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.path, "current", "", "the plan that runs (JSON): change it as little as the demand lets")
	cli.Files(cmd, "json", "current")
	f.IntVar(&c.moves, "max-moves", 0, "how many running instances may move where that serves more or frees a GPU; needs --current")
	f.IntVar(&c.threshold, "restructure", maxrect.DefaultThreshold,
		"how many free rectangles a GPU may list, as stopped instances leave them, before they are listed anew; needs --current")
}

func (c *currentOptions) check(cmd *cobra.Command) error {
	for _, name := range []string{"max-moves", "restructure"} {
		if value, _ := cmd.Flags().GetInt(name); value < 0 {
			return cli.Usagef("--%s %d: expected 0 or more", name, value)
		} else if c.path == "" && cli.Given(cmd.Flags(), name) {
			return cli.Usagef("--%s means nothing without --current", name)
		}
	}
	return nil
}

// plan plans from nothing.
func (o *planOptions) plan(in policy.Input) (plan.Plan, error) {
	planner := func(in policy.Input) (plan.Plan, error) { return o.chosen().plan(o, in) }
	if o.instances.most == 0 {
		return planner(in)
	}
	return policy.AtMost(in, o.instances.most, o.share, planner)
}

// quietly are the same options for a plan whose reasons are nobody's concern.
func (o *planOptions) quietly() *planOptions {
	env, quiet := *o.env, *o
	env.Verbose, quiet.env = false, &env
	return &quiet
}

// make plans from nothing, or from the current plan, and lists what changes.
func (o *planOptions) make(cmd *cobra.Command, in policy.Input) (plan.Plan, []diff.Change, error) {
	if o.current.path == "" {
		p, err := o.plan(in)
		return policy.ValidIDs(p), nil, err
	}
	current := o.current.plan
	if err := o.adopt(cmd, current); err != nil {
		return plan.Plan{}, nil, err
	}
	// The planner plans parts, whose reasons are not those of the whole.
	parts := o.quietly()
	planner := func(in policy.Input) (plan.Plan, error) { return parts.chosen().plan(parts, in) }
	p, why, err := policy.Incremental(current, in, policy.IncrementalOptions{
		TieBreak: policy.TieBreak(o.tieBreak), MaxMoves: o.current.moves, Threshold: o.current.threshold, ShareModels: o.share,
	}, planner)
	if err != nil {
		return plan.Plan{}, nil, err
	}
	changes := diff.Plans(current, p)
	for i, c := range changes {
		if c.Do != diff.Keep {
			changes[i].Why = why[c.ID]
		}
	}
	return p, changes, nil
}

// adopt takes the current plan's model.
func (o *planOptions) adopt(cmd *cobra.Command, current plan.Plan) error {
	if current.Model == plan.ModelNone {
		return cli.Fail(cli.ExitFailure, "plan without --current; gfaas up changes what runs into the new plan",
			errors.New("the model of the current plan is none: it has no places that could be kept"))
	}
	if cmd.Flags().Changed("model") && o.model != current.Model {
		return cli.Usagef("--model %s: the current plan's is %s", o.model, current.Model)
	}
	o.model = current.Model
	return nil
}

// tell says what changes where the output does not.
func (o *planOptions) tell(changes []diff.Change) {
	if o.current.path == "" || o.env.Output == "table" || o.env.Output == "html" {
		return
	}
	o.env.Notef("changes: %s", totals(changes))
	for _, c := range changes {
		if c.Do != diff.Keep {
			o.env.Debugf("%s %s on %s: %s", c.Do, c.ID, strings.Join(c.GPUs, ","), c.Why)
		}
	}
}

func totals(changes []diff.Change) string {
	return fmt.Sprintf("stop %d, start %d, keep %d", diff.Count(changes, diff.Stop), diff.Count(changes, diff.Start), diff.Count(changes, diff.Keep))
}

// printChanges prints what stops, starts and is kept.
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
	rows := [][]string{{"CHANGE", "INSTANCE", "FUNCTION", "GPU", "SM%", "QUOTA", "RPS", "WHY"}}
	n := csvfile.Format
	for _, c := range changes {
		rows = append(rows, []string{c.Do, c.ID, c.Function, strings.Join(c.GPUs, ","), n(c.SMPct), n(c.Quota), n(c.RPS), c.Why})
	}
	return rows
}
