package joint

import "slices"

const (
	// finer is in how many parts a GPU's worth is priced as memory.
	finer = 20
	// polishTries is how often a pattern is changed in search of a better one.
	polishTries = 100
	// polishWork bounds all such search, in steps.
	polishWork = 15_000_000
)

// closer looks longer for a pattern and a bound where memory may bind and what
// was proposed is worth no more than its GPU.
func (s *solver) closer(t pattern, most float64, class int, price, left []float64) (pattern, float64) {
	room := s.p.Classes[class].Room
	if room == Unlimited || room <= 0 || s.closing > polishWork || s.expired() {
		return t, most
	}
	before := s.done()
	if b := s.bars[class]; b != nil && most > 1 {
		for n := range finer {
			part := float64(n+1) / finer
			most = min(most, b.solve(s.cutters[class], price, left, part/float64(room), s.relaxed[class].tall.across)+part)
			if u := s.barPattern(b, class, price, left); u.worth(price, nil) > t.worth(price, nil) {
				t = u
			}
		}
	}
	if most > 1 && len(t.fns) > 0 {
		t = s.polish(t, price, left)
	}
	s.closing += s.done() - before
	return t, most
}

// polish looks for a more valuable pattern: some of the instances leave, others
// come in, those first that are worth the most for their area, less a price of
// memory that varies.
func (s *solver) polish(t pattern, price, left []float64) pattern {
	class := t.gpu.Class
	room := float64(s.p.Classes[class].Room)
	worth := t.worth(price, nil)
	before := s.done()
	for n := 0; n < polishTries && s.done()-before < polishWork/10; n++ {
		h, rest := s.host(class, nil), slices.Clone(left)
		drop := 0.2 + 0.6*s.rng.unit()
		for _, it := range t.gpu.Items {
			if s.rng.unit() >= drop {
				s.serve(h, it, rest)
			}
		}
		s.perByte = s.rng.unit() * worth / room
		s.fillUp(h, price, rest)
		s.perByte = 0
		s.fillUp(h, price, rest)
		now := s.pattern(GPU{class, AnyNode, h.items})
		if w := now.worth(price, nil); w >= worth {
			t, worth = now, w
		}
	}
	return t
}
