// Package diff compares two plans: it lists which instances stop, start and stay (Plans). Package
// command/place uses it.
package diff

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Kinds of changes.
const (
	Keep  = "keep"
	Start = "start"
	Stop  = "stop"
)

// Change describes the change of one instance, on all its GPUs.
type Change struct {
	Kind     string        `json:"do"`
	ID       string        `json:"id"`
	Function string        `json:"function"`
	GPUs     []string      `json:"gpus"` // node/index
	SMPct    float64       `json:"sm_pct"`
	Quota    float64       `json:"quota_request"`
	RPS      float64       `json:"rps"`
	Reason   reason.Reason `json:"reason,omitzero"`
}

// locatedInstance is an instance with its places.
type locatedInstance struct {
	plan.Instance
	gpus   []string
	places []string // place on each GPU
}

// Plans returns the changes from one plan to the next: stops in the order of the old plan, and then starts
// and kept instances in the order of the new plan. An instance is kept if the same ID has the same slice at
// the same place on the same GPUs. Otherwise, it stops, and another instance with its ID starts.
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

// Count returns the number of changes of a kind.
func Count(changes []Change, kind string) int {
	n := 0
	for _, c := range changes {
		if c.Kind == kind {
			n++
		}
	}
	return n
}

type list struct {
	order []string
	byID  map[string]*locatedInstance
}

func instances(p plan.Plan) list {
	l := list{byID: map[string]*locatedInstance{}}
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			at, known := l.byID[in.ID]
			if !known {
				at = &locatedInstance{Instance: in}
				l.byID[in.ID] = at
				l.order = append(l.order, in.ID)
			}
			at.gpus = append(at.gpus, g.Name().String())
			at.places = append(at.places, fmt.Sprintf("%s %s %s", g.Name(), number(in.X), number(in.Y)))
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

func same(a, b *locatedInstance) bool {
	return a.Function == b.Function && a.SMPct == b.SMPct && max(a.SMPct, a.SMLimitPct) == max(b.SMPct, b.SMLimitPct) && a.QuotaRequest == b.QuotaRequest && a.QuotaLimit == b.QuotaLimit &&
		a.Batch == b.Batch && slices.Equal(slices.Sorted(slices.Values(a.places)), slices.Sorted(slices.Values(b.places)))
}

func change(kind string, at *locatedInstance) Change {
	return Change{Kind: kind, ID: at.ID, Function: at.Function, GPUs: slices.Sorted(slices.Values(at.gpus)), SMPct: at.SMPct, Quota: at.QuotaRequest, RPS: at.RPS}
}
