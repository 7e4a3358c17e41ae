package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Actions of steps.
const (
	ActionStart   = "start"   // the instance is new or has ended
	ActionReplace = "replace" // it differs from the plan in a way that needs a restart
	ActionChange  = "change"  // its quota, memory limit, turns or objective change while it runs
	ActionStop    = "stop"    // it is not in the plan (with Prune)
	ActionKeep    = "keep"
)

// Step reconciles one instance with the plan.
type Step struct {
	Action   string `json:"action"`
	ID       string `json:"id"`
	Function string `json:"function"`
	GPU      string `json:"gpu"` // several names are joined by commas
	Why      string `json:"why"`

	assignment Assignment         // for start, replace, change and keep
	old        instance.Record    // for all actions, except the start of a new instance
	registered *wire.Registration // for change and keep
}

// observed is an instance in the catalog with its state and its registration, which is nil if the token daemon
// has none.
type observed struct {
	record     instance.Record
	state      string
	registered *wire.Registration
}

// Options are the options of Steps.
type Options struct {
	Prune  bool // stop instances that are not in the plan
	DryRun bool // do not remove the remains of ended instances
}

// Steps returns the steps that reconcile the instances with the wanted ones: one per wanted instance, in the same
// order, followed by the steps that stop instances.
func (c *Controller) Steps(ctx context.Context, assignments []Assignment, o Options) ([]Step, error) {
	all, err := c.Inventory(ctx)
	if err == nil && !o.DryRun {
		err = c.removeEnded(ctx, &all)
	}
	if err == nil {
		err = errors.Join(all.Damaged, all.checkLost(assignments))
	}
	if err != nil {
		return nil, err
	}
	states, err := c.States(ctx, all.Instances)
	if err != nil {
		return nil, err
	}
	registrations, err := c.Launcher.Registrations(ctx)
	if err != nil {
		return nil, err
	}
	registered := map[string]*wire.Registration{}
	for i, r := range registrations {
		registered[r.Instance] = &registrations[i]
	}
	var existing []observed
	for i, r := range all.Instances {
		existing = append(existing, observed{r, states[i].Name, registered[r.ID]})
	}
	return reconcile(assignments, existing, o.Prune)
}

// reconcile returns the steps for the observed instances. Only the gateway stops its own instances, so reconcile
// returns an error if the ID of such an instance is wanted.
func reconcile(assignments []Assignment, existing []observed, prune bool) ([]Step, error) {
	var steps []Step
	at, named := map[string]int{}, map[string]bool{}
	for i, r := range existing {
		at[r.record.ID] = i
	}
	for _, a := range assignments {
		named[a.ID] = true
		s := Step{Action: ActionStart, ID: a.ID, Function: a.Function.Name, GPU: strings.Join(a.GPUs, ","), assignment: a}
		if i, exists := at[s.ID]; exists {
			s.old, s.registered = existing[i].record, existing[i].registered
			if s.old.Owner == instance.Gateway {
				return nil, failf("'gfaas scale "+s.old.Function+"=0' stops it", "the gateway has already started an instance %s", s.ID)
			}
			if existing[i].state == StateUnknown {
				return nil, fmt.Errorf("cannot determine whether instance %s runs: its runtime (%s) does not answer", s.ID, s.old.Runtime)
			}
			s.Action, s.Why = existing[i].compare(a)
		}
		steps = append(steps, s)
	}
	for _, r := range existing {
		if !prune || named[r.record.ID] || r.record.Owner == instance.Gateway {
			continue
		}
		steps = append(steps, Step{Action: ActionStop, ID: r.record.ID, Function: r.record.Function, GPU: strings.Join(r.record.GPUs, ","),
			Why: "it is not in the plan", old: r.record})
	}
	return steps, nil
}

