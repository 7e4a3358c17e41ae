package joint

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
)

// packer fills single GPUs.
type packer struct {
	p *Problem
	*budget
	classes []class

	cutBuffer []Item // scratch space of cutInto
	picks     []pick // scratch space of fillSingles
}

// class holds the packer's data structures for the GPUs of one class.
type class struct {
	Class
	cutter    *cutter
	relaxed   *cutRelaxation
	strips    *stripKnapsack // nil if memory is unlimited or there are too many sums of SM shares
	bytePrice float64        // the last price of a byte
}

func newPacker(p *Problem, b *budget) *packer {
	pk := &packer{p: p, budget: b}
	for k, c := range p.Classes {
		cut := newCutter(p, k, &b.work)
		relaxed := newCutRelaxation(p, cut)
		pk.classes = append(pk.classes, class{c, cut, relaxed, newStripKnapsack(p, k, &relaxed.shares), 0})
	}
	return pk
}

// newHost opens a GPU that hosts the given items.
func (pk *packer) newHost(class int, items []Item) *host {
	h := &host{p: pk.p, class: class, node: AnyNode}
	pk.work += int64(hostWork * (1 + len(items)))
	if pk.p.Tokens {
		h.line = timetable.New(One, One)
	} else {
		h.space = maxrect.New(One, One, maxrect.DefaultThreshold)
	}
	for _, it := range items {
		h.add(it)
	}
	return h
}

// reopen returns a new GPU of the same class and node with the given items, which must begin
// with the pinned items of h.
func (pk *packer) reopen(h *host, items []Item) *host {
	reopened := pk.newHost(h.class, items)
	reopened.node, reopened.pinned = h.node, h.pinned
	return reopened
}

// makeRoom finds room for an item on a host that has other items, and reports whether there
// is any. Room is a rectangle or, with Problem.Tokens, turns in the timetable. Turns need not be
// contiguous; if no free turns fit, makeRoom moves the turns of all items. It ignores memory.
func (pk *packer) makeRoom(h *host, it *Item) bool {
	o := pk.p.option(*it)
	return h.locate(it, o) || pk.p.Tokens && h.line.Free() >= o.W*o.H && pk.retime(h, it)
}

// retime assigns new turns to all items of a host and to one more: the largest SM shares first,
// each at the times with the most free SMs. It reports whether all fit; otherwise, it leaves the
// host unchanged.
func (pk *packer) retime(h *host, added *Item) bool {
	items := append(slices.Clone(h.items), *added)
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	option := func(i int) *Option { return pk.p.option(items[i]) }
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(option(b).H, option(a).H), cmp.Compare(option(b).W, option(a).W))
	})
	pk.work += int64(20 * len(items) * len(items))
	line := timetable.New(One, One)
	for _, i := range order {
		o := option(i)
		if items[i].Turns = line.Find(o.W, o.H); items[i].Turns == nil {
			return false
		}
		line.Reserve(items[i].Turns, o.H)
	}
	last := len(items) - 1
	added.Turns = items[last].Turns
	h.items = items[:last]
	line.Release(added.Turns, option(last).H)
	h.line = line
	return true
}

// serve hosts an item and subtracts its rate from remaining.
func (pk *packer) serve(h *host, it Item, remaining []float64) {
	h.add(it)
	pk.work += hostWork
	remaining[it.Func] = pk.p.Funcs[it.Func].remainingAfter(remaining[it.Func], pk.p.option(it).Rate)
}

// prices values rates and memory while a GPU is filled.
type prices struct {
	rate []float64 // by function: worth of one request per second
	mem  float64   // of a byte, for cuts
	// memWeight, from 0 to 1, is the weight of memory in an instance's size, compared with
	// area, when instances are added one by one.
	memWeight float64
}

// prices returns prices with the given rates and the last price of a byte.
func (pk *packer) prices(class int, rate []float64) prices {
	return prices{rate: rate, mem: pk.classes[class].bytePrice}
}

