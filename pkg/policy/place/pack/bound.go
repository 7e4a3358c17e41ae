package pack

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sort"

	"github.com/gfaas/gfaas/pkg/policy/place/dff"
	"github.com/gfaas/gfaas/pkg/policy/place/lp"
)

// Names of the bounds, for a packing's bound_method.
const (
	boundNone   = "none" // nothing to pack
	boundArea   = "area"
	boundMemory = "memory"
	boundDFF    = "dff"
	boundBars   = "bars"
)

// lowerBound returns a lower bound on the number of bins and the name of the method. It is the largest of the
// bounds by area, by memory, by dual feasible functions and by bars. All kinds must fit the bin. work limits
// the number of additions for the bound by bars.
func lowerBound(kinds []Kind, bin Bin, work int) (bins int, method string) {
	bins, method = coarseBound(kinds, bin)
	if n := dffBound(kinds, bin); n > bins {
		bins, method = n, boundDFF
	}
	if n := barBound(kinds, bin, bins, work); n > bins {
		bins, method = n, boundBars
	}
	return bins, method
}

// coarseBound returns the larger of the bounds by area and by memory, which take almost no time.
func coarseBound(kinds []Kind, bin Bin) (bins int, method string) {
	var area, mem sum
	for _, k := range kinds {
		area.add(k.W*k.H, int64(k.Count))
		mem.add(k.Mem, int64(k.Count))
	}
	bins, method = area.ceilDiv(bin.W*bin.H), boundArea
	if bins == 0 {
		return 0, boundNone
	}
	if bin.Mem > 0 {
		if n := mem.ceilDiv(bin.Mem); n > bins {
			bins, method = n, boundMemory
		}
	}
	return bins, method
}

// sum is a sum of products in 128 bits.
type sum struct{ hi, lo uint64 }

// add adds a × b. Both must be at least 0.
func (s *sum) add(a, b int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi += hi + carry
}

// ceilDiv returns the sum divided by whole, rounded up. The quotient must fit an int; it does if every
// product counts rectangles of at most whole.
func (s *sum) ceilDiv(whole int64) int {
	q, rest := bits.Div64(s.hi, s.lo, uint64(whole))
	if rest > 0 {
		q++
	}
	return int(q)
}

// scale holds the sides of all kinds along one axis, and the side of the bin, transformed by a dual
// feasible function (package dff).
type scale struct {
	sides []int64
	whole int64
}

func transformed(sides []int64, f func(int64) int64, whole int64) scale {
	out := make([]int64, len(sides))
	for i, x := range sides {
		out[i] = f(x)
	}
	return scale{out, whole}
}

// dffWork is about the number of multiplications in dffBound.
const dffWork = 2_000_000

// dffBound returns the best bound by area over pairs of scales.
func dffBound(kinds []Kind, bin Bin) int {
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k Kind) bool { return k.Count == 0 })
	if len(kinds) == 0 {
		return 0
	}
	limit := 6
	for limit < 200 && (limit+1)*(limit+1)*len(kinds) <= dffWork {
		limit++
	}
	widths, heights := sides(kinds)
	across, up := scales(kinds, widths, bin.W, limit), scales(kinds, heights, bin.H, limit)
	best := 0
	for _, a := range across {
		for _, u := range up {
			var s sum
			for i := range kinds {
				s.add(a.sides[i]*u.sides[i], int64(kinds[i].Count))
			}
			best = max(best, s.ceilDiv(a.whole*u.whole))
		}
	}
	return best
}

// scales returns about limit different scales of the sides along one axis, or fewer.
func scales(kinds []Kind, sides []int64, whole int64, limit int) []scale {
	out := []scale{{sides, whole}}
	add := func(f func(x int64) int64, whole int64) {
		s := transformed(sides, f, whole)
		if whole > 0 && !slices.ContainsFunc(out, func(o scale) bool { return o.whole == s.whole && slices.Equal(o.sides, s.sides) }) {
			out = append(out, s)
		}
	}
	ks := thresholds(sides, whole)
	for _, k := range sample(ks, limit/3) {
		add(dff.DropSmall(whole, k))
	}
	for _, k := range sample(ks, limit/3) {
		add(dff.Rounded(whole, k))
	}
	for _, k := range sample(ks, limit-1-2*(limit/3)) {
		add(counted(kinds, sides, whole, k))
	}
	return out
}

