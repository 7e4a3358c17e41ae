package joint

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
)

// host is a GPU that is being filled.
type host struct {
	p      *Problem
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

// newHost opens a GPU that hosts these already.
func (s *solver) newHost(class int, items []Item) *host {
	h := &host{p: s.p, class: class, node: AnyNode}
	s.work += int64(hostWork * (1 + len(items)))
	if s.p.Tokens {
		h.line = timetable.New(One, One)
	} else {
		h.space = maxrect.New(One, One, maxrect.DefaultThreshold)
	}
	for _, it := range items {
		h.add(it)
	}
	return h
}

// reopened is a GPU of the same class and node that hosts these, the first of
// which are pinned.
func (s *solver) reopened(h *host, items []Item) *host {
	again := s.newHost(h.class, items)
	again.node, again.pinned = h.node, h.pinned
	return again
}

// add hosts one more item, which must fit where it says.
func (h *host) add(it Item) {
	h.used += h.memory(it)
	if h.space != nil {
		h.space.Place(it.At)
	} else {
		h.line.Take(it.Turns, h.p.option(it).H)
	}
	h.items = append(h.items, it)
}

// memory is what one more item takes: its own and, when it is the first of its
// model, the keeper of shared weights.
func (h *host) memory(it Item) int64 { return h.p.option(it).Mem + h.keeper(it.Func) }

// keeper is the memory that the weights of a function's first instance take.
func (h *host) keeper(f int) int64 {
	model := h.p.Funcs[f].Model
	if model == NoModel || slices.ContainsFunc(h.items, func(o Item) bool { return h.p.Funcs[o.Func].Model == model }) {
		return 0
	}
	return h.p.Keepers[model]
}

// hasMemory says whether there is memory for one more item.
func (h *host) hasMemory(it Item) bool {
	room := h.p.Classes[h.class].Room
	return room == Unlimited || h.used+h.memory(it) <= room
}

// memoryOf is what items need on one GPU.
func (p *Problem) memoryOf(items []Item) int64 {
	h := host{p: p}
	for _, it := range items {
		h.used += h.memory(it)
		h.items = append(h.items, it)
	}
	return h.used
}

// areaUnit keeps areas of many GPUs in 64 bits.
const areaUnit = 1000

// area is what an instance takes of a GPU, in One × One / areaUnit.
func (o *Option) area() int64 { return o.W * (o.H / areaUnit) }

// freeArea is at least what is free.
func (h *host) freeArea() int64 {
	if h.line != nil {
		return h.line.Free()/areaUnit + areaUnit
	}
	area := int64(One * (One / areaUnit))
	for _, r := range h.space.Used() {
		area -= r.W * (r.H / areaUnit)
	}
	return area
}

// locate finds where or when an item of an option goes, and moves nothing.
func (h *host) locate(it *Item, o *Option) (ok bool) {
	if h.space != nil {
		it.At, _, ok = h.space.Best(o.W, o.H)
		return ok
	}
	it.Turns = h.line.Find(o.W, o.H)
	return it.Turns != nil
}

// makeRoom finds where or when an item goes besides what a host has. Its time
// need not be in one piece; where there is none for it, all turns on the GPU
// are given anew. Memory is not looked at.
func (s *solver) makeRoom(h *host, it *Item) bool {
	o := s.p.option(*it)
	return h.locate(it, o) || s.p.Tokens && h.line.Free() >= o.W*o.H && s.retime(h, it)
}

// retime gives all items of a host, and one more, turns anew: the largest SM
// shares first, each where most is free. It says whether all got enough; if
// not, nothing changes.
func (s *solver) retime(h *host, more *Item) bool {
	items := append(slices.Clone(h.items), *more)
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	option := func(i int) *Option { return s.p.option(items[i]) }
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

// serve hosts an item and counts what it serves.
func (s *solver) serve(h *host, it Item, left []float64) {
	h.add(it)
	s.work += hostWork
	left[it.Func] = s.leftAfter(it.Func, left[it.Func], s.p.option(it).Rate)
}

// leftAfter is what is left of a function once an instance serves so much more.
func (s *solver) leftAfter(f int, left, rate float64) float64 {
	if left -= rate; left > tolerance*s.p.Funcs[f].Demand {
		return left
	}
	return 0
}

// prices are what filling a GPU goes by.
type prices struct {
	rate []float64 // by function: the worth of a request a second
	mem  float64   // of a byte, when GPUs are cut
	// memWeight, from 0 to 1, is how much memory counts in an instance's size,
	// against its area, when instances are added one by one.
	memWeight float64
}

// prices are those of requests, and of a byte what it was last priced at.
func (s *solver) prices(class int, rate []float64) prices {
	return prices{rate: rate, mem: s.classes[class].bytePrice}
}

// fill adds what is most valuable, until nothing that is wanted fits. A request
// a second of each function is worth its price as long as any are left; left is
// lowered by what is added.
func (s *solver) fill(h *host, at prices, left []float64) {
	c := s.classes[h.class].cutter
	for {
		c.solve(at.rate, left, at.mem)
		in, ok := s.mostValuable(h)
		if !ok || !s.cutInto(h, in, left) {
			break
		}
	}
	s.topUp(h, at, left)
}

// mostValuable is the free rectangle that can be cut into the most.
func (s *solver) mostValuable(h *host) (best maxrect.Rect, ok bool) {
	free := h.space.Free
	if h.space == nil {
		free = h.line.Rects
	}
	most := 0.0
	for _, r := range free() {
		if v := s.classes[h.class].cutter.valueOf(r.W, r.H); v > most {
			most, best, ok = v, r, true
		}
	}
	return best, ok
}

// cutInto cuts the rectangle and hosts what of it is still wanted, smaller
// where a smaller configuration suffices. It says whether anything was.
func (s *solver) cutInto(h *host, in maxrect.Rect, left []float64) bool {
	s.cutBuffer = s.classes[h.class].cutter.cut(s.cutBuffer[:0], s.p, in)
	some := false
	for _, it := range s.cutBuffer {
		if left[it.Func] <= 0 {
			continue
		}
		it = s.withTurn(s.shrink(h.class, it, left[it.Func]))
		if !h.hasMemory(it) {
			continue
		}
		s.serve(h, it, left)
		some = true
	}
	return some
}

// withTurn gives an item of a cut its turn, under tokens.
func (s *solver) withTurn(it Item) Item {
	if s.p.Tokens {
		it.Turns = []timetable.Turn{{From: it.At.X, To: it.At.X + it.At.W}}
	}
	return it
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

// topUp adds what cuts do not find: turns that are not in one piece, and what a
// price of memory kept out.
func (s *solver) topUp(h *host, at prices, left []float64) {
	limited := s.p.Classes[h.class].Room != Unlimited
	if s.p.Tokens || limited {
		s.fillSingles(h, at, left)
	}
	if limited {
		s.enlarge(h, at.rate, left)
	}
}

// pick is the option of a function that is worth most for its size, of those
// that fit; density 0 is none.
type pick struct {
	fn, opt int
	density float64
}

// picks is a heap, the densest on top, of equals that of the first function.
type picks []pick

func (p picks) Len() int      { return len(p) }
func (p picks) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p picks) Less(i, j int) bool {
	return p[i].density > p[j].density || p[i].density == p[j].density && p[i].fn < p[j].fn
}
func (p *picks) Push(x any) { *p = append(*p, x.(pick)) }
func (p *picks) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	*p = (*p)[:last]
	return x
}

// greedy fills up one GPU.
type greedy struct {
	s      *solver
	h      *host
	at     prices
	left   []float64
	failed [][2]int64 // sides for which no place was found
}

// fillSingles adds what is worth most for its size, one by one, as long as
// there is a place for it. What is picked for a function stays its best for as
// long as it fits, since what is free only shrinks.
func (s *solver) fillSingles(h *host, at prices, left []float64) {
	g := greedy{s: s, h: h, at: at, left: left}
	picks := s.picks[:0]
	for f := range left {
		if p := g.pick(f); p.density > 0 {
			picks = append(picks, p)
		}
	}
	s.picks = picks
	heap.Init(&picks)
	for len(picks) > 0 {
		f := picks[0].fn
		it := Item{Func: f, Option: picks[0].opt}
		s.work += int64(1 + len(h.items) + len(left)/8)
		if o, in := s.p.option(it), g.space(f); in.fits(o) {
			if s.makeRoom(h, &it) {
				s.serve(h, it, left)
			} else {
				g.failed = append(g.failed, [2]int64{o.W, o.H})
			}
		}
		if picks[0] = g.pick(f); picks[0].density > 0 {
			heap.Fix(&picks, 0)
		} else {
			heap.Pop(&picks)
		}
	}
}

// pick chooses for one function.
func (g *greedy) pick(f int) (best pick) {
	if g.at.rate[f] <= 0 || g.left[f] <= 0 {
		return best
	}
	s, in := g.s, g.space(f)
	all := s.classes[g.h.class].cutter.choices[f]
	s.work += int64(2 * len(all))
	for _, ch := range all {
		o := &s.p.Funcs[f].Options[ch.opt]
		size := float64(o.W) / One * (float64(o.H) / One)
		if in.limited {
			size += g.at.memWeight * (float64(o.Mem+in.keeper)/float64(in.room) - size)
		}
		if density := g.at.rate[f] * min(o.Rate, g.left[f]) / max(size, minSize); density > best.density && in.fits(o) {
			best = pick{f, ch.opt, density}
		}
	}
	return best
}

// minSize keeps the division by a size finite: where only memory counts, an
// instance that takes none of its own has a size of 0.
const minSize = 1e-9

// space is what a GPU has for one function.
type space struct {
	limited      bool // memory counts
	room, spare  int64
	keeper, area int64
	free         []maxrect.Rect // under rectangles
	failed       [][2]int64
}

func (g *greedy) space(f int) space {
	h, room := g.h, g.s.p.Classes[g.h.class].Room
	in := space{room: room, keeper: h.keeper(f), area: h.freeArea(), failed: g.failed}
	in.limited = room != Unlimited
	in.spare = room - h.used - in.keeper
	if h.space != nil {
		in.free = h.space.Free()
	}
	return in
}

// fits says whether there is memory for the option, and may be a place.
func (in *space) fits(o *Option) bool {
	if in.limited && o.Mem > in.spare || o.area() > in.area {
		return false
	}
	if in.free != nil {
		return slices.ContainsFunc(in.free, func(r maxrect.Rect) bool { return o.W <= r.W && o.H <= r.H })
	}
	return !atLeastOneOf(in.failed, o)
}

// atLeastOneOf says whether an option is as wide and as high as one of these
// sides.
func atLeastOneOf(sides [][2]int64, o *Option) bool {
	return slices.ContainsFunc(sides, func(side [2]int64) bool { return o.W >= side[0] && o.H >= side[1] })
}

// enlargeTries is how many sizes are tried for one instance.
const enlargeTries = 4

// enlarge gives instances of functions that want more a larger configuration,
// where the GPU has room for it: when memory is what is short, SMs and time are
// left over, and one instance more would take memory again.
func (s *solver) enlarge(h *host, price, left []float64) {
	for i := h.pinned; i < len(h.items); i++ {
		it := h.items[i]
		if left[it.Func] <= 0 || price[it.Func] <= 0 {
			continue
		}
		now, choices := s.p.option(it), s.classes[h.class].cutter.choices[it.Func]
		var failed [][2]int64
		for range enlargeTries {
			best, serves := -1, now.Rate
			room := h.freeArea() + now.area()
			for _, ch := range choices {
				o := &s.p.Funcs[it.Func].Options[ch.opt]
				rate := min(o.Rate, now.Rate+left[it.Func])
				if rate > serves && o.area() <= room && h.used-now.Mem+o.Mem <= s.p.Classes[h.class].Room && !atLeastOneOf(failed, o) {
					best, serves = ch.opt, rate
				}
			}
			s.work += int64(len(choices))
			if best < 0 {
				break
			}
			o := &s.p.Funcs[it.Func].Options[best]
			if s.exchange(h, i, best) {
				left[it.Func] = s.leftAfter(it.Func, left[it.Func], o.Rate-now.Rate)
				break
			}
			failed = append(failed, [2]int64{o.W, o.H})
		}
	}
}

// exchange gives an item of a host another option, and all that may move a new
// place, largest first. It says whether all had room; if not, nothing changes.
func (s *solver) exchange(h *host, at, option int) bool {
	items := slices.Clone(h.items)
	items[at].Option = option
	again := s.reopened(h, items[:h.pinned])
	moving := items[h.pinned:]
	slices.SortStableFunc(moving, func(a, b Item) int { return cmp.Compare(s.p.option(b).area(), s.p.option(a).area()) })
	for i := range moving {
		if !s.makeRoom(again, &moving[i]) {
			return false
		}
		again.add(moving[i])
		s.work += hostWork
	}
	*h = *again
	return true
}
