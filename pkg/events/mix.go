package events

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// Kinds of instances in Dilu's cluster.
const (
	Training  = "training"
	LLM       = "llm"
	Inference = "inference"
)

// mixFunctions is how many functions of each kind a mix has: the paper does
// not say.
const mixFunctions = 40

// Mix makes the load of Dilu's large cluster (section 5.5): that many
// instances, one start a second, training to LLM inference to other inference
// as 2 to 2 to 6. Of each kind's instances 60% stop after 1 to 3 minutes and
// 10% after 10 to 15; the others stay. An instance's needs are its own, drawn
// evenly from the ranges below, in hundredths of a GPU and whole MiB. The same
// seed gives the same events.
func Mix(seed uint64, instances int) []Event {
	rng := generator{splitmix.Source(seed)}
	var out []Event
	for i := range instances {
		e := rng.instance()
		e.Time, e.Start, e.Instance = float64(i), true, fmt.Sprintf("i%d", i)
		out = append(out, e)
		stay := 0.0
		switch p := rng.Below(10); {
		case p < 6:
			stay = rng.between(60, 180)
		case p < 7:
			stay = rng.between(600, 900)
		default:
			continue
		}
		out = append(out, Event{Time: e.Time + stay, Instance: e.Instance, Function: e.Function, Kind: e.Kind})
	}
	slices.SortStableFunc(out, func(a, b Event) int { return cmp.Compare(a.Time, b.Time) })
	return out
}

// instance draws what an instance needs. Memory is given in GB by the paper,
// for GPUs of 40: both are taken as GiB here.
func (g *generator) instance() Event {
	const gib = 1024
	e := Event{GPUs: 1}
	most := 0.0
	switch p := g.Below(10); {
	case p < 2:
		e.Kind, e.GPUs, e.MemMiB, e.SMRequest, most = Training, 2+2*g.Below(2), g.between(25*gib, 40*gib), g.between(40, 80), 100
	case p < 4:
		e.Kind, e.MemMiB, e.SMRequest, most = LLM, g.between(20*gib, 30*gib), g.between(40, 60), 100
	default:
		e.Kind, e.MemMiB, e.SMRequest, most = Inference, g.between(3*gib, 10*gib), g.between(20, 40), 100
	}
	e.SMLimit = min(most, e.SMRequest+20+g.between(0, 20)) / 100
	e.SMRequest /= 100
	e.Function = fmt.Sprintf("%s-%d", e.Kind, g.Below(mixFunctions))
	return e
}

type generator struct{ splitmix.Source }

// between is a whole number from low to high, both included.
func (g *generator) between(low, high float64) float64 {
	return low + math.Floor(g.Unit()*(high-low+1))
}
