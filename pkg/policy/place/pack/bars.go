package pack

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/lp"
)

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
		m.Solve(10 * len(rows))
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
	return s.over(b.whole * most)
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
