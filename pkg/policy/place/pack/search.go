package pack

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// rectangle is one rectangle of a kind. Its size is its area in 2^-20 of a bin, rounded up.
type rectangle struct {
	w, h, mem int64
	kind      int
	size      int64
}

const wholeBin = 1 << 20

// openBin is one bin during the search. The place of items[i] is at[i].
type openBin struct {
	space  *maxrect.Space
	items  []int32
	places []maxrect.Rect
	mem    int64 // free
}

// search looks for a packing with one bin less at a time (similar to Gardeyn and Wauters, A goal-driven
// ruin and recreate heuristic). It removes a bin. Then it repeatedly empties a few bins and refills
// them from their former items and the items left out, until no item is left out.
type search struct {
	bin          Bin
	rects        []rectangle
	openBins     []*openBin
	unpacked     []int32 // items left out
	unpackedSize int64   // total size of unpacked
	rng          splitmix.Source
	// Scratch space of a step:
	chosen        []int
	scratch       []*openBin
	pool          []int32
	keys          []int64 // by rectangle: sort key of the pool
	stillUnpacked []int32
}

func newSearch(kinds []Kind, bin Bin, bins []Filled, seed uint64) *search {
	s := &search{bin: bin, rng: splitmix.Source(seed)}
	for _, b := range bins {
		for range b.Times {
			l := s.newBin()
			for _, at := range b.Items {
				k := kinds[at.Kind]
				hi, lo := bits.Mul64(uint64(k.W*k.H), wholeBin)
				size, _ := bits.Div64(hi, lo, uint64(bin.W*bin.H))
				s.rects = append(s.rects, rectangle{k.W, k.H, k.Mem, at.Kind, int64(size) + 1})
				l.add(int32(len(s.rects)-1), maxrect.Rect{X: at.X, Y: at.Y, W: k.W, H: k.H}, k.Mem)
			}
			s.openBins = append(s.openBins, l)
		}
	}
	s.keys = make([]int64, len(s.rects))
	for range maxRuined {
		s.scratch = append(s.scratch, s.newBin())
	}
	return s
}

func (s *search) newBin() *openBin {
	l := &openBin{space: maxrect.New(s.bin.W, s.bin.H, 0)}
	l.clear(s.bin)
	return l
}

func (l *openBin) clear(bin Bin) {
	l.space.Clear()
	l.items, l.places = l.items[:0], l.places[:0]
	if l.mem = bin.Mem; bin.Mem == 0 {
		l.mem = math.MaxInt64
	}
}

func (l *openBin) add(item int32, at maxrect.Rect, mem int64) {
	l.space.Place(at)
	l.items, l.places = append(l.items, item), append(l.places, at)
	l.mem -= mem
}

// removeEmptiest removes the emptiest bin.
func (s *search) removeEmptiest() {
	lowest, at := int64(math.MaxInt64), 0
	for i, l := range s.openBins {
		if size := s.totalSize(l.items); size < lowest {
			lowest, at = size, i
		}
	}
	s.unpacked = append(s.unpacked, s.openBins[at].items...)
	s.unpackedSize = s.totalSize(s.unpacked)
	s.openBins = slices.Delete(s.openBins, at, at+1)
}

func (s *search) totalSize(items []int32) (sum int64) {
	for _, i := range items {
		sum += s.rects[i].size
	}
	return sum
}

// maxRuined is the largest number of bins that a step empties. Full bins yield room only when several
// are emptied together, but more than four are refilled worse.
const maxRuined = 4

// step refills a few bins. It keeps the result unless that leaves out more than before by more than
// patience returns.
func (s *search) step() {
	s.choose()
	s.ruin()
	s.recreate()
	gap := s.totalSize(s.stillUnpacked)
	if gap > s.unpackedSize+s.patience() {
		return
	}
	s.unpackedSize = gap
	s.unpacked, s.stillUnpacked = s.stillUnpacked, s.unpacked
	for n, i := range s.chosen {
		s.openBins[i], s.scratch[n] = s.scratch[n], s.openBins[i]
	}
}

// patience returns a random amount by which more may be left out than before: 1/400 of a bin with
// probability 1/2, 2/400 with 1/4, and so on.
func (s *search) patience() int64 {
	halvings := bits.LeadingZeros64(s.rng.Uint64() | 1)
	return int64(halvings+1) * wholeBin / 400
}

