package picture

import (
	"fmt"
	"strconv"

	"github.com/gfaas/gfaas/pkg/command/cli"
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
		text += fmt.Sprintf(" · %s · %s of SM time in use · algorithm %s", cli.Count(instances, "instance"), percent(used/float64(p.GPUsUsed)), p.Algorithm)
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

func percent(fraction float64) string { return strconv.FormatFloat(100*fraction, 'f', 0, 64) + "%" }

// decimal prints with at most that many digits after the point.
func decimal(v float64, digits int) string {
	text := strconv.FormatFloat(v, 'f', digits, 64)
	v, _ = strconv.ParseFloat(text, 64)
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// gib prints an amount of memory.
func gib(mib float64) string { return decimal(mib/1024, 1) }
