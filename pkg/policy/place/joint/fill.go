package joint

import (
	"cmp"
	"slices"
	"sort"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// lot is a number of instances of one row that are still to be placed.
type lot struct {
	row, remaining int
	mem            int64
}

// shelf holds the lots of one shape, in ascending order of memory.
type shelf struct {
	w, h  int64
	price float64
	lots  []lot
}

// filler fills one GPU after the other with instances from the shelves. On each shelf it
// considers only the instance with the most memory that fits. It places the instance with the
// highest score next: its size, or the sum over the resources of the instance's need times the
// free amount (dot product: Panigrahy, Talwar, Uyeda and Wieder 2011, Heuristics for vector bin
// packing). It fills each GPU in several ways and keeps the fullest result by the prices.
type filler struct {
	f         *fleet
	price     float64 // of a GPU's whole memory, by the packing's prices
	memPrice  float64 // of a GPU's whole memory while one GPU is filled, see weigh
	areaPrice float64 // factor of the shelves' prices while one GPU is filled
	shelves   []shelf
	total     int     // remaining instances
	area, mem float64 // of the remaining instances, in GPUs
	space     *maxrect.Space
}

// placed is an instance of a lot on the GPU that is being filled.
type placed struct {
	shelf, lot int
	at         maxrect.Rect
}

const (
	// fillWays is the number of ways in which a GPU is filled: with two kinds of scores, and
	// with the instance that has the most memory or with one that makes memory last as long as area.
	fillWays = 4
	// fillTries is how often each GPU is filled, with noise after the first try of each way.
	// With many shapes, or more than manyInstances instances, there are fewer tries.
	fillTries     = 64
	manyInstances = 50_000
	// fillNoise is the largest relative change of a score by noise.
	fillNoise = 0.5
	// tight is the ratio of remaining memory to remaining area from which a GPU's memory weighs
	// more. tightPrice is its least weight at a ratio of 1.
	tight, tightPrice = 0.8, 0.25
	// maxMemoryPrice limits the price of a GPU's memory, so that its area keeps some of the price.
	maxMemoryPrice = 0.99
)

func (f *fleet) newFiller(of [][]chosen, price []float64) *filler {
	fl := &filler{f: f, price: min(maxMemoryPrice, price[len(price)-1]), space: maxrect.New(One, One, maxrect.DefaultThreshold)}
	at := map[[2]int64]int{}
	for _, x := range slices.Concat(of...) {
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
	for _, b := range fl.shelves {
		slices.SortStableFunc(b.lots, func(a, b lot) int { return cmp.Compare(a.mem, b.mem) })
	}
	return fl
}

// fill packs the chosen instances, at the given prices. Once the time has expired for a hurried
// fleet, it fills each GPU only once in each way.
func (f *fleet) fill(of [][]chosen, price []float64) (gpus []GPU) {
	fl := f.newFiller(of, price)
	if fl.total == 0 {
		return nil
	}
	var best, now []placed
	tries := max(fillWays, min(fillTries, fillTries*maxShapes/len(fl.shelves), fillTries*manyInstances/fl.total))
	for fl.total > 0 {
		fl.weigh()
		highest, tries := -1.0, tries
		if f.expired() {
			tries = fillWays
		}
		for n := range tries {
			var worth float64
			now, worth = fl.tryFill(n, now[:0])
			for _, t := range now {
				fl.shelves[t.shelf].lots[t.lot].remaining++
			}
			if worth > highest {
				highest = worth
				best, now = now, best
			}
		}
		gpus = append(gpus, fl.packGPU(best))
	}
	return gpus
}

// weigh sets the weight of memory for the next GPU. This is its price, but more if the remaining
// instances need nearly as much memory as area, so that small instances do not use up the memory.
func (fl *filler) weigh() {
	fl.memPrice = fl.price
	if fl.f.p.memoryLimited() {
		area := max(minSize, fl.area/(1-fl.price))
		fl.memPrice = max(fl.price, memoryFloor, tightPrice*min(1, (fl.mem/area-tight)/(1-tight)))
	}
	fl.areaPrice = (1 - fl.memPrice) / (1 - fl.price)
}

// tryFill fills a GPU in way n and returns the placed instances and their worth. It subtracts them
// from the lots; the caller adds them again.
func (fl *filler) tryFill(n int, out []placed) (_ []placed, worth float64) {
	fl.space.Clear()
	room := fl.f.p.Classes[0].Room
	mem, area, noise := room, 1-fl.memPrice, 0.0
	if n >= fillWays {
		noise = fillNoise * fl.f.rng.Unit()
	}
	for {
		best, highest := placed{shelf: -1}, 0.0
		for k := range fl.shelves {
			b := &fl.shelves[k]
			if len(b.lots) == 0 || b.lots[0].mem > mem || !hasRoom(fl.space, b.w, b.h) {
				continue
			}
			i := -1
			if n%2 == 1 && len(out) > 0 && area > 0 { // make memory last as long as the area
				i = b.last(int64(float64(mem) * min(1, b.price*fl.areaPrice/area)))
			}
			if i < 0 {
				i = b.last(mem)
			}
			if i < 0 {
				continue
			}
			memPart := fl.memPrice * fl.f.mem[b.lots[i].row]
			score := b.price*fl.areaPrice + memPart
			if n%fillWays < 2 {
				score = b.price*fl.areaPrice*area + memPart*float64(mem)/float64(room)
			}
			if noise > 0 {
				score *= 1 + noise*(2*fl.f.rng.Unit()-1)
			}
			if score > highest || best.shelf < 0 {
				best, highest = placed{shelf: k, lot: i}, score
			}
		}
		if best.shelf < 0 {
			return out, worth
		}
		b := &fl.shelves[best.shelf]
		l := &b.lots[best.lot]
		best.at, _, _ = fl.space.Find(b.w, b.h, maxrect.BestShortSide)
		fl.space.Place(best.at)
		l.remaining--
		mem, area = mem-l.mem, area-b.price*fl.areaPrice
		worth += b.price*fl.areaPrice + fl.memPrice*fl.f.mem[l.row]
		out = append(out, best)
	}
}

func hasRoom(s *maxrect.Space, w, h int64) bool {
	return slices.ContainsFunc(s.Free(), func(r maxrect.Rect) bool { return w <= r.W && h <= r.H })
}

// last returns the index of the non-empty lot with the most memory per instance, up to mem, or -1.
func (b *shelf) last(mem int64) int {
	i := sort.Search(len(b.lots), func(i int) bool { return b.lots[i].mem > mem })
	for i--; i >= 0 && b.lots[i].remaining == 0; i-- {
		continue
	}
	return i
}

// packGPU returns a GPU with the placed instances and subtracts them from the shelves.
func (fl *filler) packGPU(instances []placed) GPU {
	g := GPU{Node: AnyNode}
	for _, t := range instances {
		l := &fl.shelves[t.shelf].lots[t.lot]
		l.remaining--
		fl.total--
		fl.area -= fl.shelves[t.shelf].price
		fl.mem -= fl.f.mem[l.row]
		r := fl.f.rows[l.row]
		g.Items = append(g.Items, fl.f.p.withTurn(Item{Func: r.fn, Option: r.opt, At: t.at}))
	}
	slices.SortFunc(instances, func(a, b placed) int { return cmp.Compare(b.lot, a.lot) }) // deletions keep the indexes of earlier lots
	for _, t := range instances {
		if b := &fl.shelves[t.shelf]; t.lot < len(b.lots) && b.lots[t.lot].remaining == 0 {
			b.lots = slices.Delete(b.lots, t.lot, t.lot+1)
		}
	}
	return g
}
