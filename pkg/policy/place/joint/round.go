package joint

import (
	"cmp"
	"math"
	"slices"
)

// draft is a plan in the making: GPUs that are decided, and those that the
// search may still change.
type draft struct {
	groups []Group
	hosts  []*host
	served []float64 // by function, of all
	counts []int     // by class, GPUs that are not used yet
}

func (s *solver) draft() *draft {
	return &draft{served: make([]float64, len(s.p.Funcs)), counts: s.counts()}
}

// gpus counts the GPUs that host something.
func (d *draft) gpus() int {
	n := 0
	for _, g := range d.groups {
		n += g.Count
	}
	for _, h := range d.hosts {
		if len(h.items) > 0 {
			n++
		}
	}
	return n
}

// round turns the program's solution into whole GPUs: patterns used at least
// once are decided, what remains is served by diving. What spans GPUs is placed
// already.
func (s *solver) round(d *draft, uses []use, price []float64) {
	for _, u := range uses {
		if n := int(u.count + 1e-6); n > 0 && s.gang(s.pool[u.pattern].gpu.Items) == 1 {
			s.decide(d, s.pool[u.pattern], n)
		}
	}
	s.dive(d, price)
}

// decide takes n GPUs of a pattern.
func (s *solver) decide(d *draft, t pattern, n int) {
	if d.counts[t.gpu.Class] != Elastic {
		n = min(n, d.counts[t.gpu.Class])
		d.counts[t.gpu.Class] -= n
	}
	if n <= 0 {
		return
	}
	d.groups = append(d.groups, Group{t.gpu, n})
	for k, f := range t.fns {
		d.served[f] += float64(n) * t.rates[k]
	}
}

// left is what is not served yet. What nothing can serve is not counted.
func (s *solver) left(served []float64) []float64 {
	out := make([]float64, len(served))
	for f := range out {
		if s.unit[f] > 0 {
			out[f] = s.p.Funcs[f].left(served[f])
		}
	}
	return out
}

// dive serves what is left: again and again the program of what is left is
// solved and the patterns it uses most are decided.
func (s *solver) dive(d *draft, price []float64) {
	for {
		left := s.rest(d.served)
		if sum(left) == 0 || !slices.ContainsFunc(d.counts, func(n int) bool { return n != 0 }) {
			return
		}
		uses := s.refine(left, d.counts)
		slices.SortStableFunc(uses, func(a, b use) int { return cmp.Compare(b.count, a.count) })
		gpus := 0.0
		for _, u := range uses {
			gpus += u.count
		}
		some := false
		for i, u := range uses {
			if n := math.Floor(u.count + 1e-6); n >= 1 || i <= int(gpus/diveSteps) {
				some = s.open(d, s.pool[u.pattern], max(1, int(n)), price) || some
			}
		}
		for k := 0; k < len(d.counts) && !some; k++ {
			some = s.open(d, pattern{gpu: GPU{Class: k}}, 1, price)
		}
		if !some {
			return
		}
	}
}

// diveSteps is about how many programs are solved until nothing is left.
const diveSteps = 12

// open takes n GPUs that host what of the pattern is still wanted, and what
// fits besides.
func (s *solver) open(d *draft, t pattern, n int, price []float64) (some bool) {
	k := t.gpu.Class
	for ; n > 0 && d.counts[k] != 0; n-- {
		left := s.rest(d.served)
		h := s.host(k, nil)
		s.keepWanted(h, t.gpu.Items, left)
		s.fill(h, price, left)
		if len(h.items) == 0 {
			return some
		}
		some = true
		s.join(d, h)
	}
	return some
}

// keepWanted hosts what of the items is still wanted.
func (s *solver) keepWanted(h *host, items []Item, left []float64) {
	for _, it := range items {
		if left[it.Func] <= 0 {
			continue
		}
		if !s.p.Tokens { // under tokens an item's turns are its own
			it = s.shrink(h.class, it, left[it.Func])
		}
		if h.remembers(s.p, it) {
			s.serve(h, it, left)
		}
	}
}

// join adds an open GPU to a draft.
func (s *solver) join(d *draft, h *host) {
	d.hosts = append(d.hosts, h)
	if d.counts[h.class] != Elastic {
		d.counts[h.class]--
	}
	for _, it := range h.items {
		d.served[it.Func] += s.p.Funcs[it.Func].Options[it.Option].Rate
	}
}

// refine solves the program of what is left with patterns that serve no more
// of a function than is left of it.
func (s *solver) refine(left []float64, counts []int) []use {
	m := s.master(left, counts, true)
	for range refineRounds {
		s.solve(m, rounds)
		if s.spent() {
			break
		}
		price, scarce := s.priced(m)
		added := false
		for k := range counts {
			if counts[k] == 0 {
				continue
			}
			h := s.host(k, nil)
			s.fill(h, price, slices.Clone(left))
			t := s.pattern(GPU{k, AnyNode, h.items})
			if t.worth(price, left) > 1-scarce[k]+1e-6 && s.keep(t) {
				s.offer(m, len(s.pool)-1)
				added = true
			}
		}
		if !added {
			break
		}
	}
	var out []use
	m.Solution(func(column int, value float64) { out = append(out, use{m.of[column], value}) })
	return out
}

const refineRounds = 100

func sum(v []float64) float64 {
	total := 0.0
	for _, x := range v {
		total += x
	}
	return total
}
