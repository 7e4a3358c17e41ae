package pack

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sort"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
)

// Names of the bounds, for bound_method.
const (
	boundNone   = "none" // nothing to pack
	boundArea   = "area"
	boundMemory = "memory"
	boundDFF    = "dff"
	boundBars   = "bars"
)

// lowerBound is a number of bins below which the kinds, all of which must fit
// the bin, cannot be packed, and which of the bounds it is: the largest of area,
// memory, dual feasible functions and bars, with so much work for the bars.
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

// coarseBound is the larger of the bounds by area and by memory, which take no
// time.
func coarseBound(kinds []Kind, bin Bin) (bins int, method string) {
	bins, method = areaBound(kinds, bin), boundArea
	if bins == 0 {
		return 0, boundNone
	}
	if n := memoryBound(kinds, bin); n > bins {
		bins, method = n, boundMemory
	}
	return bins, method
}

func areaBound(kinds []Kind, bin Bin) int {
	var s sum
	for _, k := range kinds {
		s.add(k.W*k.H, int64(k.Count))
	}
	return s.ceilDiv(bin.W * bin.H)
}

func memoryBound(kinds []Kind, bin Bin) int {
	if bin.Mem == 0 {
		return 0
	}
	var s sum
	for _, k := range kinds {
		s.add(k.Mem, int64(k.Count))
	}
	return s.ceilDiv(bin.Mem)
}

// sum is a sum of products in 128 bits.
type sum struct{ hi, lo uint64 }

// add adds a × b, neither negative.
func (s *sum) add(a, b int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi += hi + carry
}

// ceilDiv is the sum divided by whole, rounded up; it must be a number of bins, as
// it is where every product counts rectangles that are at most whole.
func (s *sum) ceilDiv(whole int64) int {
	q, rest := bits.Div64(s.hi, s.lo, uint64(whole))
	if rest > 0 {
		q++
	}
	return int(q)
}

// scale is what a dual feasible function makes of the sides of all kinds along
// one axis, and of the bin's. Whatever lies side by side in a bin has scaled
// sides that sum to at most the bin's; so every scale, and every product of a
// scale of widths and a scale of heights, gives a bound by area (Fekete and
// Schepers, New classes of fast lower bounds for bin packing problems; Carlier,
// Clautiaux and Moukrim, New reduction procedures and lower bounds for the
// two-dimensional bin packing problem with fixed orientation).
type scale struct {
	sides []int64
	whole int64
}

// dffWork is about how many multiplications dffBound takes.
const dffWork = 2_000_000

// dffBound is the best bound by area over pairs of scales.
func dffBound(kinds []Kind, bin Bin) int {
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k Kind) bool { return k.Count == 0 })
	if len(kinds) == 0 {
		return 0
	}
	most := 6
	for most < 200 && (most+1)*(most+1)*len(kinds) <= dffWork {
		most++
	}
	widths, heights := sides(kinds)
	across, up := scales(kinds, widths, bin.W, most), scales(kinds, heights, bin.H, most)
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

// scales are at most about most different scales of the sides along one axis.
func scales(kinds []Kind, sides []int64, whole int64, most int) []scale {
	out := []scale{{sides, whole}}
	add := func(f func(x int64) int64, whole int64) {
		s := scale{make([]int64, len(sides)), whole}
		for i, x := range sides {
			s.sides[i] = f(x)
		}
		if whole > 0 && !slices.ContainsFunc(out, func(o scale) bool { return o.whole == s.whole && slices.Equal(o.sides, s.sides) }) {
			out = append(out, s)
		}
	}
	ks := thresholds(sides, whole)
	for _, k := range sample(ks, most/3) {
		add(dropSmall(whole, k))
	}
	for _, k := range sample(ks, most/3) {
		add(rounded(whole, k))
	}
	for _, k := range sample(ks, most-1-2*(most/3)) {
		add(counted(kinds, sides, whole, k))
	}
	return out
}

// thresholds are the sides up to half of the whole, rounded up, at which the functions may
// change what they make of some side, smallest first; of thousands of sides
// only a thousand are looked at.
func thresholds(sides []int64, whole int64) []int64 {
	half := (whole + 1) / 2
	ks := []int64{half}
	for i := 0; i < len(sides); i += 1 + len(sides)/1000 {
		x := sides[i]
		for _, k := range []int64{x, whole - x, whole - x + 1, x / 2, x / 3} {
			if k >= 1 && k < half {
				ks = append(ks, k)
			}
		}
	}
	slices.Sort(ks)
	return slices.Compact(ks)
}

// sample is at most n of the values, evenly spread and with the last.
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

// dropSmall forgets what is smaller than k, and lets nothing lie beside what
// leaves less than k (f0 of Carlier and others; U(ε) of Fekete and Schepers).
func dropSmall(whole, k int64) (func(int64) int64, int64) {
	return func(x int64) int64 {
		switch {
		case x > whole-k:
			return whole
		case x < k:
			return 0
		}
		return x
	}, whole
}

// rounded counts how often k fits, in favour of what is larger than half (f2 of
// Carlier and others).
func rounded(whole, k int64) (func(int64) int64, int64) {
	return func(x int64) int64 {
		switch {
		case 2*x > whole:
			return 2 * (whole/k - (whole-x)/k)
		case 2*x == whole:
			return whole / k
		}
		return 2 * (x / k)
	}, 2 * (whole / k)
}

