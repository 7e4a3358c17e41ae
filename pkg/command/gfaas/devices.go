package gfaas

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/plan"
)

// checkDevices refuses a plan that needs more GPUs than this machine has.
func checkDevices(p plan.Plan, node string, simulated bool) error {
	have, hint := host.Devices(simulated), "plan for the GPUs that are there: gfaas-place plan --gpus N"
	if simulated {
		hint = host.SimShapeHint
	}
	for _, g := range p.GPUs {
		if g.Node == node && len(g.Instances) > 0 && g.Index >= have {
			return cli.Fail(cli.ExitUnavailable, hint,
				fmt.Errorf("the plan places instances on GPU %d: this machine has %d GPU(s), counted from 0", g.Index, have))
		}
	}
	return nil
}
