package joint

import (
	"cmp"
	"math"
	"slices"
)

// minHosts is how many GPUs the search has to choose among, if there are so
// many: it opens some that were decided.
const minHosts = 8

// search lowers the number of GPUs towards target, or what is left when there
// are no more of them, by ruin and recreate (Schrimpf et al. 2000, Record
// breaking optimization results using the ruin and recreate principle): a few
// GPUs are emptied and filled anew at prices that vary.
func (s *solver) search(d *draft, price []float64, target int, until int64) {
	s.reopen(d)
	best := slices.Clone(d.hosts)
	decided := 0
	for _, g := range d.groups {
		decided += g.Count
	}
	short := sum(s.unservedSingle(d.served)) > 0
	for len(d.hosts) > 0 && !s.spent(until) {
		if !short {
			if decided+len(d.hosts) <= target || !slices.ContainsFunc(d.hosts, func(h *host) bool { return h.pinned == 0 }) {
				break
			}
			s.drop(d, price)
		}
		if !s.repair(d, price, until) {
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

// spend improves attempts in turn until time is over, if it is to be spent, or
// one of them meets the target.
func spend(target int, o Options, attempts ...*attempt) {
	met := func(a *attempt) bool { return a.meets(target) }
	for o.Spend && o.Expired != nil && !o.Expired() && !slices.ContainsFunc(attempts, met) {
		for _, a := range attempts {
			a.improve()
		}
	}
}

// improve packs a fleet anew, which goes by chance in part, and searches from
// all GPUs.
func (a *attempt) improve() {
	if a.meets(a.bound) {
		return
	}
	s := a.s
	if a.fleet != nil {
		f := a.fleet.f
		f.hurried = true // there is a plan
		a.take(f.draft(f.pack(a.bound)))
	}
	d := s.opened(a.draft)
	s.search(d, s.weights(s.withLeastPrices(a.price), d), a.bound, math.MaxInt64)
	a.take(d)
}

// opened is a copy of a draft with all GPUs open to the search that are not of
// spanning instances.
func (s *solver) opened(d *draft) *draft {
	out := &draft{hosts: slices.Clone(d.hosts), served: slices.Clone(d.served), counts: slices.Clone(d.counts)}
	for _, g := range d.groups {
		if g.GPU.Node != AnyNode {
			out.groups = append(out.groups, g)
			continue
		}
		for range g.Count {
			out.hosts = append(out.hosts, s.newHost(g.GPU.Class, g.GPU.Items))
		}
	}
	return out
}

// reopen lets the search change decided GPUs, too, when there are few others.
func (s *solver) reopen(d *draft) {
	for len(d.hosts) < minHosts && len(d.groups) > 0 {
		at := s.rng.Below(len(d.groups))
		g := &d.groups[at]
		d.hosts = append(d.hosts, s.newHost(g.GPU.Class, g.GPU.Items))
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
			d.served[it.Func] += float64(g.Count) * s.p.option(it).Rate
		}
	}
	for _, h := range d.hosts {
		d.serve(h.items, s.p)
	}
}

// drop closes the GPU that serves the least, of those without spanning
// instances.
func (s *solver) drop(d *draft, price []float64) {
	worth := func(h *host) float64 {
		total := 0.0
		for _, it := range h.items {
			total += price[it.Func] * s.p.option(it).Rate
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

// patience is how often the search tries without leaving less.
const patience = 4000

// A worse plan is taken if it leaves at most so much more, in GPUs, times a
// random number: at first, and what each plan taken makes of that.
const (
	startHeat = 0.05
	cooling   = 0.9995
)

// repair ruins and recreates until nothing is left. It says whether it came to
// that before its work was spent; otherwise the least that was left stays.
func (s *solver) repair(d *draft, price []float64, until int64) bool {
	cost := s.costLeft(d, price)
	least, best := cost, slices.Clone(d.hosts)
	heat, since := startHeat, 0
	for cost > 0 && len(d.hosts) > 0 && since < patience && !s.spent(until) {
		old, served := slices.Clone(d.hosts), slices.Clone(d.served)
		s.recreate(d, price, s.ruin(d))
		since++
		now := s.costLeft(d, price)
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

// costLeft is what is left of functions that span one GPU, in GPUs.
func (s *solver) costLeft(d *draft, price []float64) float64 {
	total := 0.0
	for f, v := range s.unservedSingle(d.served) {
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
		stay := slices.Clone(old.items[:old.pinned])
		if s.rng.Below(2) == 0 {
			for _, it := range old.items[old.pinned:] {
				if s.rng.Below(2) == 0 {
					stay = append(stay, it)
				}
			}
		}
		d.hosts[i] = s.reopened(old, stay)
	}
	s.recount(d)
	return at
}

// recreate fills the GPUs again, at prices that vary.
func (s *solver) recreate(d *draft, price []float64, at []int) {
	left := s.unservedSingle(d.served)
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

// fillVaried fills a GPU; where memory is limited, at a price and weight of
// memory that vary, too.
func (s *solver) fillVaried(h *host, price, left []float64) {
	at := s.prices(h.class, price)
	if room := s.p.Classes[h.class].Room; room == Unlimited || room <= 0 {
		s.fill(h, at, left)
		return
	}
	at.mem *= 2 * s.rng.Unit()
	at.memWeight = s.rng.Unit()
	if s.rng.Below(2) == 0 {
		s.fill(h, at, left)
	} else {
		s.topUp(h, at, left)
	}
}
