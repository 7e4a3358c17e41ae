// Package pack packs rectangles of fixed sizes into as few equal bins as it
// can, and says how many are needed at least. Nothing is ever rotated, all
// arithmetic is in whole numbers, and the same arguments give the same packing.
package pack

import (
	"math"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// Kind is a number of rectangles that are alike, W × H, each with Mem of
// memory.
type Kind struct {
	W, H, Mem int64
	Count     int
}

// Bin is what every bin is like. Mem 0 is memory without limit.
type Bin struct{ W, H, Mem int64 }

// MaxArea is the largest area of a bin: what orders rectangles then fits 64
// bits.
const MaxArea = math.MaxInt64 / 4

// holds says whether an empty bin has room for one of the kind.
func (b Bin) holds(k Kind) bool {
	return k.W <= b.W && k.H <= b.H && (b.Mem == 0 || k.Mem <= b.Mem)
}

// flipped has the axes changed over.
func (b Bin) flipped() Bin { return Bin{W: b.H, H: b.W, Mem: b.Mem} }

// Placed is one rectangle of a kind, by its place in the list of kinds, with
// its lower left corner.
type Placed struct {
	Kind int
	X, Y int64
}

// Filled is a number of bins that are packed alike.
type Filled struct {
	Items []Placed
	Times int
}

// Packing is what Pack found.
type Packing struct {
	Bins        []Filled
	Used        int // bins, alike ones counted each
	Bound       int // bins needed at least
	BoundMethod string
	Oversize    []int // the kinds that no bin holds; nothing else counts them
}

// Options bound and seed the improvement.
type Options struct {
	Seed uint64
	// Steps is how often the search may try to improve before it gives up.
	Steps int
	// Stop is asked now and then whether to end improving; nil never ends it.
	// Where it ended the search, how far that came decides the packing.
	Stop func() bool
}

// DefaultSteps is where the search has long stopped finding anything.
const DefaultSteps = 2_000_000

// Pack packs the kinds. It first fills bins one by one with the next rectangle
// that fits, in several orders and by several rules of placing (first fit
// decreasing), and takes the best; then it searches for fewer. It stops as soon
// as it reaches the bound. The first filling is always completed, and the
// bound proven as far as it can be.
func Pack(kinds []Kind, bin Bin, o Options) Packing {
	var p Packing
	fitting := make([]Kind, len(kinds))
	for i, k := range kinds {
		if fitting[i] = k; !bin.holds(k) {
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

// method is a way of filling: which rectangles come first, and where they go.
type method struct {
	order order
	rule  maxrect.Rule
	flip  bool // fill with the axes changed over
}

// methods is in the order in which they are tried: those that are best alone
// come first.
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

// order says which rectangles come first.
type order int

const (
	byArea     order = iota
	bySides          // the larger sum of sides, each relative to the bin's
	byWidth          // the wider, then the taller
	byLongSide       // the larger of the two sides, each relative to the bin's
)

// key is larger for what comes earlier, and grows with either side.
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
