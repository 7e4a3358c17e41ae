package place

import (
	"fmt"
	"math"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/joint"
)

// JointOptions are what a joint plan may be made with.
type JointOptions struct {
	Model       string // plan.ModelRect or plan.ModelTokens
	ShareModels bool   // a model's weights are kept once on a GPU
	Seed        uint64
	Work        int64       // bounds the search; 0 is joint.DefaultWork
	Expired     func() bool // ends the improvement early; nil is never
}

// Joint plans by choosing configurations and packing them together: a linear
// program over what one GPU can host, whose value is the plan's bound, rounded
// and improved by a search. When the GPUs there are do not suffice, as many
// requests a second as can be are served. The reasons say why configurations were
// chosen, in the order of the demand.
func Joint(in Input, o JointOptions) (plan.Plan, []Reason, error) {
	b := builder{in: in, o: o, wanted: in.wants(), ids: map[[2]int]string{}}
	p := joint.Problem{Tokens: o.Model == plan.ModelTokens}
	p.Classes, b.devices = in.classes()
	for i := range b.wanted {
		w := &b.wanted[i]
		fn := in.function(w.demand.Function)
		w.rows = undominated(w.rows)
		b.functions = append(b.functions, fn)
		b.count(w, fn)
	}
	for i := range b.wanted {
		p.Funcs = append(p.Funcs, b.function(&b.wanted[i], b.functions[i]))
	}
	for _, m := range b.models {
		p.Keepers = append(p.Keepers, int64(gpu.FromMiB(m.MemMiB)))
	}
	if err := tooMany(b.wanted); err != nil && in.Devices == nil {
		return plan.Plan{}, nil, err
	}
	options := joint.Options{Seed: o.Seed, Work: o.Work, Expired: o.Expired}
	sol := joint.Solve(p, options)
	if b.generous(&p) {
		sol.Bound, sol.Method = joint.Bound(p, options)
	}
	return b.plan(sol), b.reasons(sol), nil
}

// tooMany refuses a demand that would take more than maxInstances.
func tooMany(wanted []want) error {
	count := 0.0
	for _, w := range wanted {
		most := 0.0
		for _, r := range w.rows {
			most = max(most, r.ThroughputRPS)
		}
		if most > 0 {
			count += w.demand.RPS / most
		}
		if count > maxInstances {
			return fmt.Errorf("%s: %s requests a second take more than %d instances: the largest configuration sustains %s",
				w.demand.Function, num(w.demand.RPS), maxInstances, num(most))
		}
	}
	return nil
}

// together is the most GPUs that one node has.
func (in Input) together() int {
	if in.Devices == nil {
		return math.MaxInt
	}
	count, most := map[string]int{}, 0
	for _, d := range in.Devices {
		count[d.Node]++
		most = max(most, count[d.Node])
	}
	return most
}
