package joint

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
)

// host is a GPU that is being filled.
type host struct {
	p      *Problem
	class  int
	node   int // AnyNode if pinned is 0
	items  []Item
	pinned int   // number of first items that must stay: parts of spanning instances
	used   int64 // bytes
	space  *maxrect.Space
	line   *timetable.Line // replaces space under tokens
}

// hostWork is the work of placing an instance, in steps of the cutter.
const hostWork = 50

// add hosts one more item, which must be free to use its place or turns.
func (h *host) add(it Item) {
	h.used += h.memory(it)
	if h.space != nil {
		h.space.Place(it.At)
	} else {
		h.line.Reserve(it.Turns, h.p.option(it).H)
	}
	h.items = append(h.items, it)
}

// memory returns the memory that one more item needs: its own and, if it is the first of its
// model, that of the shared weights.
func (h *host) memory(it Item) int64 { return h.p.option(it).Mem + h.keeper(it.Func) }

// keeper returns the memory of the shared weights of function f, or 0 if the GPU already has them.
func (h *host) keeper(f int) int64 {
	model := h.p.Funcs[f].Model
	if model == NoModel || slices.ContainsFunc(h.items, func(o Item) bool { return h.p.Funcs[o.Func].Model == model }) {
		return 0
	}
	return h.p.Keepers[model]
}

// hasMemory reports whether there is memory for one more item.
func (h *host) hasMemory(it Item) bool {
	room := h.p.Classes[h.class].Room
	return room == Unlimited || h.used+h.memory(it) <= room
}

// areaUnit is the divisor of areas, which makes the sum over many GPUs fit 64 bits.
const areaUnit = 1000

// area returns the area of an instance, in units of One × One / areaUnit.
func (o *Option) area() int64 { return o.W * (o.H / areaUnit) }

// freeArea returns an upper bound of the free area, in the same units.
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

// locate sets a place or turns for an item of an option. It reports whether there are any. It
// neither moves other items nor adds the item.
func (h *host) locate(it *Item, o *Option) (ok bool) {
	if h.space != nil {
		it.At, _, ok = h.space.Best(o.W, o.H)
		return ok
	}
	it.Turns = h.line.Find(o.W, o.H)
	return it.Turns != nil
}
