package joint

import (
	"cmp"
	"slices"
	"sort"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// lot is instances of one row that are still to be placed.
type lot struct {
	row, left int
	mem       int64
}

// shelf is the lots of one shape, the least memory first.
type shelf struct {
	w, h  int64
	price float64
	lots  []lot
}

// filler fills one GPU after the other with what is on the shelves. Of each
// shape only the instance of the most memory that there is room for is looked
// at. What goes next is by the sum of what it takes of each resource times what
// is left of it (dot product: Panigrahy, Talwar, Uyeda and Wieder 2011,
// Heuristics for vector bin packing), or by size alone; a GPU is filled in
// several ways, of which the fullest by the prices is kept.
type filler struct {
	f         *fleet
	price     float64 // of a GPU's memory, of the prices
	memPrice  float64 // the same while a GPU is filled, see weigh
	areaPrice float64 // what shelves' prices count for then
	shelves   []shelf
	total     int     // of instances left
	area, mem float64 // of these, in GPUs
	space     *maxrect.Space
}

// placed is an instance of a lot on the GPU that is being filled.
type placed struct {
	shelf, lot int
	at         maxrect.Rect
}

const (
	// fillWays is in how many ways a GPU is filled: what goes next is weighed in
	// two, and is what has the most memory or what lets it last.
	fillWays = 4
	// fillTries is how often each GPU is filled, with noise but for the first of
	// each way; less often where there are many shapes, or instances.
	fillTries     = 64
	manyInstances = 50_000
	// fillNoise is by what part what goes next may vary.
	fillNoise = 0.5
	// tight is from which part of its area on a GPU's memory is weighed more, and
	// tightPrice what it is at least where both are alike.
	tight, tightPrice = 0.8, 0.25
	// mostMemory leaves some of a GPU's price to its area.
	mostMemory = 0.99
)

func (f *fleet) newFiller(of [][]chosen, price []float64) *filler {
	fl := &filler{f: f, price: min(mostMemory, price[len(price)-1]), space: maxrect.New(One, One, maxrect.DefaultThreshold)}
	at := map[[2]int64]int{}
	for _, c := range of {
		for _, x := range c {
			r := f.rows[x.row]
			n, known := at[[2]int64{r.o.W, r.o.H}]
			if !known {
				n = len(fl.shelves)
				at[[2]int64{r.o.W, r.o.H}] = n
				fl.shelves = append(fl.shelves, shelf{w: r.o.W, h: r.o.H, price: price[f.shape[x.row]]})
			}
			fl.shelves[n].lots = append(fl.shelves[n].lots, lot{x.row, x.count, f.memory(r)})
			fl.total += x.count
			fl.area += float64(x.count) * price[f.shape[x.row]]
			fl.mem += float64(x.count) * f.mem[x.row]
		}
	}
	for _, b := range fl.shelves {
		slices.SortStableFunc(b.lots, func(a, b lot) int { return cmp.Compare(a.mem, b.mem) })
	}
	return fl
}

// fill packs the instances of a choice, at prices. Once time is over, if
// it counts, each GPU is filled only once in each way.
func (f *fleet) fill(of [][]chosen, price []float64) (gpus []GPU) {
	fl := f.newFiller(of, price)
	if fl.total == 0 {
		return nil
	}
	var best, now []placed
	tries := max(fillWays, min(fillTries, fillTries*maxShapes/len(fl.shelves), fillTries*manyInstances/fl.total))
	for fl.total > 0 {
		fl.weigh()
		most, tries := -1.0, tries
		if f.expired() {
			tries = fillWays
		}
		for n := range tries {
			var worth float64
			now, worth = fl.try(n, now[:0])
			for _, t := range now {
				fl.shelves[t.shelf].lots[t.lot].left++
			}
			if worth > most {
				most = worth
				best, now = now, best
			}
		}
		gpus = append(gpus, fl.take(best))
	}
	return gpus
}

// weigh weighs memory for the next GPU: by its price, but for more where what is
// left takes nearly as much of it as of area, so that it is not used up by what
// could do with less.
func (fl *filler) weigh() {
	fl.memPrice = fl.price
	if fl.f.s.memoryLimited() {
		area := max(minSize, fl.area/(1-fl.price))
		fl.memPrice = max(fl.price, memoryFloor, tightPrice*min(1, (fl.mem/area-tight)/(1-tight)))
	}
	fl.areaPrice = (1 - fl.memPrice) / (1 - fl.price)
}

// try fills a GPU in the nth way, and says what that is worth. It takes what it
// places off the shelves.
func (fl *filler) try(n int, out []placed) (_ []placed, worth float64) {
	fl.space.Clear()
	room := fl.f.s.p.Classes[0].Room
	mem, area, noise := room, 1-fl.memPrice, 0.0
	if n >= fillWays {
		noise = fillNoise * fl.f.rng.Unit()
	}
	for {
		best, most := placed{shelf: -1}, 0.0
		for k := range fl.shelves {
			b := &fl.shelves[k]
			if len(b.lots) == 0 || b.lots[0].mem > mem || !hasRoom(fl.space, b.w, b.h) {
				continue
			}
			i := -1
			if n%2 == 1 && len(out) > 0 && area > 0 { // such that memory lasts as long as the area
				i = b.last(int64(float64(mem) * min(1, b.price*fl.areaPrice/area)))
			}
			if i < 0 {
				i = b.last(mem)
			}
			if i < 0 {
				continue
			}
			need := fl.memPrice * fl.f.mem[b.lots[i].row]
			score := b.price*fl.areaPrice + need
			if n%fillWays < 2 {
				score = b.price*fl.areaPrice*area + need*float64(mem)/float64(room)
			}
			if noise > 0 {
				score *= 1 + noise*(2*fl.f.rng.Unit()-1)
			}
			if score > most || best.shelf < 0 {
				best, most = placed{shelf: k, lot: i}, score
			}
		}
		if best.shelf < 0 {
			return out, worth
		}
		b := &fl.shelves[best.shelf]
		l := &b.lots[best.lot]
		best.at, _, _ = fl.space.Find(b.w, b.h, maxrect.BestShortSide)
		fl.space.Place(best.at)
		l.left--
		mem, area = mem-l.mem, area-b.price*fl.areaPrice
		worth += b.price*fl.areaPrice + fl.memPrice*fl.f.mem[l.row]
		out = append(out, best)
	}
}

func hasRoom(s *maxrect.Space, w, h int64) bool {
	return slices.ContainsFunc(s.Free(), func(r maxrect.Rect) bool { return w <= r.W && h <= r.H })
}

// last is the lot of the most memory, up to so much, of which any is left; -1
// without.
func (b *shelf) last(mem int64) int {
	i := sort.Search(len(b.lots), func(i int) bool { return b.lots[i].mem > mem })
	for i--; i >= 0 && b.lots[i].left == 0; i-- {
		continue
	}
	return i
}

// take makes a GPU of what was placed, and takes it off the shelves.
func (fl *filler) take(all []placed) GPU {
	g := GPU{Node: AnyNode}
	for _, t := range all {
		l := &fl.shelves[t.shelf].lots[t.lot]
		l.left--
		fl.total--
		fl.area -= fl.shelves[t.shelf].price
		fl.mem -= fl.f.mem[l.row]
		r := fl.f.rows[l.row]
		g.Items = append(g.Items, fl.f.s.withTurn(Item{Func: r.fn, Option: r.opt, At: t.at}))
	}
	slices.SortFunc(all, func(a, b placed) int { return cmp.Compare(b.lot, a.lot) }) // so that the others keep their numbers
	for _, t := range all {
		if b := &fl.shelves[t.shelf]; t.lot < len(b.lots) && b.lots[t.lot].left == 0 {
			b.lots = slices.Delete(b.lots, t.lot, t.lot+1)
		}
	}
	return g
}
