package joint

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// minHosts is the least number of open GPUs with which the search begins. It reopens decided GPUs
// to reach it.
const minHosts = 8

// search improves drafts.
type search struct {
	pack *packer
	rng  *splitmix.Source
}

// run lowers the number of GPUs towards maxGPUs, or the remaining demand if there are no more
// GPUs, by ruin and recreate (Schrimpf et al. 2000, Record breaking optimization results using
// the ruin and recreate principle): it empties a few GPUs and fills them again at prices that
// vary.
func (s *search) run(d *draft, price []float64, maxGPUs int, until int64) {
	s.reopen(d)
	best := slices.Clone(d.hosts)
	decided := 0
	for _, g := range d.groups {
		decided += g.Count
	}
	short := sum(d.unservedSingle()) > 0
	for len(d.hosts) > 0 && !s.pack.spent(until) {
		if !short {
			if decided+len(d.hosts) <= maxGPUs || !slices.ContainsFunc(d.hosts, func(h *host) bool { return h.pinned == 0 }) {
				break
			}
			d.drop(price)
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
	d.recount()
}

// opened returns a copy of a draft in which all GPUs without spanning instances are open.
func (s *search) opened(d *draft) *draft {
	out := &draft{requirement: d.requirement, hosts: slices.Clone(d.hosts), served: slices.Clone(d.served), counts: slices.Clone(d.counts)}
	for _, g := range d.groups {
		if g.GPU.Node != AnyNode {
			out.groups = append(out.groups, g)
			continue
		}
		for range g.Count {
			out.hosts = append(out.hosts, s.pack.newHost(g.GPU.Class, g.GPU.Items))
		}
	}
	return out
}

// reopen opens decided GPUs if few others are open.
func (s *search) reopen(d *draft) {
	for len(d.hosts) < minHosts && len(d.groups) > 0 {
		at := s.rng.Below(len(d.groups))
		g := &d.groups[at]
		d.hosts = append(d.hosts, s.pack.newHost(g.GPU.Class, g.GPU.Items))
		if g.Count--; g.Count == 0 {
			d.groups = slices.Delete(d.groups, at, at+1)
		}
	}
}

// patience is the number of tries without an improvement after which the search ends.
const patience = 4000

// A worse plan is accepted if it leaves at most heat times a random number more demand, in GPUs.
// The heat begins at startHeat and is multiplied by cooling after each accepted plan.
const (
	startHeat = 0.05
	cooling   = 0.9995
)

// repair ruins and recreates until no demand remains. It reports whether it achieved that before
// its work was spent; otherwise, it restores the best open GPUs that it found.
func (s *search) repair(d *draft, price []float64, until int64) bool {
	cost := d.costLeft(price)
	lowest, best := cost, slices.Clone(d.hosts)
	heat, since := startHeat, 0
	for cost > 0 && len(d.hosts) > 0 && since < patience && !s.pack.spent(until) {
		old, served := slices.Clone(d.hosts), slices.Clone(d.served)
		s.recreate(d, price, s.ruin(d))
		since++
		current := d.costLeft(price)
		if current > cost+heat*s.rng.Unit() {
			d.hosts, d.served = old, served
			continue
		}
		cost = current
		if cost < lowest {
			lowest, best, since = cost, slices.Clone(d.hosts), 0
		}
		heat *= cooling
	}
	if cost > 0 {
		d.hosts = best
		d.recount()
		return false
	}
	return true
}

// ruin empties a few GPUs, wholly or in part, and returns their indexes.
func (s *search) ruin(d *draft) []int {
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
		d.hosts[i] = s.pack.reopen(old, stay)
	}
	d.recount()
	return at
}

// recreate fills the GPUs again, at randomly varied prices.
func (s *search) recreate(d *draft, price []float64, at []int) {
	remaining := d.unservedSingle()
	varied := make([]float64, len(price))
	spread := 0.5 * s.rng.Unit()
	for f := range price {
		varied[f] = price[f] * (1 + spread*(2*s.rng.Unit()-1))
	}
	slices.SortFunc(at, func(a, b int) int { return cmp.Compare(len(d.hosts[b].items), len(d.hosts[a].items)) })
	for _, i := range at {
		s.fillVaried(d.hosts[i], varied, remaining)
	}
	d.recount()
}

// fillVaried fills a GPU. If memory is limited, it also varies the price and weight of memory.
func (s *search) fillVaried(h *host, price, remaining []float64) {
	at := s.pack.prices(h.class, price)
	if room := s.pack.p.Classes[h.class].Room; room == Unlimited || room <= 0 {
		s.pack.fill(h, at, remaining)
		return
	}
	at.mem *= 2 * s.rng.Unit()
	at.memWeight = s.rng.Unit()
	if s.rng.Below(2) == 0 {
		s.pack.fill(h, at, remaining)
	} else {
		s.pack.topUp(h, at, remaining)
	}
}
