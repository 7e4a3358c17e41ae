package place

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/profile"
)

// arrivalOptions are the flags of plan about how requests come.
type arrivalOptions struct {
	pattern  string // plan.ArrivalsPoisson or plan.ArrivalsSteady
	headroom float64
	handOver time.Duration
	asked    bool // the pattern was given
}

func (a *arrivalOptions) flags(cmd *cobra.Command) {
	cli.Choice(cmd, &a.pattern, "arrivals", "how requests come to functions with an objective", plan.ArrivalsPoisson, plan.ArrivalsSteady)
	cmd.Flags().Float64Var(&a.headroom, "headroom", 0, "part of what an instance is worth to leave free, like `0.2`")
	cmd.Flags().DurationVar(&a.handOver, "hand-over", arrivals.HandOver, "how long an instance of a function with inflight 1 by --functions has nothing to do between two calls")
}

func (a *arrivalOptions) check(cmd *cobra.Command) error {
	a.asked = cmd.Flags().Changed("arrivals")
	if !(a.headroom >= 0 && a.headroom < 1) {
		return cli.Usagef("--headroom %v: expected 0 to less than 1, like 0.2", a.headroom)
	}
	if a.handOver < 0 {
		return cli.Usagef("--hand-over %s: expected 0 or more, like 1ms", a.handOver)
	}
	return nil
}

// apply gives the input what the flags say, and says what is assumed.
func (a *arrivalOptions) apply(env *cli.Env, in *policy.Input) {
	in.Headroom, in.HandOverMS = a.headroom, float64(a.handOver)/float64(time.Millisecond)
	if a.pattern != plan.ArrivalsPoisson {
		return
	}
	in.Poisson = true
	var assumed, bounded, without []string
	for _, d := range in.Demand {
		switch lacking, other := lackGoodput(in.Profile, d); {
		case d.SLOMS == 0:
			without = append(without, d.Function)
		case other:
			bounded = append(bounded, d.Function)
		case lacking:
			assumed = append(assumed, d.Function)
		}
	}
	if a.asked && len(without) > 0 {
		env.Notef("note: %s without an objective: requests are taken to come steadily", list(without))
	}
	if len(assumed) > 0 {
		env.Notef("note: requests to %s are taken to come at random (--arrivals steady: one as another is answered); the profile does not tell the goodput, so an instance is taken to be a queue that answers as fast as its throughput says, with the pauses of its quota in windows of 100 ms", list(assumed))
	}
	if len(bounded) > 0 {
		env.Notef("note: the goodput of %s was measured for another objective, so it is only a bound on what is counted on", list(bounded))
	}
}

// lackGoodput says whether any row of the demanded function lacks a goodput for its
// objective, and whether any has one for another.
func lackGoodput(rows []profile.Row, d plan.Demand) (lacking, other bool) {
	for _, r := range rows {
		if _, _, measured := r.Goodput(d.SLOMS); r.Function == d.Function && !measured {
			lacking, other = true, other || r.GoodputKnown
		}
	}
	return lacking, other
}

// shown is how many names a note lists.
const shown = 5

// list names functions, the first of many.
func list(names []string) string {
	if len(names) > shown {
		names = append(slices.Clone(names[:shown]), "others")
	}
	return strings.Join(names, ", ")
}

// evenly says for the table and the page how many GPUs the demand would take if requests came
// steadily; nothing where they do, or where something runs already.
func (o *planOptions) evenly(p plan.Plan, in policy.Input) string {
	if p.Arrivals != plan.ArrivalsPoisson || o.current.path != "" || o.env.Output != "table" && o.env.Output != "html" {
		return ""
	}
	in.Poisson = false
	steady, err := o.quietly().plan(in)
	if err != nil || len(steady.Unplaced) > 0 {
		return ""
	}
	return " If requests came steadily, " + cli.Count(steady.GPUsUsed, "GPU") + " would do."
}