// thresholds returns the sides up to half of the whole at which the functions may change their value
// for some side, in ascending order, with half of the whole, rounded up, as the last. It samples
// about a thousand sides if there are more.
func thresholds(sides []int64, whole int64) []int64 {
	half := (whole + 1) / 2
	ks := []int64{half}
	for i := 0; i < len(sides); i += 1 + len(sides)/1000 {
		x := sides[i]
		for _, k := range dff.Thresholds(x, whole) {
			if k >= 1 && k < half {
				ks = append(ks, k)
			}
		}
	}
	slices.Sort(ks)
	return slices.Compact(ks)
}

// sample returns at most n of the values, evenly spread, with the last among them.
func sample(values []int64, n int) []int64 {
	if len(values) <= n {
		return values
	}
	var out []int64
	for i := range n {
		out = append(out, values[(i+1)*len(values)/n-1])
	}
	return out
}

// counted returns the dual feasible function f1 of Carlier and others, which depends on the sides, and its
// value for the whole. The function maps a side from k to half of the whole to 1, a smaller side to 0, and a
// larger side to the number of sides of the first kind that it displaces from the bin.
func counted(kinds []Kind, sides []int64, whole, k int64) (func(int64) int64, int64) {
	type run struct{ side, count int64 }
	var smalls []run
	for i, x := range sides {
		if x >= k && 2*x <= whole {
			smalls = append(smalls, run{x, int64(kinds[i].Count)})
		}
	}
	slices.SortFunc(smalls, func(a, b run) int { return cmp.Compare(a.side, b.side) })
	// Consider the shortest sides first: ends[i] is the total length of the first i+1 runs, and numbers[i] the
	// number of sides in them. A run that reaches beyond the bin ends the list.
	var ends, numbers []int64
	end, number := int64(0), int64(0)
	for _, s := range smalls {
		if s.count > (whole-end)/s.side {
			break
		}
		end, number = end+s.count*s.side, number+s.count
		ends, numbers = append(ends, end), append(numbers, number)
	}
	// lie returns how many of these sides fit side by side in a room.
	lie := func(room int64) (n int64) {
		i := sort.Search(len(ends), func(i int) bool { return ends[i] > room })
		if i > 0 {
			n, room = numbers[i-1], room-ends[i-1]
		}
		if i < len(smalls) {
			n += min(smalls[i].count, room/smalls[i].side)
		}
		return n
	}
	all := lie(whole)
	return func(x int64) int64 {
		switch {
		case 2*x > whole:
			return all - lie(whole-x)
		case x >= k:
			return 1
		}
		return 0
	}, all
}

// The bar relaxation (Scheithauer, LP-based bounds for the container and multi-container loading problem). A
// vertical line through a bin meets rectangles that lie one above the other; they form a pattern, and their
// heights sum to at most the bin's height. A bin of width W provides a total of W of such lines, and all lines
// together must meet every rectangle over its whole width. If a bin may mix patterns freely, the least number
// of bins is a linear program over patterns. Its dual prices rescale the heights to suit the widths. The widths
// may be rescaled beforehand (barScales).

// bars is the bar relaxation for one axis: the sides along this axis form the patterns, and the lines must
// meet each rectangle over its side along the other axis.
type bars struct {
	scale    []int64 // by kind: side along the other axis
	whole    int64   // the bin's side along the other axis
	sides    []int64 // different sides along this axis
	side     []int   // by kind: index in sides
	maxCount []int   // by index in sides: largest number in a pattern
	room     int64
	kinds    []Kind
	tally    []int64  // of the knapsack, by room
	used     [][]bool // by step and room
	steps    []int    // by step: index of its side
	pattern  []int
}

// Limits of the program: additions for a bound, and the resolution of sides.
const (
	barWork  = 3_000_000
	barRoom  = 5_000
	barWhole = 1 << 40
	barPrice = 1 << 20 // price of a whole line
)

// barBound returns the best bound by bars over both axes and several scales if it is above floor, and
// 0 otherwise. It spends at most about work additions.
func barBound(kinds []Kind, bin Bin, floor, work int) int {
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k Kind) bool { return k.Count == 0 })
	best := floor
	widths, heights := sides(kinds)
	try := func(s scale, sides []int64, room int64) {
		if b := newBars(kinds, s, sides, room); b != nil && work > 0 {
			best = max(best, b.bound(best, &work))
		}
	}
	across := barScales(widths, bin.W)
	up := barScales(heights, bin.H)
	for i := range max(len(across), len(up)) {
		if i < len(across) {
			try(across[i], heights, bin.H)
		}
		if i < len(up) {
			try(up[i], widths, bin.W)
		}
	}
	if best == floor {
		return 0
	}
	return best
}