// fill adds the most valuable items until no wanted item fits. A function's requests are worth its
// price up to its remaining demand. fill subtracts the added rates from remaining.
func (pk *packer) fill(h *host, at prices, remaining []float64) {
	c := pk.classes[h.class].cutter
	for {
		c.solve(at.rate, remaining, at.mem)
		in, ok := pk.mostValuable(h)
		if !ok || !pk.cutInto(h, in, remaining) {
			break
		}
	}
	pk.topUp(h, at, remaining)
}

// mostValuable returns the free rectangle with the most valuable cut.
func (pk *packer) mostValuable(h *host) (best maxrect.Rect, ok bool) {
	free := h.space.Free
	if h.space == nil {
		free = h.line.Rects
	}
	highest := 0.0
	for _, r := range free() {
		if v := pk.classes[h.class].cutter.valueOf(r.W, r.H); v > highest {
			highest, best, ok = v, r, true
		}
	}
	return best, ok
}

// cutInto cuts the rectangle and hosts the wanted items of the cut. It uses a smaller configuration
// where one suffices. It reports whether it hosted any.
func (pk *packer) cutInto(h *host, in maxrect.Rect, remaining []float64) bool {
	pk.cutBuffer = pk.classes[h.class].cutter.cut(pk.cutBuffer[:0], pk.p, in)
	hosted := false
	for _, it := range pk.cutBuffer {
		if remaining[it.Func] <= 0 {
			continue
		}
		it = pk.p.withTurn(pk.p.shrink(h.class, it, remaining[it.Func]))
		if !h.hasMemory(it) {
			continue
		}
		pk.serve(h, it, remaining)
		hosted = true
	}
	return hosted
}

// topUp adds instances that cuts cannot find: with turns that are not contiguous, or excluded by
// a price of memory.
func (pk *packer) topUp(h *host, at prices, remaining []float64) {
	limited := pk.p.Classes[h.class].Room != Unlimited
	if pk.p.Tokens || limited {
		pk.fillSingles(h, at, remaining)
	}
	if limited {
		pk.enlarge(h, at.rate, remaining)
	}
}

// pick is a function's best option that fits: the option with the most worth per size
// (density). A density of 0 means that no option fits.
type pick struct {
	fn, opt int
	density float64
}

// greedy fills one GPU, instance by instance.
type greedy struct {
	pack      *packer
	h         *host
	at        prices
	remaining []float64
	failed    [][2]int64 // sides of options for which no place was found
}

// fillSingles repeatedly adds the instance with the most worth for its size, until none fits. Ties go to the
// first function. A function's pick remains its best while it fits, because free space only shrinks.
func (pk *packer) fillSingles(h *host, at prices, remaining []float64) {
	g := greedy{pack: pk, h: h, at: at, remaining: remaining}
	picks := pk.picks[:0]
	for f := range remaining {
		if p := g.pick(f); p.density > 0 {
			picks = append(picks, p)
		}
	}
	pk.picks = picks
	for len(picks) > 0 {
		densest := 0
		for i := range picks {
			if picks[i].density > picks[densest].density {
				densest = i
			}
		}
		f := picks[densest].fn
		it := Item{Func: f, Option: picks[densest].opt}
		pk.work += int64(1 + len(h.items) + len(remaining)/8)
		if o, in := pk.p.option(it), g.space(f); in.fits(o) {
			if pk.makeRoom(h, &it) {
				pk.serve(h, it, remaining)
			} else {
				g.failed = append(g.failed, [2]int64{o.W, o.H})
			}
		}
		if picks[densest] = g.pick(f); picks[densest].density == 0 {
			picks = slices.Delete(picks, densest, densest+1)
		}
	}
}

// pick returns the best option of one function.
func (g *greedy) pick(f int) (best pick) {
	if g.at.rate[f] <= 0 || g.remaining[f] <= 0 {
		return best
	}
	in := g.space(f)
	choices := g.pack.classes[g.h.class].cutter.choices[f]
	g.pack.work += int64(2 * len(choices))
	for _, ch := range choices {
		o := &g.pack.p.Funcs[f].Options[ch.opt]
		size := float64(o.W) / One * (float64(o.H) / One)
		if in.limited {
			size += g.at.memWeight * (float64(o.Mem+in.keeper)/float64(in.room) - size)
		}
		if density := g.at.rate[f] * min(o.Rate, g.remaining[f]) / max(size, minSize); density > best.density && in.fits(o) {
			best = pick{f, ch.opt, density}
		}
	}
	return best
}

