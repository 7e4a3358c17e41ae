package joint

import (
	"cmp"
	"slices"
)

// defaultWork bounds the rounding and the search so that a plan takes well under
// a second.
const defaultWork = 10_000_000

// minHosts is how many GPUs the search has to choose among, if there are so
// many: it opens some that were decided.
const minHosts = 8

// search lowers the number of GPUs towards target, or what is left when there
// are no more of them, by ruin and recreate (Schrimpf et al. 2000): a few GPUs
// are emptied and filled anew at prices that vary.
func (s *solver) search(d *draft, price []float64, target int) {
	s.reopen(d)
	best := slices.Clone(d.hosts)
	decided := 0
	for _, g := range d.groups {
		decided += g.Count
	}
	short := sum(s.rest(d.served)) > 0
	for len(d.hosts) > 0 && !s.spent() {
		if !short {
			if decided+len(d.hosts) <= target || !loose(d) {
				break
			}
			s.drop(d, price)
		}
		if !s.repair(d, price) {
			break
		}
		best, short = slices.Clone(d.hosts), false
	}
	if short {
		return
	}
	d.hosts = best
	s.recount(d)
}

func (s *solver) spent() bool { return s.done() >= s.limit || s.expired() }

func (s *solver) expired() bool { return s.o.Expired != nil && s.o.Expired() }

// done is the work done so far.
func (s *solver) done() int64 {
	work := s.work
	for _, c := range s.cutters {
		work += c.work
	}
	return work
}

// reopen lets the search change decided GPUs, too, when there are few others.
func (s *solver) reopen(d *draft) {
	for len(d.hosts) < minHosts && len(d.groups) > 0 {
		at := s.rng.Below(len(d.groups))
		g := &d.groups[at]
		d.hosts = append(d.hosts, s.host(g.GPU.Class, g.GPU.Items))
		if g.Count--; g.Count == 0 {
			d.groups = slices.Delete(d.groups, at, at+1)
		}
	}
}

// recount sums up again what is served.
func (s *solver) recount(d *draft) {
	clear(d.served)
	for _, g := range d.groups {
		for _, it := range g.GPU.Items {
			d.served[it.Func] += float64(g.Count) * s.rate(it)
		}
	}
	for _, h := range d.hosts {
		for _, it := range h.items {
			d.served[it.Func] += s.rate(it)
		}
	}
}

func (s *solver) rate(it Item) float64 { return s.p.Funcs[it.Func].Options[it.Option].Rate }

// drop closes the GPU that serves the least, of those that may be.
func (s *solver) drop(d *draft, price []float64) {
	worth := func(h *host) float64 {
		total := 0.0
		for _, it := range h.items {
			total += price[it.Func] * s.rate(it)
		}
		return total
	}
	at := -1
	for i, h := range d.hosts {
		if h.pinned == 0 && (at < 0 || worth(h) < worth(d.hosts[at])) {
			at = i
		}
	}
	if h := d.hosts[at]; d.counts[h.class] != Elastic {
		d.counts[h.class]++
	}
	d.hosts = slices.Delete(d.hosts, at, at+1)
	s.recount(d)
}

// repair ruins and recreates until nothing is left. It says whether it came to
// that before its work was spent; otherwise the least that was left stays.
func (s *solver) repair(d *draft, price []float64) bool {
	cost := s.cost(s.rest(d.served), price)
	least, best := cost, slices.Clone(d.hosts)
	heat, since := startHeat, 0
	for cost > 0 && len(d.hosts) > 0 && since < patience && !s.spent() {
		old, served := slices.Clone(d.hosts), slices.Clone(d.served)
		s.recreate(d, price, s.ruin(d))
		since++
		now := s.cost(s.rest(d.served), price)
		if now > cost+heat*s.rng.Unit() {
			d.hosts, d.served = old, served
			continue
		}
		cost = now
		if cost < least {
			least, best, since = cost, slices.Clone(d.hosts), 0
		}
		heat *= cooling
	}
	if cost > 0 {
		d.hosts = best
		s.recount(d)
		return false
	}
	return true
}

// patience is how often the search tries without leaving less.
const patience = 4000

// A worse plan is taken if it leaves at most so much more, in GPUs.
const (
	startHeat = 0.05
	cooling   = 0.9995
)

func (s *solver) cost(left, price []float64) float64 {
	total := 0.0
	for f, v := range left {
		total += v * price[f]
	}
	return total
}

// ruin empties some GPUs, wholly or in part, and lists them.
func (s *solver) ruin(d *draft) []int {
	n := min(1+s.rng.Below(3), len(d.hosts))
	var at []int
	for len(at) < n {
		if i := s.rng.Below(len(d.hosts)); !slices.Contains(at, i) {
			at = append(at, i)
		}
	}
	for _, i := range at {
		old := d.hosts[i]
		keep := slices.Clone(old.items[:old.pinned])
		if s.rng.Below(2) == 0 {
			for _, it := range old.items[old.pinned:] {
				if s.rng.Below(2) == 0 {
					keep = append(keep, it)
				}
			}
		}
		d.hosts[i] = s.host(old.class, keep)
		d.hosts[i].node, d.hosts[i].pinned = old.node, old.pinned
	}
	s.recount(d)
	return at
}

// recreate fills the GPUs again, at prices that vary.
func (s *solver) recreate(d *draft, price []float64, at []int) {
	left := s.rest(d.served)
	varied := make([]float64, len(price))
	spread := 0.5 * s.rng.Unit()
	for f := range price {
		varied[f] = price[f] * (1 + spread*(2*s.rng.Unit()-1))
	}
	slices.SortFunc(at, func(a, b int) int { return cmp.Compare(len(d.hosts[b].items), len(d.hosts[a].items)) })
	for _, i := range at {
		s.fillVaried(d.hosts[i], varied, left)
	}
	s.recount(d)
}

// fillVaried fills a GPU at a price of memory that varies, too.
func (s *solver) fillVaried(h *host, price, left []float64) {
	room := s.p.Classes[h.class].Room
	if room == Unlimited || room <= 0 {
		s.fill(h, price, left)
		return
	}
	mu := s.mu[h.class]
	s.mu[h.class], s.heavy = mu*2*s.rng.Unit(), s.rng.Unit()
	if s.rng.Below(2) == 0 {
		s.fill(h, price, left)
	} else {
		s.fillUp(h, price, left)
	}
	s.mu[h.class], s.heavy = mu, 0
}
