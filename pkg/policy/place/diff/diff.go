// Package diff compares plans: what keeps running, what starts and what stops
// on the way from one to the next.
package diff

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
)

// What becomes of an instance.
const (
	Keep  = "keep"
	Start = "start"
	Stop  = "stop"
)

// Change is what becomes of one instance, on all its GPUs.
type Change struct {
	Do       string   `json:"do"`
	ID       string   `json:"id"`
	Function string   `json:"function"`
	GPUs     []string `json:"gpus"` // node/index
	SMPct    float64  `json:"sm_pct"`
	Quota    float64  `json:"quota_request"`
	RPS      float64  `json:"rps"`
	Why      string   `json:"why,omitempty"`
}

// placed is an instance with where it is.
type placed struct {
	plan.Instance
	gpus  []string
	spots []string // on each GPU
}

// Plans lists the changes from one plan to the next: stops in the order of the
// old, then starts and what is kept in the order of the new. An instance is
// kept when the same id has the same slice at the same place of the same GPUs;
// otherwise it stops and another of its id starts.
func Plans(before, after plan.Plan) []Change {
	was, is := instances(before), instances(after)
	var stops, starts, keeps []Change
	for _, id := range is.order {
		now := is.byID[id]
		if old, known := was.byID[id]; known && same(old, now) {
			keeps = append(keeps, change(Keep, now))
		} else {
			starts = append(starts, change(Start, now))
		}
	}
	for _, id := range was.order {
		old := was.byID[id]
		if now, known := is.byID[id]; !known || !same(old, now) {
			stops = append(stops, change(Stop, old))
		}
	}
	return slices.Concat(stops, starts, keeps)
}

// Count is how many changes there are of a kind.
func Count(changes []Change, do string) int {
	n := 0
	for _, c := range changes {
		if c.Do == do {
			n++
		}
	}
	return n
}

type list struct {
	order []string
	byID  map[string]*placed
}

func instances(p plan.Plan) list {
	l := list{byID: map[string]*placed{}}
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			at, known := l.byID[in.ID]
			if !known {
				at = &placed{Instance: in}
				l.byID[in.ID] = at
				l.order = append(l.order, in.ID)
			}
			at.gpus = append(at.gpus, fmt.Sprintf("%s/%d", g.Node, g.Index))
			at.spots = append(at.spots, fmt.Sprintf("%s/%d %s %s", g.Node, g.Index, number(in.X), number(in.Y)))
		}
	}
	return l
}

func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.8f", *v)
}

func same(a, b *placed) bool {
	return a.Function == b.Function && a.SMPct == b.SMPct && a.QuotaRequest == b.QuotaRequest && a.QuotaLimit == b.QuotaLimit &&
		a.Batch == b.Batch && slices.Equal(slices.Sorted(slices.Values(a.spots)), slices.Sorted(slices.Values(b.spots)))
}

func change(do string, at *placed) Change {
	gpus := slices.Clone(at.gpus)
	slices.SortFunc(gpus, cmp.Compare)
	return Change{Do: do, ID: at.ID, Function: at.Function, GPUs: gpus, SMPct: at.SMPct, Quota: at.QuotaRequest, RPS: at.RPS}
}
