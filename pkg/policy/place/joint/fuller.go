package joint

import "slices"

const (
	// balances is how many ways memory counts against area.
	balances = 5
	// fillWork is when filling one GPU after the other takes long, in steps.
	fillWork = 1_000_000
	// memorySteps is how often the price of memory is halved in on.
	memorySteps = 12
	// finer is in how many parts a GPU's worth is priced as memory.
	finer = 20
	// polishTries is how often a pattern is changed in search of a better one.
	polishTries = 100
	// polishWork bounds looking longer, in steps.
	polishWork = 15_000_000
)

// fuller looks for patterns where memory is limited, and for a value that none
// exceeds.
type fuller struct {
	s           *solver
	class       int
	price, left []float64
	best        pattern
	all         []pattern
	most        float64
}

func (f *fuller) worth() float64 { return f.best.worth(f.price, f.left) }

// offer adds a pattern and says what it is worth.
func (f *fuller) offer(t pattern) float64 {
	f.all = append(f.all, t)
	worth := t.worth(f.price, f.left)
	if worth > f.worth() {
		f.best = t
	}
	return worth
}

// propose looks longer as long as no pattern is worth more than enough.
func (f *fuller) propose(enough float64) {
	f.fill(enough)
	if f.worth() <= enough {
		f.charge()
	}
	if f.worth() <= enough && f.s.closing < polishWork && !f.s.expired() {
		before := f.s.done()
		f.closer()
		f.s.closing += f.s.done() - before
	}
}

// fill hosts what is worth most for its size, memory counting more or less; and
// on other GPUs what that leaves, as long as it is worth it. Where that takes
// long only one way of counting goes on, another the next time.
func (f *fuller) fill(enough float64) {
	s, before := f.s, f.s.done()
	for n := range balances {
		s.heavy = float64((n+s.balance)%balances) / (balances - 1)
		for rest := slices.Clone(f.left); ; {
			h := s.host(f.class, nil)
			s.fillUp(h, f.price, rest)
			if f.offer(s.pattern(GPU{f.class, AnyNode, h.items})) <= enough || enough <= 0 || n > 0 && s.done()-before > fillWork {
				break
			}
		}
	}
	s.heavy, s.balance = 0, (s.balance+1)%balances
}

// charge gives a byte a price (Lagrange): whatever the price, no pattern is
// worth more than the best without a limit, plus the price of all memory.
func (f *fuller) charge() {
	s, c, room := f.s, f.s.cutters[f.class], f.s.p.Classes[f.class].Room
	for _, part := range []float64{0, 0.02, 0.2, 0.5} {
		f.stack(part)
	}
	low, high := 0.0, 0.0
	for mu, n := f.most/float64(room), 0; n < memorySteps; n++ {
		c.solve(f.price, f.left, mu)
		f.most = min(f.most, s.relaxed[f.class].bound()+mu*float64(room))
		if s.memory(c.cut(nil, s.p, wholeGPU)) > room {
			low = mu
		} else {
			high = mu
		}
		s.mu[f.class] = mu
		f.offer(s.settle(f.class, f.price, f.left))
		if mu = (low + high) / 2; high == 0 {
			mu = 2 * low
		}
	}
	s.mu[f.class] = high
}

// stack has all memory cost a part of a GPU's worth and stacks bars.
func (f *fuller) stack(part float64) {
	s := f.s
	if b := s.bars[f.class]; b != nil {
		f.most = min(f.most, b.solve(s.cutters[f.class], f.price, f.left, part/float64(b.room), s.relaxed[f.class].tall.across)+part)
		f.offer(s.barPattern(b, f.class, f.price, f.left))
	}
}

// closer does the same at more prices, and then changes the best pattern.
func (f *fuller) closer() {
	for n := 0; n < finer && f.most > 1; n++ {
		f.stack(float64(n+1) / finer)
	}
	if f.most > 1 && len(f.best.fns) > 0 {
		f.offer(f.s.polish(f.best, f.price, f.left))
	}
}

// limited says whether memory is limited on any GPU.
func (s *solver) limited() bool {
	return slices.ContainsFunc(s.p.Classes, func(c Class) bool { return c.Room != Unlimited })
}

// polish looks for a more valuable pattern: some of the instances leave, others
// come in, those first that are worth the most for their size, in which memory
// counts more or less.
func (s *solver) polish(t pattern, price, left []float64) pattern {
	class := t.gpu.Class
	worth := t.worth(price, left)
	before := s.done()
	for n := 0; n < polishTries && s.done()-before < polishWork/10; n++ {
		h, rest := s.host(class, nil), slices.Clone(left)
		drop := 0.2 + 0.6*s.rng.Unit()
		for _, it := range t.gpu.Items {
			if s.rng.Unit() >= drop {
				s.serve(h, it, rest)
			}
		}
		s.heavy = s.rng.Unit()
		s.fillUp(h, price, rest)
		s.heavy = 0
		now := s.pattern(GPU{class, AnyNode, h.items})
		if w := now.worth(price, left); w >= worth {
			t, worth = now, w
		}
	}
	return t
}
