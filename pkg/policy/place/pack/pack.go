// Package pack packs rectangles of fixed sizes into few equal bins, and proves a lower bound on the
// number of bins. Pack fills bins by first fit decreasing (fill.go), improves the packing by ruin and
// recreate (search.go), and computes bounds (bound.go). Items converts decimal sizes. Rectangles are
// never rotated, all arithmetic is in integers, and the same arguments give the same packing unless
// Options.Stop ends the search. Package command/place calls it.
package pack

import (
	"math"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// Kind is a number of equal rectangles, W × H, each with the memory Mem.
type Kind struct {
	W, H, Mem int64
	Count     int
}

// Bin describes the bins. Mem is 0 if memory is unlimited.
type Bin struct{ W, H, Mem int64 }

// MaxArea is the largest area of a bin. It makes the keys of rectangles fit 64 bits.
const MaxArea = math.MaxInt64 / 4

// fits reports whether an empty bin has room for a rectangle of the kind.
func (b Bin) fits(k Kind) bool {
	return k.W <= b.W && k.H <= b.H && (b.Mem == 0 || k.Mem <= b.Mem)
}

// flipped returns the bin with its axes exchanged.
func (b Bin) flipped() Bin { return Bin{W: b.H, H: b.W, Mem: b.Mem} }

// Placed is a rectangle of a kind, given by its index, with its lower left corner.
type Placed struct {
	Kind int
	X, Y int64
}

// Filled is a number of bins with the same rectangles.
type Filled struct {
	Items []Placed
	Times int
}

// Packing is the result of Pack.
type Packing struct {
	Bins        []Filled
	Used        int // number of bins
	Bound       int // lower bound on the number of bins
	BoundMethod string
	Oversize    []int // kinds that do not fit a bin; Used and Bound ignore them
}

// Options configures the improvement of a packing.
type Options struct {
	Seed uint64
	// Steps limits the steps of the search.
	Steps int
	// Stop is called from time to time and ends the improvement when it returns true. It may be
	// nil. If it ends the search, the packing depends on the time.
	Stop func() bool
}

// DefaultSteps is a number of steps after which the search hardly ever improves a packing.
const DefaultSteps = 2_000_000

// Pack packs the kinds. It first fills bins one by one with the next rectangle that fits, in several
// orders and with several placement rules (first fit decreasing), and keeps the best packing. Then it
// searches for fewer bins. It stops when it reaches the bound. Even if Options.Stop returns true at
// once, it completes the first filling and computes the bounds.
func Pack(kinds []Kind, bin Bin, o Options) Packing {
	var p Packing
	fitting := make([]Kind, len(kinds))
	for i, k := range kinds {
		if fitting[i] = k; !bin.fits(k) {
			fitting[i].Count = 0
			p.Oversize = append(p.Oversize, i)
		}
	}
	stop := o.Stop
	if stop == nil {
		stop = func() bool { return false }
	}
	p.Bound, p.BoundMethod = coarseBound(fitting, bin)
	p.Bins, p.Used = fill(fitting, bin, methods[0])
	if p.Used > p.Bound {
		p.Bound, p.BoundMethod = lowerBound(fitting, bin, barWork/3)
	}
	for _, m := range methods[1:] {
		if p.Used <= p.Bound || stop() {
			break
		}
		if bins, used := fill(fitting, bin, m); used < p.Used {
			p.Bins, p.Used = bins, used
		}
	}
	if p.Used > p.Bound && o.Steps > 0 && !stop() {
		improve(fitting, bin, &p, o, stop)
	}
	if p.Used > p.Bound {
		if n := barBound(fitting, bin, p.Bound, barWork); n > p.Bound {
			p.Bound, p.BoundMethod = n, boundBars
		}
	}
	return p
}

// method is a way of filling: the order of rectangles and the placement rule.
type method struct {
	order order
	rule  maxrect.Rule
	flip  bool // fill with the axes exchanged
}

// methods lists all methods in the order in which they are tried, those with the best results first.
var methods = func() (all []method) {
	for _, o := range []order{byArea, bySides, byWidth, byLongSide} {
		for rule := range maxrect.Rules {
			all = append(all, method{o, rule, false})
			if o == byWidth || rule == maxrect.BottomLeft {
				all = append(all, method{o, rule, true})
			}
		}
	}
	return all
}()

// order selects which rectangles are placed first.
type order int

const (
	byArea     order = iota
	bySides          // by the sum of sides, each relative to the bin's
	byWidth          // by width, then height
	byLongSide       // by the larger of the two sides, each relative to the bin's
)

// key returns a number that is larger for earlier rectangles. It grows with either side.
func (o order) key(w, h int64, bin Bin) int64 {
	switch o {
	case bySides:
		return w*bin.H + h*bin.W
	case byWidth:
		return w*(bin.H+1) + h
	case byLongSide:
		return max(w*bin.H, h*bin.W)
	}
	return w * h
}