// choose selects one to four bins at random, two or three most often.
func (s *search) choose() {
	counts := [...]int{1, 1, 2, 2, 2, 3, 3, 3, 4, 4}
	n := min(counts[s.randomInt(len(counts))], len(s.openBins))
	s.chosen = s.chosen[:0]
	for len(s.chosen) < n {
		if i := s.randomInt(len(s.openBins)); !slices.Contains(s.chosen, i) {
			s.chosen = append(s.chosen, i)
		}
	}
}

// ruin moves the items left out, and items of the chosen bins, to the pool.
func (s *search) ruin() {
	s.pool = append(s.pool[:0], s.unpacked...)
	for n, i := range s.chosen {
		l := s.scratch[n]
		l.clear(s.bin)
		from := s.openBins[i]
		hole := s.window(len(from.items))
		for j, item := range from.items {
			if from.places[j].Meets(hole) {
				s.pool = append(s.pool, item)
			} else {
				l.add(item, from.places[j], s.rects[item].mem)
			}
		}
	}
}

// window returns the part of a bin that is emptied: all of it if it has few items, and otherwise often
// only a random rectangle.
func (s *search) window(items int) maxrect.Rect {
	whole := maxrect.Rect{W: s.bin.W, H: s.bin.H}
	if items <= 8 || s.randomInt(4) == 0 {
		return whole
	}
	x, y := s.randomInt64(s.bin.W), s.randomInt64(s.bin.H)
	w, h := s.bin.W/8+s.randomInt64(s.bin.W/2)+1, s.bin.H/8+s.randomInt64(s.bin.H/2)+1
	return maxrect.Rect{X: x - w/2, Y: y - h/2, W: w, H: h}
}

// randomInt returns a random number from 0 to n - 1, for n far below 2^32. It avoids a division,
// because random numbers take much of the time of a step.
func (s *search) randomInt(n int) int { return int(s.rng.Uint64() >> 32 * uint64(n) >> 32) }

// randomInt64 returns a random number from 0 to n - 1, for any n.
func (s *search) randomInt64(n int64) int64 {
	hi, _ := bits.Mul64(s.rng.Uint64(), uint64(n))
	return int64(hi)
}

// recreate places the pool into the chosen bins, largest first by a randomly varied key.
func (s *search) recreate() {
	o := order(s.randomInt(4))
	noise := 1 + s.randomInt(300)
	rule := maxrect.Rule(s.randomInt(int(maxrect.Rules)))
	for _, i := range s.pool {
		r := s.rects[i]
		key := o.key(r.w, r.h, s.bin)
		for key > math.MaxInt64>>11 {
			key >>= 11
		}
		s.keys[i] = key * int64(1024+s.randomInt(noise))
	}
	slices.SortFunc(s.pool, func(a, b int32) int { return cmp.Or(cmp.Compare(s.keys[b], s.keys[a]), cmp.Compare(a, b)) })
	s.stillUnpacked = s.stillUnpacked[:0]
	for _, i := range s.pool {
		if !s.insert(i, rule) {
			s.stillUnpacked = append(s.stillUnpacked, i)
		}
	}
}

func (s *search) insert(item int32, rule maxrect.Rule) bool {
	r := s.rects[item]
	var best *openBin
	var place maxrect.Rect
	var lowest maxrect.Score
	for n := range s.chosen {
		l := s.scratch[n]
		if l.mem < r.mem {
			continue
		}
		at, score, ok := l.space.Find(r.w, r.h, rule)
		if ok && (best == nil || score.Less(lowest)) {
			best, place, lowest = l, at, score
		}
	}
	if best == nil {
		return false
	}
	best.add(item, place, r.mem)
	return true
}

// bins returns the loads as bins.
func (s *search) bins() []Filled {
	out := make([]Filled, len(s.openBins))
	for i, l := range s.openBins {
		out[i].Times = 1
		for j, item := range l.items {
			out[i].Items = append(out[i].Items, Placed{s.rects[item].kind, l.places[j].X, l.places[j].Y})
		}
	}
	return out
}

// improve searches for a better packing than p, and updates p, until it reaches the bound, the steps
// are spent, or stop returns true.
func improve(kinds []Kind, bin Bin, p *Packing, o Options, stop func() bool) {
	s := newSearch(kinds, bin, p.Bins, o.Seed)
	s.removeEmptiest()
	for n := 0; n < o.Steps; n++ {
		for len(s.unpacked) == 0 {
			p.Bins, p.Used = s.bins(), len(s.openBins)
			if p.Used <= p.Bound {
				return
			}
			s.removeEmptiest()
		}
		if n%16 == 0 && stop() {
			return
		}
		s.step()
	}
}
