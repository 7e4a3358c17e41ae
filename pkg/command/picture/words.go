package picture

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// headline says what the plan comes to.
func headline(p plan.Plan) string {
	text, verb := cli.Count(len(p.Demand), "function"), "serve"
	if n := len(p.Unplaced); n > 0 {
		text = fmt.Sprintf("%d of %s", len(p.Demand)-n, text)
	}
	if p.GPUsUsed == 1 {
		verb = "serves"
	}
	return fmt.Sprintf("%s %s %s", cli.Count(p.GPUsUsed, "GPU"), verb, text)
}

// summary says how good the plan is.
func summary(p plan.Plan) string {
	used, instances := 0.0, 0
	for _, g := range p.GPUs {
		used += area(g)
		instances += len(g.Instances)
	}
	text := fmt.Sprintf("The demand needs at least %s, however it is planned (%s bound)", cli.Count(p.Bound, "GPU"), p.BoundMethod)
	if p.GPUsUsed > 0 {
		text += fmt.Sprintf(" · %s · %s of SM time in use · algorithm %s", cli.Count(instances, "instance"), number.Percent(used/float64(p.GPUsUsed), 0), p.Algorithm)
	}
	return text
}

func area(g plan.GPU) float64 {
	sum := 0.0
	for _, in := range g.Instances {
		sum += in.SMPct / 100 * in.QuotaRequest
	}
	return sum
}

// gib prints an amount of memory.
func gib(mib float64) string { return number.Trimmed(mib/1024, 1) }