func sides(kinds []Kind) (widths, heights []int64) {
	for _, k := range kinds {
		widths, heights = append(widths, k.W), append(heights, k.H)
	}
	return widths, heights
}

// barScales returns the unchanged sides as a scale, and scales that drop small sides.
func barScales(sides []int64, whole int64) []scale {
	out := []scale{{sides, whole}}
	for _, k := range sample(thresholds(sides, whole), 12) {
		f, all := dff.DropSmall(whole, k)
		s := transformed(sides, f, all)
		if !slices.ContainsFunc(out, func(o scale) bool { return slices.Equal(o.sides, s.sides) }) {
			out = append(out, s)
		}
	}
	return out
}

// newBars returns the program, or nil if the sides are too many or have too fine a common unit.
func newBars(kinds []Kind, s scale, sides []int64, room int64) *bars {
	unit := room
	for _, x := range sides {
		unit = gcd(unit, x)
	}
	b := &bars{scale: s.sides, whole: s.whole, room: room / unit, kinds: kinds, side: make([]int, len(kinds))}
	if b.room > barRoom || b.whole > barWhole {
		return nil
	}
	at := map[int64]int{}
	for i, x := range sides {
		j, known := at[x/unit]
		if !known {
			j = len(b.sides)
			at[x/unit] = j
			b.sides, b.maxCount = append(b.sides, x/unit), append(b.maxCount, 0)
		}
		b.side[i] = j
		if s.sides[i] > 0 {
			b.maxCount[j] = int(min(int64(b.maxCount[j])+int64(kinds[i].Count), b.room/b.sides[j]))
		}
	}
	for j, n := range b.maxCount {
		for range n {
			b.steps = append(b.steps, j)
		}
	}
	if len(b.steps)*int(b.room) > barWork/10 {
		return nil
	}
	b.tally = make([]int64, b.room+1)
	for range b.steps {
		b.used = append(b.used, make([]bool, b.room+1))
	}
	b.pattern = make([]int, len(b.sides))
	return b
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// bound generates patterns until the program is solved, cannot exceed floor, or the work is spent.
// Any prices give a bound, so it computes bounds from prices rounded to integers.
func (b *bars) bound(floor int, work *int) int {
	best := floor
	rows := make([]lp.Row, len(b.sides))
	for j := range rows {
		rows[j].Penalty = 1
	}
	for i, k := range b.kinds {
		rows[b.side[i]].RHS += float64(b.scale[i]) * float64(k.Count)
	}
	m := lp.New(rows)
	prices := make([]int64, len(b.sides))
	for *work > 0 {
		m.Solve(10*len(rows), nil)
		*work -= 10 * len(rows) * len(rows)
		if math.Ceil(m.Value()/float64(b.whole)-1e-6) <= float64(best) {
			return best
		}
		for j, p := range m.Prices() {
			prices[j] = max(0, int64(p*barPrice))
		}
		limit := b.priciestPattern(prices)
		*work -= len(b.steps) * int(b.room)
		best = max(best, b.boundAt(prices, limit))
		if float64(limit) <= barPrice*(1+1e-6) {
			return best
		}
		c := lp.Column{Cost: 1}
		for j, n := range b.pattern {
			if n > 0 {
				c.Rows, c.Coefs = append(c.Rows, j), append(c.Coefs, float64(n))
			}
		}
		m.Add(c)
	}
	return best
}

// boundAt returns the bound at the given prices, if no pattern costs more than limit.
func (b *bars) boundAt(prices []int64, limit int64) int {
	if limit == 0 || b.whole > math.MaxInt64/limit {
		return 0
	}
	var s sum
	for i, k := range b.kinds {
		s.add(b.scale[i]*prices[b.side[i]], int64(k.Count))
	}
	return s.ceilDiv(b.whole * limit)
}

// priciestPattern finds the pattern with the largest price, by an exact knapsack, and returns that
// price.
func (b *bars) priciestPattern(prices []int64) int64 {
	clear(b.tally)
	for n, j := range b.steps {
		used := b.used[n]
		clear(used)
		price, side := prices[j], b.sides[j]
		if price == 0 {
			continue
		}
		for room := b.room; room >= side; room-- {
			if with := b.tally[room-side] + price; with > b.tally[room] {
				b.tally[room], used[room] = with, true
			}
		}
	}
	clear(b.pattern)
	room := b.room
	for n := len(b.steps) - 1; n >= 0; n-- {
		if b.used[n][room] {
			j := b.steps[n]
			b.pattern[j]++
			room -= b.sides[j]
		}
	}
	return b.tally[b.room]
}
