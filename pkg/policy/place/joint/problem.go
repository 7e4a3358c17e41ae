package joint

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
)

// memoryOf returns the memory that items need on one GPU.
func (p *Problem) memoryOf(items []Item) int64 {
	h := host{p: p}
	for _, it := range items {
		h.used += h.memory(it)
		h.items = append(h.items, it)
	}
	return h.used
}

// option returns the configuration of an item.
func (p *Problem) option(it Item) *Option { return &p.Funcs[it.Func].Options[it.Option] }

// span returns the number of GPUs that an instance of a function is on.
func (p *Problem) span(f int) int { return max(1, p.Funcs[f].Span) }

// gangSize returns the least number of GPUs that can all host these items: the least
// common multiple of their spans.
func (p *Problem) gangSize(items []Item) int {
	out := 1
	for _, it := range items {
		a, b := out, p.span(it.Func)
		for b != 0 {
			a, b = b, a%b
		}
		out *= p.span(it.Func) / a
	}
	return out
}

// spanningItems returns the items of functions that span several GPUs.
func (p *Problem) spanningItems(items []Item) []Item {
	var out []Item
	for _, it := range items {
		if p.span(it.Func) > 1 {
			out = append(out, it)
		}
	}
	return out
}

// spans reports whether any function spans several GPUs.
func (p *Problem) spans() bool {
	return slices.ContainsFunc(p.Funcs, func(f Func) bool { return f.Span > 1 })
}

// nodes returns the number of nodes.
func (p *Problem) nodes() int {
	n := 1
	for _, c := range p.Classes {
		n = max(n, len(c.Nodes))
	}
	return n
}

// canHost reports whether a GPU of class k can host the items.
func (p *Problem) canHost(k int, items []Item) bool {
	for _, it := range items {
		if !p.option(it).On[k] {
			return false
		}
	}
	room := p.Classes[k].Room
	return room == Unlimited || p.memoryOf(items) <= room
}

// spansByWidth returns the spans of more than one GPU, the largest first.
func (p *Problem) spansByWidth() (out []int) {
	for f := range p.Funcs {
		if n := p.span(f); n > 1 {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return cmp.Compare(b, a) })
	return slices.Compact(out)
}

// widestOf returns the largest span of the items.
func (p *Problem) widestOf(items []Item) int {
	n := 0
	for _, it := range items {
		n = max(n, p.span(it.Func))
	}
	return n
}

// share returns the share of a GPU that an instance needs on each of its GPUs: of the area,
// or of the memory of the largest GPU if that is more.
func (p *Problem) share(o *Option) float64 {
	room := int64(0)
	for _, c := range p.Classes {
		room = max(room, c.Room)
	}
	return max(float64(o.W)/One*(float64(o.H)/One), float64(o.Mem)/float64(max(1, room)))
}

// counts returns the number of GPUs of each class.
func (p *Problem) counts() []int {
	out := make([]int, len(p.Classes))
	for k, c := range p.Classes {
		out[k] = c.Count
	}
	return out
}

// memoryLimited reports whether memory is limited on any GPU.
func (p *Problem) memoryLimited() bool {
	return slices.ContainsFunc(p.Classes, func(c Class) bool { return c.Room != Unlimited })
}

// fleetOnly reports whether the only plan is that of a fleet.
func (p *Problem) fleetOnly() bool {
	return p.hasFleet() && len(p.Funcs) > manyFuncs && len(p.Keepers) == 0
}

// hasFleet reports whether a fleet can be planned: all GPUs are of one class, and no
// instance spans GPUs.
func (p *Problem) hasFleet() bool {
	return len(p.Classes) == 1 && p.Classes[0].Count != 0 && p.Classes[0].Room > 0 && !p.spans()
}

// rate returns the requests a second that items serve together, of any function.
func (p *Problem) rate(items []Item) (sum float64) {
	for _, it := range items {
		sum += p.option(it).Rate
	}
	return sum
}

// withTurn returns an item of a cut with its turn, under tokens.
func (p *Problem) withTurn(it Item) Item {
	if p.Tokens {
		it.Turns = []timetable.Turn{{From: it.At.X, To: it.At.X + it.At.W}}
	}
	return it
}

// shrink returns the item with the smallest configuration that still serves all of
// remaining, if one is no larger than the item.
func (p *Problem) shrink(class int, it Item, remaining float64) Item {
	options := p.Funcs[it.Func].Options
	current := options[it.Option]
	if current.Rate <= remaining {
		return it
	}
	for i, o := range options {
		if o.On[class] && o.Rate >= remaining && o.W <= it.At.W && o.H <= it.At.H && o.Mem <= options[it.Option].Mem &&
			o.W*o.H < options[it.Option].W*options[it.Option].H {
			it.Option = i
		}
	}
	it.At.W, it.At.H = options[it.Option].W, options[it.Option].H
	return it
}

// remaining returns how much of a function's demand remains if served requests per second
// are served.
func (f *Func) remaining(served float64) float64 {
	if gap := f.Demand - served; gap > tolerance*f.Demand {
		return gap
	}
	return 0
}

// remainingAfter returns how much of remaining remains once an instance serves rate more
// requests a second.
func (f *Func) remainingAfter(remaining, rate float64) float64 {
	if remaining -= rate; remaining > tolerance*f.Demand {
		return remaining
	}
	return 0
}
