package events

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// The kinds of instances in Dilu's cluster.
const (
	Training  = "training"
	LLM       = "llm"
	Inference = "inference"
)

// mixFunctions is the number of functions of each kind in a mix, which the paper does not state.
const mixFunctions = 40

// Mix returns the load of the large cluster in the paper on Dilu (section 5.5): the starts and stops of the given number
// of instances. One instance starts per second, in a ratio of 2 training to 2 LLM inference to 6 other inference. In each
// kind, 60% of the instances stop after 1 to 3 minutes, 10% after 10 to 15 minutes, and the others stay. The requirements
// of an instance are drawn uniformly from the ranges in generator.instance, which the paper does not print, in hundredths
// of a GPU and whole MiB. The same seed gives the same events.
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

// instance draws the requirements of an instance, for GPUs with 40 GiB.
func (g *generator) instance() Event {
	const gib = 1024
	e := Event{GPUs: 1}
	switch p := g.Below(10); {
	case p < 2:
		e.Kind, e.GPUs, e.MemMiB, e.SMRequest = Training, 2+2*g.Below(2), g.between(25*gib, 40*gib), g.between(40, 80)
	case p < 4:
		e.Kind, e.MemMiB, e.SMRequest = LLM, g.between(20*gib, 30*gib), g.between(40, 60)
	default:
		e.Kind, e.MemMiB, e.SMRequest = Inference, g.between(3*gib, 10*gib), g.between(20, 40)
	}
	e.SMLimit = min(100, e.SMRequest+20+g.between(0, 20)) / 100
	e.SMRequest /= 100
	e.Function = fmt.Sprintf("%s-%d", e.Kind, g.Below(mixFunctions))
	return e
}

type generator struct{ splitmix.Source }

// between returns an integer from low to high, inclusive.
func (g *generator) between(low, high float64) float64 {
	return low + math.Floor(g.Unit()*(high-low+1))
}
