package place

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/joint"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Reason says why a configuration was chosen for a function. GPUs are what the
// linear program's prices say that an instance's requests are worth and what
// its rectangle's area takes: a configuration is good when it takes no more
// than its requests are worth.
type Reason struct {
	Function string
	Row      profile.Row
	Count    int     // instances of it in the plan
	Choices  int     // configurations of the function to choose among
	Area     float64 // of an instance, in GPUs
	Worth    float64 // of what an instance serves, in GPUs
	Best     float64 // requests a second for each whole GPU of the function's most efficient configuration
}

// String is the reason in a line.
func (r Reason) String() string {
	text := fmt.Sprintf("%s: %d × (%s), %s requests a second each: it takes %.1f%% of a GPU's area and serves what is worth %.1f%%; ",
		r.Function, r.Count, describe(r.Row), num(r.Row.ThroughputRPS), 100*r.Area, 100*r.Worth)
	if r.Row.Efficacy() >= r.Best*(1-alike) {
		return text + fmt.Sprintf("of %d configurations none serves more for its area", r.Choices)
	}
	return text + fmt.Sprintf("of %d configurations the best serves %.1f%% more for its area, but this one fits beside the others or covers the rest",
		r.Choices, 100*(r.Best/r.Row.Efficacy()-1))
}

// reasons are those of all configurations in the plan, by function, most
// instances first.
func (b *builder) reasons(sol joint.Solution) []Reason {
	counts := make([][]int, len(b.wanted))
	for f, w := range b.wanted {
		counts[f] = make([]int, len(w.rows))
	}
	for _, g := range sol.Groups {
		for _, it := range g.GPU.Items {
			counts[it.Func][it.Option] += g.Count
		}
	}
	var out []Reason
	for f, w := range b.wanted {
		from, best := len(out), 0.0
		for _, r := range w.rows {
			best = max(best, r.Efficacy())
		}
		for i, n := range counts[f] {
			if r := w.rows[i]; n > 0 {
				out = append(out, Reason{Function: w.demand.Function, Row: r, Count: n, Choices: len(w.rows),
					Area: r.SMPct / 100 * r.Quota, Worth: sol.Price[f] * r.ThroughputRPS, Best: best})
			}
		}
		slices.SortStableFunc(out[from:], func(a, b Reason) int { return b.Count - a.Count })
	}
	return out
}
