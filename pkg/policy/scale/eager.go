package scale

import (
	"fmt"
	"strconv"

	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Eager keeps as many instances as the estimated load needs, at once and both
// ways; instances never rise above their request.
type Eager struct {
	unit Instance
	load Estimator
}

// NewEager scales in steps of unit.
func NewEager(unit Instance, load Estimator) *Eager {
	unit.Limit = unit.Request
	return &Eager{unit, load}
}

// Step implements Scaler.
func (e *Eager) Step(rps float64, deployed []Instance) []Action {
	load := e.load.Observe(rps)
	wanted, n := need(load, e.unit.Request.ThroughputRPS), len(deployed)
	reason := fmt.Sprintf("%s rps need %d", num(load), wanted)
	switch {
	case wanted > n:
		return []Action{{Start: wanted - n, Like: e.unit, Reason: reason}}
	case wanted < n:
		return []Action{{Stop: newest(deployed, n-wanted), Reason: reason}}
	}
	return nil
}

// Heuristic is FaST-GShare's heuristic scaling (section 3.4.1, Algorithm 1):
// what is missing is filled with the most efficient configuration and one that
// just covers the rest; what is too much is taken from the least efficient
// instances, of equally efficient ones from the newest.
type Heuristic struct {
	rows []profile.Row
	load Estimator
}

// NewHeuristic scales with any of a function's configurations.
func NewHeuristic(rows []profile.Row, load Estimator) *Heuristic { return &Heuristic{rows, load} }

// Step implements Scaler.
func (h *Heuristic) Step(rps float64, deployed []Instance) []Action {
	load := h.load.Observe(rps)
	gap := load - sustained(deployed)
	if gap > slack*load {
		var out []Action
		for _, g := range place.ScaleUp(h.rows, gap, place.LargerQuota) {
			out = append(out, Action{Start: g.Count, Like: Instance{Request: g.Row, Limit: g.Row},
				Reason: fmt.Sprintf("%s rps lack %s", num(load), num(gap))})
		}
		return out
	}
	running := make([]place.Running, 0, len(deployed))
	for i := len(deployed) - 1; i >= 0; i-- {
		running = append(running, place.Running{ID: deployed[i].ID, Row: deployed[i].Request})
	}
	var stop []string
	for _, r := range place.ScaleDown(running, -gap) {
		stop = append(stop, r.ID)
	}
	if stop == nil {
		return nil
	}
	return []Action{{Stop: stop, Reason: fmt.Sprintf("%s rps leave %s over", num(load), num(-gap))}}
}

// num prints a rate to four digits.
func num(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
