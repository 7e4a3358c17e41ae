package joint

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// pricing finds new patterns for the linear program. Its results vary from call to call.
type pricing struct {
	pack        *packer
	rng         *splitmix.Source
	firstWeight int   // index of the weight of memory with which filling begins
	extraWork   int64 // spent so far on extended searches (extendSearch)
}

const (
	// memWeights is the number of different weights of memory in the size of instances, from
	// 0 to 1.
	memWeights = 5
	// fillWork is the number of steps after which filling several GPUs per weight stops.
	fillWork = 1_000_000
	// memorySteps is the number of prices of memory in priceMemory.
	memorySteps = 12
	// finePrices is the number of prices of memory in extendSearch.
	finePrices = 20
	// polishTries limits the changes that polish makes to a pattern.
	polishTries = 100
	// extraWork limits all extended searches together, in steps.
	extraWork = 15_000_000
)

var wholeGPU = maxrect.Rect{W: One, H: One}

// findPatterns solves the pricing problem of column generation for a class. It returns the most
// valuable patterns that it can find, and an upper bound of the value of any pattern. A function's
// requests are worth its price up to its remaining demand. While no pattern is worth more than
// sufficient, it searches longer. Once the time has expired, it fills one GPU and returns infinity
// as the bound.
func (r *pricing) findPatterns(class int, price, remaining []float64, sufficient float64) (found []pattern, bound float64) {
	c := &r.pack.classes[class]
	if r.pack.expired() {
		h := r.pack.newHost(class, nil)
		r.pack.fillSingles(h, prices{rate: price}, slices.Clone(remaining))
		return []pattern{r.pack.p.pattern(class, h.items)}, math.Inf(1)
	}
	c.cutter.solve(price, remaining, 0)
	p := pricer{pricing: r, index: class, class: c, price: price, remaining: remaining, bound: c.relaxed.bound()}
	p.best = p.cutPattern()
	p.found = []pattern{p.best}
	if c.Room == Unlimited || c.Room <= 0 {
		return p.found, p.bound
	}
	p.fillAtWeights(sufficient)
	if p.worth() <= sufficient {
		p.priceMemory()
	}
	if p.worth() <= sufficient && r.extraWork < extraWork && !r.pack.expired() {
		before := r.pack.work
		p.extendSearch()
		r.extraWork += r.pack.work - before
	}
	return p.found, p.bound
}

// pricer finds patterns of a class with limited memory, and an upper bound of their value.
type pricer struct {
	*pricing
	index            int // of class
	class            *class
	price, remaining []float64
	best             pattern
	found            []pattern
	bound            float64
}

func (p *pricer) worth() float64 { return p.best.worth(p.price, p.remaining) }

// offer adds a pattern and returns its worth.
func (p *pricer) offer(t pattern) float64 {
	p.found = append(p.found, t)
	worth := t.worth(p.price, p.remaining)
	if worth > p.worth() {
		p.best = t
	}
	return worth
}

// cutPattern returns a pattern with the items of the cutter's solution that fit the memory, and
// with more instances where there is room.
func (p *pricer) cutPattern() pattern {
	room := p.class.Room
	items := p.class.cutter.cut(nil, p.pack.p, wholeGPU)
	if room == Unlimited && !p.pack.p.Tokens {
		return p.pack.p.pattern(p.index, items)
	}
	h, remaining := p.pack.newHost(p.index, nil), slices.Clone(p.remaining)
	for _, it := range items {
		if (room == Unlimited || remaining[it.Func] > 0) && h.hasMemory(it) {
			p.pack.serve(h, p.pack.p.withTurn(it), remaining)
		}
	}
	p.pack.topUp(h, prices{rate: p.price}, remaining)
	return p.pack.p.pattern(p.index, h.items)
}

// fillAtWeights adds greedily filled patterns, for several weights of memory. It continues with
// the demand that a pattern leaves while the next pattern is worth more than sufficient. After
// fillWork steps only the first weight continues so; that weight differs from call to call.
func (p *pricer) fillAtWeights(sufficient float64) {
	before := p.pack.work
	for n := range memWeights {
		at := prices{rate: p.price, memWeight: float64((n+p.firstWeight)%memWeights) / (memWeights - 1)}
		for unserved := slices.Clone(p.remaining); ; {
			h := p.pack.newHost(p.index, nil)
			p.pack.topUp(h, at, unserved)
			if p.offer(p.pack.p.pattern(p.index, h.items)) <= sufficient || sufficient <= 0 || n > 0 && p.pack.work-before > fillWork {
				break
			}
		}
	}
	p.firstWeight = (p.firstWeight + 1) % memWeights
}

