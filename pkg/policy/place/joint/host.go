package joint

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
)

// host is a GPU that is being filled.
type host struct {
	class  int
	node   int // if pinned
	items  []Item
	pinned int   // items, the first, that stay: parts of spanning instances
	used   int64 // bytes
	space  *maxrect.Space
	line   *timetable.Line // instead of space, under tokens
}

// hostWork is what placing an instance costs, in steps of the cutter.
const hostWork = 50

// host opens a GPU that hosts these already.
func (s *solver) host(class int, items []Item) *host {
	h := &host{class: class, node: AnyNode}
	s.work += int64(hostWork * (1 + len(items)))
	if s.p.Tokens {
		h.line = timetable.New(One, One)
	} else {
		h.space = maxrect.New(One, One, maxrect.DefaultThreshold)
	}
	for _, it := range items {
		h.add(s.p, it)
	}
	return h
}

// add hosts one more item, which must fit where it says.
func (h *host) add(p *Problem, it Item) {
	h.used += h.cost(p, it)
	if h.space != nil {
		h.space.Place(it.At)
	} else {
		h.line.Take(it.Turns, p.Funcs[it.Func].Options[it.Option].H)
	}
	h.items = append(h.items, it)
}

// cost is the memory that one more item takes: its own and, when it is the
// first of its function, the keeper of shared weights.
func (h *host) cost(p *Problem, it Item) int64 {
	return p.Funcs[it.Func].Options[it.Option].Mem + h.keeper(p, it.Func)
}

// keeper is the memory that the weights of a function's first instance take.
func (h *host) keeper(p *Problem, f int) int64 {
	model := p.Funcs[f].Model
	if model == NoModel || slices.ContainsFunc(h.items, func(o Item) bool { return p.Funcs[o.Func].Model == model }) {
		return 0
	}
	return p.Keepers[model]
}

// remembers says whether there is memory for one more item.
func (h *host) remembers(p *Problem, it Item) bool {
	room := p.Classes[h.class].Room
	return room == Unlimited || h.used+h.cost(p, it) <= room
}

// free are the rectangles where something may go.
func (h *host) free() []maxrect.Rect {
	if h.space != nil {
		return h.space.Free()
	}
	return h.line.Rects()
}

// fill adds what is most valuable, until nothing that is wanted fits. A
// request a second of each function is worth price, as long as any are left;
// left is lowered by what is added.
func (s *solver) fill(h *host, price, left []float64) {
	c := s.cutters[h.class]
	for {
		c.solve(price, left, s.mu[h.class])
		in, ok := s.richest(h)
		if !ok || !s.put(h, in, left) {
			break
		}
	}
	s.fillUp(h, price, left)
}

// fillUp adds what cuts do not find: turns that are not in one piece, and what
// a price of memory kept out.
func (s *solver) fillUp(h *host, price, left []float64) {
	if s.p.Tokens || s.p.Classes[h.class].Room != Unlimited {
		s.fillSingles(h, price, left)
	}
	if s.p.Classes[h.class].Room != Unlimited {
		s.enlarge(h, price, left)
	}
}

// richest is the free rectangle that can be cut into the most.
func (s *solver) richest(h *host) (best maxrect.Rect, ok bool) {
	most := 0.0
	for _, r := range h.free() {
		if v := s.cutters[h.class].within(r.W, r.H); v > most {
			most, best, ok = v, r, true
		}
	}
	return best, ok
}

// put cuts the rectangle and hosts what of it is still wanted, smaller where a
// smaller configuration suffices. It says whether anything was.
func (s *solver) put(h *host, in maxrect.Rect, left []float64) bool {
	s.cutBuffer = s.cutters[h.class].cut(s.cutBuffer[:0], s.p, in)
	some := false
	for _, it := range s.cutBuffer {
		if left[it.Func] <= 0 {
			continue
		}
		it = s.timed(s.shrink(h.class, it, left[it.Func]))
		if !h.remembers(s.p, it) {
			continue
		}
		s.serve(h, it, left)
		some = true
	}
	return some
}

// serve hosts an item and counts what it serves.
func (s *solver) serve(h *host, it Item, left []float64) {
	h.add(s.p, it)
	s.work += hostWork
	left[it.Func] = s.after(it.Func, left[it.Func], s.p.Funcs[it.Func].Options[it.Option].Rate)
}

// after is what is left of a function once an instance serves so much more.
func (s *solver) after(f int, left, rate float64) float64 {
	if left -= rate; left > none*s.p.Funcs[f].Demand {
		return left
	}
	return 0
}

// shrink replaces an item by the smallest configuration that still serves all
// that is left, where there is one no larger.
func (s *solver) shrink(class int, it Item, left float64) Item {
	all := s.p.Funcs[it.Func].Options
	now := all[it.Option]
	if now.Rate <= left {
		return it
	}
	for i, o := range all {
		if o.On[class] && o.Rate >= left && o.W <= it.At.W && o.H <= it.At.H && o.Mem <= all[it.Option].Mem &&
			o.W*o.H < all[it.Option].W*all[it.Option].H {
			it.Option = i
		}
	}
	it.At.W, it.At.H = all[it.Option].W, all[it.Option].H
	return it
}

// spot finds where or when an item goes besides what a host has. Its time need
// not be in one piece; where there is none for it, all turns on the GPU are
// given anew. Memory is not looked at.
func (s *solver) spot(h *host, it *Item) bool {
	o := &s.p.Funcs[it.Func].Options[it.Option]
	return h.has(it, o) || s.p.Tokens && h.line.Free() >= o.W*o.H && s.level(h, it)
}

// has finds where or when an item of an option goes, and moves nothing.
func (h *host) has(it *Item, o *Option) (ok bool) {
	if h.space != nil {
		it.At, _, ok = h.space.Best(o.W, o.H)
		return ok
	}
	it.Turns = h.line.Find(o.W, o.H)
	return it.Turns != nil
}

// level gives all items of a host, and one more, turns anew: the largest SM
// shares first, each where most is free. It says whether all got enough; if
// not, nothing changes.
func (s *solver) level(h *host, more *Item) bool {
	items := append(slices.Clone(h.items), *more)
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	option := func(i int) Option { return s.p.Funcs[items[i].Func].Options[items[i].Option] }
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(option(b).H, option(a).H), cmp.Compare(option(b).W, option(a).W))
	})
	s.work += int64(20 * len(items) * len(items))
	line := timetable.New(One, One)
	for _, i := range order {
		o := option(i)
		if items[i].Turns = line.Find(o.W, o.H); items[i].Turns == nil {
			return false
		}
		line.Take(items[i].Turns, o.H)
	}
	last := len(items) - 1
	more.Turns = items[last].Turns
	h.items = items[:last]
	line.Give(more.Turns, option(last).H)
	h.line = line
	return true
}

// scale keeps areas of many GPUs in 64 bits.
const scale = 1000

// area is at least what is free, in One × One / scale.
func (h *host) area() int64 {
	if h.line != nil {
		return h.line.Free()/scale + scale
	}
	area := int64(One * (One / scale))
	for _, r := range h.space.Used() {
		area -= r.W * (r.H / scale)
	}
	return area
}
