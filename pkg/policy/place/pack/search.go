package pack

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// rectangle is one of a kind. Size is its area, in 2^-20 of a bin's, rounded up.
type rectangle struct {
	w, h, mem int64
	kind      int
	size      int64
}

const wholeBin = 1 << 20

// load is one bin while the search works on it: at[i] is where items[i] lies.
type load struct {
	space *maxrect.Space
	items []int32
	at    []maxrect.Rect
	mem   int64 // left
}

// search looks for a packing with one bin less at a time (in the manner of
// Gardeyn and Wauters, A goal-driven ruin and recreate heuristic): it takes a
// bin away, and then time and again empties a few bins and refills them from
// what they held and what is left out, until nothing is.
type search struct {
	bin   Bin
	rects []rectangle
	loads []*load
	out   []int32 // left out
	gap   int64   // their sizes
	rng   splitmix.Source
	// Of a step:
	chosen  []int
	scratch []*load
	pool    []int32
	keys    []int64 // of rects, what the pool is sorted by
	rest    []int32
}

func newSearch(kinds []Kind, bin Bin, bins []Filled, seed uint64) *search {
	s := &search{bin: bin, rng: splitmix.Source(seed)}
	for _, b := range bins {
		for range b.Times {
			l := s.empty()
			for _, at := range b.Items {
				k := kinds[at.Kind]
				hi, lo := bits.Mul64(uint64(k.W*k.H), wholeBin)
				size, _ := bits.Div64(hi, lo, uint64(bin.W*bin.H))
				s.rects = append(s.rects, rectangle{k.W, k.H, k.Mem, at.Kind, int64(size) + 1})
				l.put(int32(len(s.rects)-1), maxrect.Rect{X: at.X, Y: at.Y, W: k.W, H: k.H}, k.Mem)
			}
			s.loads = append(s.loads, l)
		}
	}
	s.keys = make([]int64, len(s.rects))
	for range mostRuined {
		s.scratch = append(s.scratch, s.empty())
	}
	return s
}

func (s *search) empty() *load {
	l := &load{space: maxrect.New(s.bin.W, s.bin.H, 0)}
	l.clear(s.bin)
	return l
}

func (l *load) clear(bin Bin) {
	l.space.Clear()
	l.items, l.at = l.items[:0], l.at[:0]
	if l.mem = bin.Mem; bin.Mem == 0 {
		l.mem = math.MaxInt64
	}
}

func (l *load) put(item int32, at maxrect.Rect, mem int64) {
	l.space.Place(at)
	l.items, l.at = append(l.items, item), append(l.at, at)
	l.mem -= mem
}

// drop takes the emptiest bin away.
func (s *search) drop() {
	least, at := int64(math.MaxInt64), 0
	for i, l := range s.loads {
		if size := s.sizes(l.items); size < least {
			least, at = size, i
		}
	}
	s.out = append(s.out, s.loads[at].items...)
	s.gap = s.sizes(s.out)
	s.loads = slices.Delete(s.loads, at, at+1)
}

func (s *search) sizes(items []int32) (sum int64) {
	for _, i := range items {
		sum += s.rects[i].size
	}
	return sum
}

// mostRuined is how many bins a step empties at most. As many that are full
// give room only together; more are refilled worse.
const mostRuined = 4

// step refills a few bins, and keeps what came out if not much more is left
// out than before.
func (s *search) step() {
	s.choose()
	s.ruin()
	s.recreate()
	gap := s.sizes(s.rest)
	if gap > s.gap+s.patience() {
		return
	}
	s.gap = gap
	s.out, s.rest = s.rest, s.out
	for n, i := range s.chosen {
		s.loads[i], s.scratch[n] = s.scratch[n], s.loads[i]
	}
}

// patience draws how much more may be left out than before: 1/400 of a bin half
// of the time, and each more half as often.
func (s *search) patience() int64 {
	halvings := bits.LeadingZeros64(s.rng.Uint64() | 1)
	return int64(halvings+1) * wholeBin / 400
}

