package scale

import (
	"fmt"
	"math"

	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/profile"
)

// heuristic is FaST-GShare's Algorithm 1.
type heuristic struct {
	rows []profile.Row
	load Estimator
	last float64 // estimate
}

// NewHeuristic makes a Scaler by FaST-GShare's heuristic scaling (section 3.4.1,
// Algorithm 1): what is missing is filled with the most efficient configuration
// of the rows and one that just covers the rest; what is too much is taken from
// the least efficient instances, of equally efficient ones from the newest.
func NewHeuristic(rows []profile.Row, load Estimator, b Bounds) *Scaler {
	return newScaler(&heuristic{rows: rows, load: load}, b)
}

func (h *heuristic) observe(rps float64) { h.last = h.load.Observe(rps) }
func (h *heuristic) acted()              {}

func (h *heuristic) spare(deployed []Instance, n int) []string {
	return h.inefficient(deployed, math.Inf(1))[:n]
}

// another is the configuration that sustains least.
func (h *heuristic) another() (Instance, bool) {
	least := place.ScaleUp(h.rows, math.SmallestNonzeroFloat64, place.LargerQuota)
	if len(least) == 0 {
		return Instance{}, false
	}
	return Instance{Request: least[0].Row, Limit: least[0].Row}, true
}

func (h *heuristic) decide(deployed []Instance) (d decision) {
	gap := h.last - sustained(deployed)
	if gap > slack*h.last {
		for _, g := range place.ScaleUp(h.rows, gap, place.LargerQuota) {
			d.start = append(d.start, Start{Count: g.Count, Like: Instance{Request: g.Row, Limit: g.Row}})
		}
		d.why = fmt.Sprintf("%s rps lack %s", num(h.last), num(gap))
		return d
	}
	d.stop = h.inefficient(deployed, -gap)
	d.why = fmt.Sprintf("%s rps leave %s over", num(h.last), num(-gap))
	return d
}

// inefficient names the instances that can be missed when so much is over, the
// least efficient first.
func (h *heuristic) inefficient(deployed []Instance, excess float64) (names []string) {
	running := make([]place.Running, 0, len(deployed))
	for i := len(deployed) - 1; i >= 0; i-- {
		running = append(running, place.Running{ID: deployed[i].ID, Row: deployed[i].Request})
	}
	for _, r := range place.ScaleDown(running, excess) {
		names = append(names, r.ID)
	}
	return names
}
