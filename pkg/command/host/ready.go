package host

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// Ready returns the function's instances that have been ready. That there is none
// is an error: exit 4 where the function is applied.
func Ready(state ports.Listing, name string) ([]launch.Candidate, error) {
	var out []launch.Candidate
	starting := 0
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
		weigh(out)
		return out, nil
	case starting > 0:
		return nil, cli.Fail(cli.ExitUnavailable, "'gfaas ps' shows how far they are",
			fmt.Errorf("function %s has no ready instance: %d still starting", name, starting))
	}
	if _, err := state.Function(name); err != nil {
		return nil, err
	}
	return nil, cli.Fail(cli.ExitUnavailable, "'gfaas serve' starts one with the first call, and 'gfaas up PLAN.json' those of a plan",
		fmt.Errorf("function %s has no instance", name))
}

// weigh says what instances can do beside each other: what a plan counts on them for
// or, where that is not known of all, their parts of a GPU.
func weigh(ready []launch.Candidate) {
	planned := !slices.ContainsFunc(ready, func(c launch.Candidate) bool { return c.Record.RPS <= 0 })
	for i := range ready {
		r := &ready[i].Record
		if ready[i].Capacity = r.Slice.SMPct * r.Slice.QuotaRequest; planned {
			ready[i].Capacity = r.RPS
		}
	}
}
