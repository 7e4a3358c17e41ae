package gfaas

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/plan"
)

// checkDevices refuses a plan that needs more GPUs than this machine has.
func checkDevices(p plan.Plan, node string, simulated bool) error {
	have, hint := realDevices(), "plan for the GPUs that are there: gfaas-place plan --gpus N"
	if simulated {
		have = simDevices(os.Getenv("GFAAS_SIM_GPU"))
		hint = `the shape of the simulated machine is set by GFAAS_SIM_GPU, as in "sms=80,mem=16GiB,count=4"`
	}
	for _, g := range p.GPUs {
		if g.Node == node && len(g.Instances) > 0 && g.Index >= have {
			return cli.Fail(cli.ExitUnavailable, hint,
				fmt.Errorf("the plan places instances on GPU %d: this machine has %d GPU(s), counted from 0", g.Index, have))
		}
	}
	return nil
}

// realDevices counts the NVIDIA devices of this machine.
func realDevices() int {
	found, err := filepath.Glob("/dev/nvidia[0-9]*")
	if err != nil {
		return 0
	}
	return len(found)
}

// simDevices is how many GPUs the simulated driver will show.
func simDevices(shape string) int {
	for part := range strings.SplitSeq(shape, ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(part), "count="); ok {
			if n, err := strconv.Atoi(text); err == nil && n > 0 {
				return n
			}
		}
	}
	return 1
}