// compare returns the action that makes the instance match the assignment, and the difference.
func (o observed) compare(a Assignment) (action, reason string) {
	is, want := o.record, a.record()
	switch {
	case is.Job && o.state == instance.Succeeded && is.Function == want.Function && is.Definition == want.Definition:
		return ActionKeep, "" // it is complete
	case is.Job && o.state == instance.Succeeded:
		return ActionStart, "its function has changed since it succeeded"
	case is.Job && o.state == instance.Failed:
		return ActionStart, "it has failed"
	case o.state == StateExited:
		return ActionStart, "it has exited"
	case o.state != instance.Ready && o.state != instance.Running && o.state != instance.Restarting:
		return ActionStart, "it was never ready"
	case is.Function != want.Function:
		return ActionReplace, fmt.Sprintf("it is an instance of function %s", is.Function)
	case is.Runtime != want.Runtime:
		return ActionReplace, fmt.Sprintf("it runs as a %s", is.Runtime)
	case !slices.Equal(is.GPUs, want.GPUs):
		return ActionReplace, fmt.Sprintf("it is on GPU %s", strings.Join(is.GPUs, ","))
	case smText(is.Slice) != smText(want.Slice):
		return ActionReplace, fmt.Sprintf("it has %s of the SMs, not %s", smText(is.Slice), smText(want.Slice))
	case is.Definition != "" && want.Definition != "" && is.Definition != want.Definition:
		return ActionReplace, "its function has changed"
	case o.registered == nil:
		return ActionReplace, "it is not registered with the token daemon"
	}
	if reason := o.changes(a); reason != "" {
		return ActionChange, reason
	}
	return ActionKeep, ""
}

// changes describes the differences from the assignment that can be changed while the instance runs, or returns
// "" if there are none.
func (o observed) changes(a Assignment) string {
	var out []string
	for n, is := range o.registered.Allocations() {
		want := a.Slice
		if is.QuotaRequest != want.QuotaRequest || is.QuotaLimit != want.QuotaLimit {
			out = append(out, fmt.Sprintf("its quota is %s:%s, not %s:%s", number.Plain(is.QuotaRequest), number.Plain(is.QuotaLimit),
				number.Plain(want.QuotaRequest), number.Plain(want.QuotaLimit)))
		}
		if is.MemLimit != want.Mem {
			out = append(out, fmt.Sprintf("its memory limit is %s, not %s", limitText(is.MemLimit), limitText(want.Mem)))
		}
		if n < len(a.Turns) && !slices.Equal(is.Turns, a.Turns[n]) {
			out = append(out, "its turns differ from the plan")
		}
	}
	if want := launch.SLOMS(a.Function); o.registered.SLOMS != want {
		out = append(out, fmt.Sprintf("its objective is %s, not %s", objectiveText(o.registered.SLOMS), objectiveText(want)))
	}
	if len(out) == 0 && o.record.Slice != a.Slice {
		out = append(out, "its slice differs from the plan")
	}
	if o.record.RPS != a.RPS {
		out = append(out, "its rate differs from the plan")
	}
	if o.record.Batch != a.Batch {
		out = append(out, "its batch differs from the plan")
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), "; ")
}

// smText formats the SM share of a slice: "24%", or "24:48%" with a limit.
func smText(s gpu.Slice) string {
	if limit := s.LargestSMPct(); limit > s.SMPct {
		return number.Plain(s.SMPct) + ":" + number.Plain(limit) + "%"
	}
	return number.Plain(s.SMPct) + "%"
}

func limitText(b gpu.Bytes) string {
	if b == 0 {
		return "none"
	}
	return b.String()
}

// change returns the change that gives an instance with the registration the assignment's quota, memory limit,
// turns and objective.
func (a Assignment) change(is wire.Registration) wire.Change {
	s := a.Slice
	c := wire.Change{QuotaRequest: &s.QuotaRequest, QuotaLimit: &s.QuotaLimit, MemLimit: &s.Mem, Turns: a.Turns}
	if slo := launch.SLOMS(a.Function); slo != is.SLOMS { // older daemons do not know the field
		c.SLOMS = &slo
	}
	return c
}

// objectiveText formats an objective, or returns "best effort" for none.
func objectiveText(ms float64) string {
	if ms == 0 {
		return "best effort"
	}
	return number.Plain(ms) + " ms"
}
