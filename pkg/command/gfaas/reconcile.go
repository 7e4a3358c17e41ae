package gfaas

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/wire"
)

// What up does with an instance.
const (
	actionStart   = "start"   // there is none, or what there was has ended
	actionReplace = "replace" // it runs, but as what the plan does not say
	actionChange  = "change"  // its quota, memory limit, turns or objective, while it runs
	actionStop    = "stop"    // the plan does not name it (--prune)
	actionKeep    = "keep"
)

// step is what up does with one instance, and why.
type step struct {
	Action   string `json:"action"`
	ID       string `json:"id"`
	Function string `json:"function"`
	GPU      string `json:"gpu"` // several are joined by commas
	Why      string `json:"why"`

	wanted     assignment         // of start, replace, change and keep
	old        instance.Record    // of all but the start of what was not there
	registered *wire.Registration // of change and keep
}

// running is an instance of the state, with what its runtime says became of it and
// what the token daemon holds it to, if it knows it.
type running struct {
	record     instance.Record
	state      string
	registered *wire.Registration
}

// reconcile says what makes that run what is wanted, in the order of what is wanted
// and then of what runs. Instances of the gateway that nobody wants by their ids are
// its own.
func reconcile(wanted []assignment, have []running, prune bool) ([]step, error) {
	var steps []step
	at, named := map[string]int{}, map[string]bool{}
	for i, r := range have {
		at[r.record.ID] = i
	}
	for _, a := range wanted {
		named[a.placement.ID] = true
		s := step{Action: actionStart, ID: a.placement.ID, Function: a.function.Name, GPU: strings.Join(a.placement.GPUs, ","), wanted: a}
		if i, runs := at[s.ID]; runs {
			s.old, s.registered = have[i].record, have[i].registered
			if s.old.Owner == instance.Gateway {
				return nil, fmt.Errorf("instance %s is the gateway's: 'gfaas scale %s=0' has it stop it", s.ID, s.old.Function)
			}
			if have[i].state == stateUnknown {
				return nil, fmt.Errorf("instance %s: its runtime (%s) does not answer, so whether it runs is not known", s.ID, s.old.Runtime)
			}
			s.Action, s.Why = have[i].against(a)
		}
		steps = append(steps, s)
	}
	for _, r := range have {
		if !prune || named[r.record.ID] || r.record.Owner == instance.Gateway {
			continue
		}
		steps = append(steps, step{Action: actionStop, ID: r.record.ID, Function: r.record.Function, GPU: strings.Join(r.record.GPUs, ","),
			Why: "the plan does not name it", old: r.record})
	}
	return steps, nil
}

// against says what has an instance be as it is wanted, and how it differs.
func (r running) against(a assignment) (action, why string) {
	is, want := r.record, a.record()
	switch {
	case r.state == stateExited:
		return actionStart, "it has exited"
	case r.state != instance.Ready:
		return actionStart, "it never was ready"
	case is.Function != want.Function:
		return actionReplace, fmt.Sprintf("it is of %s", is.Function)
	case is.Runtime != want.Runtime:
		return actionReplace, fmt.Sprintf("it runs as a %s", is.Runtime)
	case !slices.Equal(is.GPUs, want.GPUs):
		return actionReplace, fmt.Sprintf("it is on GPU %s", strings.Join(is.GPUs, ","))
	case is.Slice.SMPct != want.Slice.SMPct:
		return actionReplace, fmt.Sprintf("it has %s%% of the SMs, not %s%%", number.Plain(is.Slice.SMPct), number.Plain(want.Slice.SMPct))
	case is.Definition != "" && want.Definition != "" && is.Definition != want.Definition:
		return actionReplace, "its function was applied anew"
	case r.registered == nil:
		return actionReplace, "the token daemon does not know it"
	}
	if why := r.changes(a); why != "" {
		return actionChange, why
	}
	return actionKeep, ""
}

// changes says how the slice differs that the instance is held to, where that can
// be changed while it runs.
func (r running) changes(a assignment) string {
	var out []string
	for n, is := range r.registered.Allocations() {
		want := a.placement.Slice
		if is.QuotaRequest != want.QuotaRequest || is.QuotaLimit != want.QuotaLimit {
			out = append(out, fmt.Sprintf("its quota is %s:%s, not %s:%s", number.Plain(is.QuotaRequest), number.Plain(is.QuotaLimit),
				number.Plain(want.QuotaRequest), number.Plain(want.QuotaLimit)))
		}
		if is.MemLimit != want.Mem {
			out = append(out, fmt.Sprintf("its memory limit is %s, not %s", limitText(is.MemLimit), limitText(want.Mem)))
		}
		if n < len(a.placement.Turns) && !slices.Equal(is.Turns, a.placement.Turns[n]) {
			out = append(out, "it has other turns")
		}
	}
	if want := launch.SLOMS(a.function); r.registered.SLOMS != want {
		out = append(out, fmt.Sprintf("its objective is %s, not %s", objectiveText(r.registered.SLOMS), objectiveText(want)))
	}
	if len(out) == 0 && r.record.Slice != a.placement.Slice {
		out = append(out, "its slice was changed")
	}
	if r.record.RPS != a.placement.RPS {
		out = append(out, "the plan counts on it for another rate")
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), "; ")
}

func limitText(b gpu.Bytes) string {
	if b == 0 {
		return "none"
	}
	return b.String()
}

// change returns the change of the registration is that gives the instance the assignment's
// quota, memory limit, turns and objective.
func (a assignment) change(is wire.Registration) wire.Change {
	s := a.placement.Slice
	c := wire.Change{QuotaRequest: &s.QuotaRequest, QuotaLimit: &s.QuotaLimit, MemLimit: &s.Mem, Turns: a.placement.Turns}
	if slo := launch.SLOMS(a.function); slo != is.SLOMS { // older daemons do not know the field
		c.SLOMS = &slo
	}
	return c
}

// objectiveText returns an objective in words; without one, "best effort".
func objectiveText(ms float64) string {
	if ms == 0 {
		return "best effort"
	}
	return number.Plain(ms) + " ms"
}

// difference is the steps for people; what is kept is left out.
func difference(steps []step) [][]string {
	rows := [][]string{{"ACTION", "INSTANCE", "FUNCTION", "GPU", "WHY"}}
	for _, s := range steps {
		if s.Action != actionKeep {
			rows = append(rows, []string{s.Action, s.ID, s.Function, s.GPU, orDash(s.Why != "", s.Why)})
		}
	}
	return rows
}