// priceMemory tries different prices of memory (Lagrangian relaxation). At any price, no pattern
// is worth more than the best pattern without a memory limit plus the price of all memory.
func (p *pricer) priceMemory() {
	c, room := p.class.cutter, p.class.Room
	for _, fraction := range []float64{0, 0.02, 0.2, 0.5} {
		p.packStrips(fraction)
	}
	low, high := 0.0, 0.0
	for mu, n := p.bound/float64(room), 0; n < memorySteps; n++ {
		c.solve(p.price, p.remaining, mu)
		p.bound = min(p.bound, p.class.relaxed.bound()+mu*float64(room))
		if p.pack.p.memoryOf(c.cut(nil, p.pack.p, wholeGPU)) > room {
			low = mu
		} else {
			high = mu
		}
		p.offer(p.cutPattern())
		if mu = (low + high) / 2; high == 0 {
			mu = 2 * low
		}
	}
	p.class.bytePrice = high
}

// packStrips solves the strip knapsack with a price of all memory of fraction, in GPUs.
func (p *pricer) packStrips(fraction float64) {
	if b := p.class.strips; b != nil {
		p.bound = min(p.bound, b.solve(p.class.cutter, p.price, p.remaining, fraction/float64(b.room))+fraction)
		p.offer(p.stripPattern(b))
	}
}

// extendSearch packs strips at more prices, and then polishes the best pattern.
func (p *pricer) extendSearch() {
	for n := 0; n < finePrices && p.bound > 1; n++ {
		p.packStrips(float64(n+1) / finePrices)
	}
	if p.bound > 1 && len(p.best.fns) > 0 {
		p.offer(p.polish())
	}
}

// polish searches for a more valuable pattern than the best one. It repeatedly removes some
// instances and adds others, those with the most worth for their size first, with random weights
// of memory.
func (p *pricer) polish() pattern {
	t, worth := p.best, p.worth()
	before := p.pack.work
	for n := 0; n < polishTries && p.pack.work-before < extraWork/10; n++ {
		h, unserved := p.pack.newHost(p.index, nil), slices.Clone(p.remaining)
		drop := 0.2 + 0.6*p.rng.Unit()
		for _, it := range t.gpu.Items {
			if p.rng.Unit() >= drop {
				p.pack.serve(h, it, unserved)
			}
		}
		p.pack.topUp(h, prices{rate: p.price, memWeight: p.rng.Unit()}, unserved)
		candidate := p.pack.p.pattern(p.index, h.items)
		if w := candidate.worth(p.price, p.remaining); w >= worth {
			t, worth = candidate, w
		}
	}
	return t
}

// stripPattern places the best set of the last strip knapsack on a GPU. Each instance gets a strip
// of SMs and is repeated along it while the window, the memory and the demand allow.
func (p *pricer) stripPattern(b *stripKnapsack) pattern {
	h, remaining := p.pack.newHost(p.index, nil), slices.Clone(p.remaining)
	var strips []Item
	y := int64(0)
	for _, it := range b.best() {
		o := p.pack.p.Funcs[it.of.fn].Options[it.of.opt]
		strips = append(strips, Item{Func: it.of.fn, Option: it.of.opt, At: maxrect.Rect{Y: y, W: o.W, H: o.H}})
		y += o.H
	}
	for added := true; added; {
		added = false
		for n := range strips {
			it := &strips[n]
			if remaining[it.Func] > 0 && it.At.X+it.At.W <= One && it.At.Y+it.At.H <= One && h.hasMemory(*it) {
				p.pack.serve(h, p.pack.p.withTurn(*it), remaining)
				it.At.X += it.At.W
				added = true
			}
		}
	}
	p.pack.topUp(h, prices{rate: p.price}, remaining)
	return p.pack.p.pattern(p.index, h.items)
}
