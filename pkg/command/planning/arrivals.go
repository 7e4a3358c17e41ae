// Package planning provides the flags about request arrivals to all commands that plan for a demand, so that equal
// flags give equal plans.
package planning

import (
	"fmt"
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

// Arrivals holds the flags about the arrival of requests.
type Arrivals struct {
	Pattern  string // plan.ArrivalsPoisson or plan.ArrivalsSteady
	Headroom float64
	HandOver time.Duration
	asked    bool // --arrivals was given
}

// Flags adds --arrivals, --headroom and --hand-over.
func (a *Arrivals) Flags(cmd *cobra.Command) {
	cli.Choice(cmd, &a.Pattern, "arrivals", "arrivals of requests to functions with an objective", plan.ArrivalsPoisson, plan.ArrivalsSteady)
	cmd.Flags().Float64Var(&a.Headroom, "headroom", 0, "fraction of each instance's capacity to leave free, like 0.2")
	cmd.Flags().DurationVar(&a.HandOver, "hand-over", arrivals.HandOver, "time for which an instance is idle between two calls, if its function has inflight 1 in --functions")
}

// Check validates the flags.
func (a *Arrivals) Check(cmd *cobra.Command) error {
	a.asked = cmd.Flags().Changed("arrivals")
	if !(a.Headroom >= 0 && a.Headroom < 1) {
		return cli.Usagef("--headroom %v: expected 0 to less than 1, like 0.2", a.Headroom)
	}
	if a.HandOver < 0 {
		return cli.Usagef("--hand-over %s: expected 0 or more, like 1ms", a.HandOver)
	}
	return nil
}

// Apply copies the flags to the planner's input.
func (a *Arrivals) Apply(in *policy.Input) {
	in.Headroom, in.HandOverMS = a.Headroom, float64(a.HandOver)/float64(time.Millisecond)
	in.Poisson = a.Pattern == plan.ArrivalsPoisson
}

// Notes returns notes about the assumptions on arrivals for the demand in the input.
func (a *Arrivals) Notes(in policy.Input) (notes []string) {
	if !in.Poisson {
		return nil
	}
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
		notes = append(notes, fmt.Sprintf("requests to %s are assumed to arrive steadily, because there is no objective", List(without)))
	}
	if len(assumed) > 0 {
		notes = append(notes, fmt.Sprintf("requests to %s are assumed to arrive at random (--arrivals steady: each when another one has been answered); without a measured goodput, an instance is modelled as a queue with its throughput and the pauses of its quota in windows of 100 ms", List(assumed)))
	}
	if len(bounded) > 0 {
		notes = append(notes, fmt.Sprintf("the goodput of %s was measured for another objective, so plans use it only as a bound", List(bounded)))
	}
	return notes
}

// lackGoodput reports whether a row of the demanded function lacks a goodput for its objective (lacking), and whether
// such a row has a goodput for another objective (other).
func lackGoodput(rows []profile.Row, d plan.Demand) (lacking, other bool) {
	for _, r := range rows {
		if _, _, measured := r.Goodput(d.SLOMS); r.Function == d.Function && !measured {
			lacking, other = true, other || r.GoodputKnown
		}
	}
	return lacking, other
}

// shown is the number of names in a note's list.
const shown = 5

// List returns up to shown names, separated by commas, and "others" for the rest.
func List(names []string) string {
	if len(names) > shown {
		names = append(slices.Clone(names[:shown]), "others")
	}
	return strings.Join(names, ", ")
}
