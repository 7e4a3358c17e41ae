package host

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// Ready returns the function's ready instances, with capacities. It returns an error if there are none; the
// exit status is cli.ExitUnavailable if the function is applied.
func Ready(state ports.Listing, name string) ([]launch.Candidate, error) {
	var out []launch.Candidate
	starting := 0
	if fn, err := state.Function(name); err == nil && fn.Kind == function.Training {
		return nil, cli.Fail(cli.ExitUnavailable, "'gfaas ps "+name+"' shows its state, and 'gfaas wait "+name+"' waits until it is complete",
			fmt.Errorf("function %s is a job (kind: %s), which answers no calls", name, function.Training))
	}
	for _, r := range state.Instances {
		switch {
		case r.Function != name:
		case r.State == instance.Ready:
			out = append(out, launch.Candidate{Record: r})
		default:
			starting++
		}
	}
	switch {
	case len(out) > 0:
		setCapacities(out)
		return out, nil
	case starting > 0:
		return nil, cli.Fail(cli.ExitUnavailable, "'gfaas ps' shows their state",
			fmt.Errorf("function %s has no ready instance: %d still starting", name, starting))
	}
	if _, err := state.Function(name); err != nil {
		return nil, err
	}
	return nil, cli.Fail(cli.ExitUnavailable, "'gfaas serve' starts an instance at the first call; 'gfaas up PLAN.json' starts the instances of a plan",
		fmt.Errorf("function %s has no instance", name))
}

// setCapacities sets the relative capacities of instances: the rates from the plan or, if an instance has no such
// rate, the instances' shares of a GPU.
func setCapacities(ready []launch.Candidate) {
	planned := !slices.ContainsFunc(ready, func(c launch.Candidate) bool { return c.Record.RPS <= 0 })
	for i := range ready {
		r := &ready[i].Record
		if ready[i].Capacity = r.Slice.SMPct * r.Slice.QuotaRequest; planned {
			ready[i].Capacity = r.RPS
		}
	}
}
