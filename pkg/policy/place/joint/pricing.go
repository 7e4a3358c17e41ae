package joint

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// pricing is what one call of findPatterns leaves to the next.
type pricing struct {
	firstWeight int   // the weight of memory with which filling begins
	extraWork   int64 // done so far in looking longer
}

const (
	// memWeights is how many weights memory has in the size of instances, from
	// none to all.
	memWeights = 5
	// fillWork is when filling one GPU after the other takes long, in steps.
	fillWork = 1_000_000
	// memorySteps is how often the price of memory is halved.
	memorySteps = 12
	// finePrices is in how many parts a GPU's worth is priced as memory.
	finePrices = 20
	// polishTries is how often a pattern is changed in search of a better one.
	polishTries = 100
	// extraWork bounds looking longer, in steps.
	extraWork = 15_000_000
)

var wholeGPU = maxrect.Rect{W: One, H: One}

// findPatterns solves the pricing problem of column generation: it finds patterns of a
// class that are worth most, as far as guillotine cuts and filling find them,
// and a value that none exceeds. A request a second is worth price, as long as
// any are left. It looks longer as long as no pattern is worth more than
// enough. Once time is over it fills one GPU and bounds nothing.
func (s *solver) findPatterns(class int, price, left []float64, enough float64) (found []pattern, most float64) {
	c := &s.classes[class]
	if s.expired() {
		h := s.newHost(class, nil)
		s.fillSingles(h, prices{rate: price}, slices.Clone(left))
		return []pattern{s.pattern(GPU{class, AnyNode, h.items})}, math.Inf(1)
	}
	c.cutter.solve(price, left, 0)
	best := s.cutPattern(class, price, left)
	p := pricer{s: s, index: class, class: c, price: price, left: left, best: best, found: []pattern{best}, most: c.relaxed.bound()}
	if c.Room == Unlimited || c.Room <= 0 {
		return p.found, p.most
	}
	p.fillAtWeights(enough)
	if p.worth() <= enough {
		p.priceMemory()
	}
	if p.worth() <= enough && s.pricing.extraWork < extraWork && !s.expired() {
		before := s.work
		p.lookLonger()
		s.pricing.extraWork += s.work - before
	}
	return p.found, p.most
}

// cutPattern makes a pattern of the cutter's solution: what of it fits memory,
// and what fits besides.
func (s *solver) cutPattern(class int, price, left []float64) pattern {
	room := s.p.Classes[class].Room
	items := s.classes[class].cutter.cut(nil, s.p, wholeGPU)
	if room == Unlimited && !s.p.Tokens {
		return s.pattern(GPU{class, AnyNode, items})
	}
	h, left := s.newHost(class, nil), slices.Clone(left)
	for _, it := range items {
		if (room == Unlimited || left[it.Func] > 0) && h.hasMemory(it) {
			s.serve(h, s.withTurn(it), left)
		}
	}
	s.topUp(h, prices{rate: price}, left)
	return s.pattern(GPU{class, AnyNode, h.items})
}

// pricer looks for patterns of a class where memory is limited, and for a value
// that none exceeds.
type pricer struct {
	s           *solver
	index       int // of class
	class       *class
	price, left []float64
	best        pattern
	found       []pattern
	most        float64
}

func (p *pricer) worth() float64 { return p.best.worth(p.price, p.left) }

// offer adds a pattern and says what it is worth.
func (p *pricer) offer(t pattern) float64 {
	p.found = append(p.found, t)
	worth := t.worth(p.price, p.left)
	if worth > p.worth() {
		p.best = t
	}
	return worth
}

// fillAtWeights hosts what is worth most for its size, memory counting more or
// less; and on other GPUs what that leaves, as long as it is worth it. Where
// that takes long only one weight goes on, another the next time.
func (p *pricer) fillAtWeights(enough float64) {
	s, before := p.s, p.s.work
	for n := range memWeights {
		at := prices{rate: p.price, memWeight: float64((n+s.pricing.firstWeight)%memWeights) / (memWeights - 1)}
		for rest := slices.Clone(p.left); ; {
			h := s.newHost(p.index, nil)
			s.topUp(h, at, rest)
			if p.offer(s.pattern(GPU{p.index, AnyNode, h.items})) <= enough || enough <= 0 || n > 0 && s.work-before > fillWork {
				break
			}
		}
	}
	s.pricing.firstWeight = (s.pricing.firstWeight + 1) % memWeights
}

// priceMemory gives a byte a price (Lagrange): whatever the price, no pattern
// is worth more than the best without a limit, plus the price of all memory.
func (p *pricer) priceMemory() {
	s, c, room := p.s, p.class.cutter, p.class.Room
	for _, part := range []float64{0, 0.02, 0.2, 0.5} {
		p.packStrips(part)
	}
	low, high := 0.0, 0.0
	for mu, n := p.most/float64(room), 0; n < memorySteps; n++ {
		c.solve(p.price, p.left, mu)
		p.most = min(p.most, p.class.relaxed.bound()+mu*float64(room))
		if s.p.memoryOf(c.cut(nil, s.p, wholeGPU)) > room {
			low = mu
		} else {
			high = mu
		}
		p.offer(s.cutPattern(p.index, p.price, p.left))
		if mu = (low + high) / 2; high == 0 {
			mu = 2 * low
		}
	}
	p.class.bytePrice = high
}

// packStrips has all memory cost a part of a GPU's worth and packs strips.
func (p *pricer) packStrips(part float64) {
	if b := p.class.strips; b != nil {
		p.most = min(p.most, b.solve(p.class.cutter, p.price, p.left, part/float64(b.room))+part)
		p.offer(p.s.stripPattern(b, p.index, p.price, p.left))
	}
}

// lookLonger does the same at more prices, and then changes the best pattern.
func (p *pricer) lookLonger() {
	for n := 0; n < finePrices && p.most > 1; n++ {
		p.packStrips(float64(n+1) / finePrices)
	}
	if p.most > 1 && len(p.best.fns) > 0 {
		p.offer(p.s.polish(p.best, p.price, p.left))
	}
}

// polish looks for a more valuable pattern: some of the instances leave, others
// come in, those first that are worth the most for their size, in which memory
// counts more or less.
func (s *solver) polish(t pattern, price, left []float64) pattern {
	class := t.gpu.Class
	worth := t.worth(price, left)
	before := s.work
	for n := 0; n < polishTries && s.work-before < extraWork/10; n++ {
		h, rest := s.newHost(class, nil), slices.Clone(left)
		drop := 0.2 + 0.6*s.rng.Unit()
		for _, it := range t.gpu.Items {
			if s.rng.Unit() >= drop {
				s.serve(h, it, rest)
			}
		}
		s.topUp(h, prices{rate: price, memWeight: s.rng.Unit()}, rest)
		now := s.pattern(GPU{class, AnyNode, h.items})
		if w := now.worth(price, left); w >= worth {
			t, worth = now, w
		}
	}
	return t
}
