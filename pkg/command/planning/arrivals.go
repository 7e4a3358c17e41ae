// Package planning has the flags about the arrivals of requests that all commands share
// that plan for a demand, so that the same flags give the same plan.
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

// Arrivals are the flags about how requests come.
type Arrivals struct {
	Pattern  string // plan.ArrivalsPoisson or plan.ArrivalsSteady
	Headroom float64
	HandOver time.Duration
	asked    bool // the pattern was given
}

// Flags adds --arrivals, --headroom and --hand-over.
func (a *Arrivals) Flags(cmd *cobra.Command) {
	cli.Choice(cmd, &a.Pattern, "arrivals", "how requests come to functions with an objective", plan.ArrivalsPoisson, plan.ArrivalsSteady)
	cmd.Flags().Float64Var(&a.Headroom, "headroom", 0, "part of what an instance is worth to leave free, like `0.2`")
	cmd.Flags().DurationVar(&a.HandOver, "hand-over", arrivals.HandOver, "how long an instance of a function with inflight 1 by --functions has nothing to do between two calls")
}

// Check reports what is wrong with the flags.
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

// Apply gives the input what the flags say.
func (a *Arrivals) Apply(in *policy.Input) {
	in.Headroom, in.HandOverMS = a.Headroom, float64(a.HandOver)/float64(time.Millisecond)
	in.Poisson = a.Pattern == plan.ArrivalsPoisson
}

// Notes returns what is assumed about the arrivals of the input's demand.
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
		notes = append(notes, fmt.Sprintf("%s without an objective: requests are taken to come steadily", List(without)))
	}
	if len(assumed) > 0 {
		notes = append(notes, fmt.Sprintf("requests to %s are taken to come at random (--arrivals steady: one as another is answered); the profile does not tell the goodput, so an instance is taken to be a queue that answers as fast as its throughput says, with the pauses of its quota in windows of 100 ms", List(assumed)))
	}
	if len(bounded) > 0 {
		notes = append(notes, fmt.Sprintf("the goodput of %s was measured for another objective, so it is only a bound on what is counted on", List(bounded)))
	}
	return notes
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

// List names functions, the first of many.
func List(names []string) string {
	if len(names) > shown {
		names = append(slices.Clone(names[:shown]), "others")
	}
	return strings.Join(names, ", ")
}