// minSize avoids a division by 0: if only memory counts, an instance without memory of its own
// would have a size of 0.
const minSize = 1e-9

// space describes the free space of a GPU for one function.
type space struct {
	limited      bool // memory counts
	room, spare  int64
	keeper, area int64
	free         []maxrect.Rect // nil under tokens
	failed       [][2]int64
}

func (g *greedy) space(f int) space {
	h, room := g.h, g.pack.p.Classes[g.h.class].Room
	in := space{room: room, keeper: h.keeper(f), area: h.freeArea(), failed: g.failed}
	in.limited = room != Unlimited
	in.spare = room - h.used - in.keeper
	if h.space != nil {
		in.free = h.space.Free()
	}
	return in
}

// fits reports whether the option has enough memory and may have a place.
func (in *space) fits(o *Option) bool {
	if in.limited && o.Mem > in.spare || o.area() > in.area {
		return false
	}
	if in.free != nil {
		return slices.ContainsFunc(in.free, func(r maxrect.Rect) bool { return o.W <= r.W && o.H <= r.H })
	}
	return !atLeastOneOf(in.failed, o)
}

// atLeastOneOf reports whether an option is at least as wide and as high as some pair of sides.
func atLeastOneOf(sides [][2]int64, o *Option) bool {
	return slices.ContainsFunc(sides, func(side [2]int64) bool { return o.W >= side[0] && o.H >= side[1] })
}

// enlargeTries limits the configurations tried for each instance.
const enlargeTries = 4

// enlarge gives instances a larger configuration if their function has remaining demand and the
// GPU has room. This helps if memory is scarcer than SMs and time, because another instance would
// need its own memory.
func (pk *packer) enlarge(h *host, price, remaining []float64) {
	for i := h.pinned; i < len(h.items); i++ {
		it := h.items[i]
		if remaining[it.Func] <= 0 || price[it.Func] <= 0 {
			continue
		}
		current, choices := pk.p.option(it), pk.classes[h.class].cutter.choices[it.Func]
		var failed [][2]int64
		for range enlargeTries {
			best, serves := -1, current.Rate
			room := h.freeArea() + current.area()
			for _, ch := range choices {
				o := &pk.p.Funcs[it.Func].Options[ch.opt]
				rate := min(o.Rate, current.Rate+remaining[it.Func])
				if rate > serves && o.area() <= room && h.used-current.Mem+o.Mem <= pk.p.Classes[h.class].Room && !atLeastOneOf(failed, o) {
					best, serves = ch.opt, rate
				}
			}
			pk.work += int64(len(choices))
			if best < 0 {
				break
			}
			o := &pk.p.Funcs[it.Func].Options[best]
			if pk.exchange(h, i, best) {
				remaining[it.Func] = pk.p.Funcs[it.Func].remainingAfter(remaining[it.Func], o.Rate-current.Rate)
				break
			}
			failed = append(failed, [2]int64{o.W, o.H})
		}
	}
}

// exchange gives an item of a host another option, and gives all items that are not pinned a new
// place, the largest first. It reports whether all fit; otherwise, it leaves the host unchanged.
func (pk *packer) exchange(h *host, at, option int) bool {
	items := slices.Clone(h.items)
	items[at].Option = option
	reopened := pk.reopen(h, items[:h.pinned])
	moving := items[h.pinned:]
	slices.SortStableFunc(moving, func(a, b Item) int { return cmp.Compare(pk.p.option(b).area(), pk.p.option(a).area()) })
	for i := range moving {
		if !pk.makeRoom(reopened, &moving[i]) {
			return false
		}
		reopened.add(moving[i])
		pk.work += hostWork
	}
	*h = *reopened
	return true
}