// counted makes 1 of what is from k to half, and of what is larger as many as
// it keeps from lying in the bin (f1 of Carlier and others, which depends on
// the sides).
func counted(kinds []Kind, sides []int64, whole, k int64) (func(int64) int64, int64) {
	type run struct{ side, count int64 }
	var smalls []run
	for i, x := range sides {
		if x >= k && 2*x <= whole {
			smalls = append(smalls, run{x, int64(kinds[i].Count)})
		}
	}
	slices.SortFunc(smalls, func(a, b run) int { return cmp.Compare(a.side, b.side) })
	// Of the shortest first: ends[i] is where they reach up to the i-th, and
	// numbers[i] how many they are; what reaches beyond the bin is left out.
	var ends, numbers []int64
	end, number := int64(0), int64(0)
	for _, s := range smalls {
		if s.count > (whole-end)/s.side {
			break
		}
		end, number = end+s.count*s.side, number+s.count
		ends, numbers = append(ends, end), append(numbers, number)
	}
	// lie is how many of them lie side by side in a room.
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

// A line across a bin meets rectangles that lie side by side. So bins of width
// W need at least as many lines up the bin, each with a pattern of rectangles
// that fit its height, as meet every rectangle over its whole width: with
// patterns that may be cut anywhere, this is a linear program (the bar
// relaxation: Scheithauer, LP-based bounds for the container and
// multi-container loading problem). Its prices make a scale of the heights that
// suits the widths; and the widths may have been scaled before.

// bars is one such program: of the sides along one axis, and how long each must
// be met.
type bars struct {
	scale   []int64 // of each kind, along the other axis
	whole   int64
	sides   []int64 // different ones along this axis
	side    []int   // of each kind, which of them
	most    []int   // how many of each side a pattern may have
	room    int64
	kinds   []Kind
	tally   []int64  // of the knapsack, by room
	taken   [][]bool // by step and room
	steps   []int    // the side of each step
	pattern []int
}

// Limits of the program: what a bound may take, in additions, and how fine the
// sides may be.
const (
	barWork  = 3_000_000
	barRoom  = 5_000
	barWhole = 1 << 40
	barPrice = 1 << 20 // of a whole line
)

// barBound is the best bound by bars over both axes and several scales, if it
// is above least, as far as so much work goes; 0 otherwise.
func barBound(kinds []Kind, bin Bin, least, work int) int {
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k Kind) bool { return k.Count == 0 })
	best := least
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
	if best == least {
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

// barScales are the sides as they are, and with the small ones forgotten.
func barScales(sides []int64, whole int64) []scale {
	out := []scale{{sides, whole}}
	for _, k := range sample(thresholds(sides, whole), 12) {
		f, all := dropSmall(whole, k)
		s := scale{make([]int64, len(sides)), all}
		for i, x := range sides {
			s.sides[i] = f(x)
		}
		if !slices.ContainsFunc(out, func(o scale) bool { return slices.Equal(o.sides, s.sides) }) {
			out = append(out, s)
		}
	}
	return out
}

// newBars is nil when the sides are too fine or too many.
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
			b.sides, b.most = append(b.sides, x/unit), append(b.most, 0)
		}
		b.side[i] = j
		if s.sides[i] > 0 {
			b.most[j] = int(min(int64(b.most[j])+int64(kinds[i].Count), b.room/b.sides[j]))
		}
	}
	for j, n := range b.most {
		for range n {
			b.steps = append(b.steps, j)
		}
	}
	if len(b.steps)*int(b.room) > barWork/10 {
		return nil
	}
	b.tally = make([]int64, b.room+1)
	for range b.steps {
		b.taken = append(b.taken, make([]bool, b.room+1))
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

// bound generates patterns until the program is solved or can no longer give
// more than least, or the work is done. Whatever the prices, they give a bound:
// they need not be the best, and are whole numbers by which it is reckoned.
func (b *bars) bound(least int, work *int) int {
	best := least
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
		most := b.dearest(prices)
		*work -= len(b.steps) * int(b.room)
		best = max(best, b.at(prices, most))
		if float64(most) <= barPrice*(1+1e-6) {
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

// at is the bound at some prices, of which no pattern has more than most.
func (b *bars) at(prices []int64, most int64) int {
	if most == 0 || b.whole > math.MaxInt64/most {
		return 0
	}
	var s sum
	for i, k := range b.kinds {
		s.add(b.scale[i]*prices[b.side[i]], int64(k.Count))
	}
	return s.ceilDiv(b.whole * most)
}

// dearest finds the pattern of the largest price, and gives that (a knapsack,
// exactly).
func (b *bars) dearest(prices []int64) int64 {
	clear(b.tally)
	for n, j := range b.steps {
		taken := b.taken[n]
		clear(taken)
		price, side := prices[j], b.sides[j]
		if price == 0 {
			continue
		}
		for room := b.room; room >= side; room-- {
			if with := b.tally[room-side] + price; with > b.tally[room] {
				b.tally[room], taken[room] = with, true
			}
		}
	}
	clear(b.pattern)
	room := b.room
	for n := len(b.steps) - 1; n >= 0; n-- {
		if b.taken[n][room] {
			j := b.steps[n]
			b.pattern[j]++
			room -= b.sides[j]
		}
	}
	return b.tally[b.room]
}