// choose draws from one to four bins, two and three most often.
func (s *search) choose() {
	many := [...]int{1, 1, 2, 2, 2, 3, 3, 3, 4, 4}
	n := min(many[s.below(len(many))], len(s.loads))
	s.chosen = s.chosen[:0]
	for len(s.chosen) < n {
		if i := s.below(len(s.loads)); !slices.Contains(s.chosen, i) {
			s.chosen = append(s.chosen, i)
		}
	}
}

// ruin puts what is left out and what is in the chosen bins into the pool.
func (s *search) ruin() {
	s.pool = append(s.pool[:0], s.out...)
	for n, i := range s.chosen {
		l := s.scratch[n]
		l.clear(s.bin)
		from := s.loads[i]
		hole := s.window(len(from.items))
		for j, item := range from.items {
			if from.at[j].Meets(hole) {
				s.pool = append(s.pool, item)
			} else {
				l.put(item, from.at[j], s.rects[item].mem)
			}
		}
	}
}

// window is the part of a bin that is emptied: all of it where there is little
// in it, else often only some rectangle.
func (s *search) window(items int) maxrect.Rect {
	all := maxrect.Rect{W: s.bin.W, H: s.bin.H}
	if items <= 8 || s.below(4) == 0 {
		return all
	}
	x, y := s.within(s.bin.W), s.within(s.bin.H)
	w, h := s.bin.W/8+s.within(s.bin.W/2)+1, s.bin.H/8+s.within(s.bin.H/2)+1
	return maxrect.Rect{X: x - w/2, Y: y - h/2, W: w, H: h}
}

// below draws from 0 to n - 1, for n far below 2^32, without a division: drawing
// is much of what a step takes.
func (s *search) below(n int) int { return int(s.rng.Uint64() >> 32 * uint64(n) >> 32) }

// within draws from 0 to n - 1, for any n.
func (s *search) within(n int64) int64 {
	hi, _ := bits.Mul64(s.rng.Uint64(), uint64(n))
	return int64(hi)
}

// recreate puts the pool into the chosen bins, the largest first by a key that
// is never quite the same.
func (s *search) recreate() {
	o := order(s.below(4))
	noise := 1 + s.below(300)
	rule := maxrect.Rule(s.below(int(maxrect.Rules)))
	for _, i := range s.pool {
		r := s.rects[i]
		key := o.key(r.w, r.h, s.bin)
		for key > math.MaxInt64>>11 {
			key >>= 11
		}
		s.keys[i] = key * int64(1024+s.below(noise))
	}
	slices.SortFunc(s.pool, func(a, b int32) int { return cmp.Or(cmp.Compare(s.keys[b], s.keys[a]), cmp.Compare(a, b)) })
	s.rest = s.rest[:0]
	for _, i := range s.pool {
		if !s.insert(i, rule) {
			s.rest = append(s.rest, i)
		}
	}
}

func (s *search) insert(item int32, rule maxrect.Rule) bool {
	r := s.rects[item]
	var best *load
	var where maxrect.Rect
	var least maxrect.Score
	for n := range s.chosen {
		l := s.scratch[n]
		if l.mem < r.mem {
			continue
		}
		at, score, ok := l.space.Find(r.w, r.h, rule)
		if ok && (best == nil || score.Less(least)) {
			best, where, least = l, at, score
		}
	}
	if best == nil {
		return false
	}
	best.put(item, where, r.mem)
	return true
}

// bins are the loads as bins.
func (s *search) bins() []Filled {
	out := make([]Filled, len(s.loads))
	for i, l := range s.loads {
		out[i].Times = 1
		for j, item := range l.items {
			out[i].Items = append(out[i].Items, Placed{s.rects[item].kind, l.at[j].X, l.at[j].Y})
		}
	}
	return out
}

// improve searches for a better packing than p until it is at the bound.
func improve(kinds []Kind, bin Bin, p *Packing, o Options, stop func() bool) {
	s := newSearch(kinds, bin, p.Bins, o.Seed)
	s.drop()
	for n := 0; n < o.Steps; n++ {
		for len(s.out) == 0 {
			p.Bins, p.Used = s.bins(), len(s.loads)
			if p.Used <= p.Bound {
				return
			}
			s.drop()
		}
		if n%16 == 0 && stop() {
			return
		}
		s.step()
	}
}
