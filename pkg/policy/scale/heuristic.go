package scale

import (
	"math"

	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// heuristic implements FaST-GShare's Algorithm 1.
type heuristic struct {
	rows     []profile.Row
	load     Estimator
	estimate float64 // latest estimate of the load, in requests per second
}

// NewHeuristic returns a Scaler with FaST-GShare's heuristic scaling (section 3.4.1, Algorithm 1). It
// covers missing throughput with instances of the most efficient configuration of the rows, and the
// remainder with one instance of the smallest sufficient configuration. It removes excess throughput by
// stopping the least efficient instances; among equally efficient ones, the newest comes first.
func NewHeuristic(rows []profile.Row, load Estimator, b Bounds) *Scaler {
	return newScaler(&heuristic{rows: rows, load: load}, b)
}

func (h *heuristic) observe(rps float64) { h.estimate = h.load.Observe(rps) }
func (h *heuristic) acted()              {}

func (h *heuristic) spare(deployed []Instance, n int) []string {
	names := h.inefficient(deployed, math.Inf(1))
	return names[:min(n, len(names))]
}

// template returns an instance with the configuration that has the least throughput.
func (h *heuristic) template() (Instance, bool) {
	smallest := place.ScaleUp(h.rows, math.SmallestNonzeroFloat64, place.LargerQuota)
	if len(smallest) == 0 {
		return Instance{}, false
	}
	return Instance{Request: smallest[0].Row, Limit: smallest[0].Row}, true
}

func (h *heuristic) decide(deployed []Instance) (d decision) {
	gap := h.estimate - sustained(deployed)
	if gap > slack*h.estimate {
		for _, g := range place.ScaleUp(h.rows, gap, place.LargerQuota) {
			d.start = append(d.start, Start{Count: g.Count, Like: Instance{Request: g.Row, Limit: g.Row}})
		}
		d.reason = reason.New(missingRPS, reason.Number("rps", h.estimate), reason.Number("missing_rps", gap))
		return d
	}
	d.stop = h.inefficient(deployed, -gap)
	d.reason = reason.New(excessRPS, reason.Number("rps", h.estimate), reason.Number("excess_rps", -gap))
	return d
}

// inefficient returns the instances that can be stopped if excess requests per second are not needed,
// the least efficient first.
func (h *heuristic) inefficient(deployed []Instance, excess float64) (names []string) {
	running := make([]place.Running, 0, len(deployed))
	for i := len(deployed) - 1; i >= 0; i-- {
		if deployed[i].Pinned {
			continue
		}
		running = append(running, place.Running{ID: deployed[i].ID, Row: deployed[i].Request})
	}
	for _, r := range place.ScaleDown(running, excess) {
		names = append(names, r.ID)
	}
	return names
}
