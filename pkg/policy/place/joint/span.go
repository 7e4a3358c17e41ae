package joint

import (
	"cmp"
	"slices"
)

// An instance of a function with a span of N uses N GPUs of one node, with the same configuration
// on each. The linear program counts its part on each GPU separately. Such instances are placed
// first; each GPU is then filled with other functions separately. There are two ways to place
// them:
//
//   - In gangs (placeGangs): L GPUs of a node host the same items, where L is a multiple of the
//     spans of all items.
//   - One by one (placeSingly): each instance is placed on the GPUs that it fits best.

// spanner places functions that span several GPUs.
type spanner struct {
	pack        *packer
	requirement *requirement
	count       int // instances placed so far
}

// placeGangs places the spanning instances of the program's solution, and then the remaining
// demand of such functions.
func (s *spanner) placeGangs(d *draft, uses []use, price []float64) {
	for _, u := range uses {
		if items := s.pack.p.spanningItems(u.pattern.gpu.Items); len(items) > 0 {
			s.openGangs(u, items, func() bool { return s.fillGang(d, items, price) })
		}
	}
	var all []int
	for f := range s.pack.p.Funcs {
		if s.pack.p.span(f) > 1 {
			all = append(all, f)
		}
	}
	s.serve(d, price, all...)
	s.serveInOrder(d, all, price) // alone a function needs no more GPUs together than its span
}

// openGangs calls open for each whole gang of items in a use of the program's solution until
// one fails.
func (s *spanner) openGangs(u use, items []Item, open func() bool) {
	for n := wholeUses(u) / s.pack.p.gangSize(items); n > 0 && open(); n-- {
	}
}

// serve opens GPUs for the unserved demand of some functions, as long as there are any.
func (s *spanner) serve(d *draft, price []float64, of ...int) {
	for k := 0; k < len(s.pack.p.Classes); {
		remaining, unserved := make([]float64, len(d.served)), d.unserved()
		var wanted []Item
		for _, f := range of {
			if unserved[f] > 0 {
				wanted = append(wanted, Item{Func: f})
			}
		}
		if len(wanted) == 0 {
			return
		}
		for _, it := range wanted {
			remaining[it.Func] = unserved[it.Func] / float64(s.pack.p.gangSize(wanted))
		}
		h := s.pack.newHost(k, nil)
		s.pack.fill(h, s.pack.prices(k, price), remaining)
		if len(h.items) == 0 || !s.fillGang(d, h.items, price) {
			k++
		}
	}
}

// serveInOrder opens GPUs for one function after the other.
func (s *spanner) serveInOrder(d *draft, order []int, price []float64) {
	for _, f := range order {
		s.serve(d, price, f)
	}
}

// fillGang opens GPUs of one node that host the same items, and fills them up. It reports
// whether there were enough.
func (s *spanner) fillGang(d *draft, items []Item, price []float64) bool {
	from := len(d.hosts)
	if !s.openGang(d, items) {
		return false
	}
	s.fillHosts(d, d.hosts[from:], price)
	return true
}

// fillHosts fills GPUs with functions that span one.
func (s *spanner) fillHosts(d *draft, hosts []*host, price []float64) {
	for _, h := range hosts {
		before := len(h.items)
		s.pack.fill(h, s.pack.prices(h.class, price), d.unservedSingle())
		d.serve(h.items[before:])
	}
}

// openGang opens GPUs of one node that host the same items. It reports whether there were
// enough.
func (s *spanner) openGang(d *draft, items []Item) bool {
	n := s.pack.p.gangSize(items)
	for node := range s.pack.p.nodes() {
		classes := d.freeTogether(items, node, n)
		if len(classes) < n {
			continue
		}
		from := s.count
		for j, k := range classes {
			h := s.pack.newHost(k, nil)
			h.node = node
			for i, it := range items {
				it.Gang = 1 + from + i*n + j/s.pack.p.span(it.Func)
				h.add(it)
			}
			s.count = max(s.count, from+len(items)*n)
			h.pinned = len(h.items)
			d.addHost(h)
		}
		return true
	}
	return false
}

// singlyWork allows for about 3,000 instances on 700 GPUs, which take a tenth of
// a second; from some 10,000 on gangs are nearly as good.
const singlyWork = 4

// placeSingly places functions that span several GPUs, the largest spans first: whole gangs of
// the program's solution, then each instance where it needs the fewest more GPUs. It returns
// false if that took more than singlyWork times the work limit; then, the draft is useless.
func (s *spanner) placeSingly(d *draft, uses []use, price []float64, limit int64) bool {
	from := s.pack.work
	for _, n := range s.pack.p.spansByWidth() {
		for _, u := range uses {
			if items := s.pack.p.spanningItems(u.pattern.gpu.Items); s.pack.p.widestOf(items) == n {
				s.openGangs(u, items, func() bool { return s.openGang(d, items) })
			}
		}
		for _, f := range s.requirement.spanning(n) {
			for s.placeOne(d, f) {
				if s.pack.work-from > singlyWork*limit || s.pack.expired() {
					return false
				}
			}
		}
	}
	s.fillHosts(d, d.hosts, price)
	return true
}

// placement is a place for an instance on several GPUs.
type placement struct {
	node   int
	hosts  []*host // in use, in ascending order of free area
	items  []Item  // for each of hosts, where on it
	unused []int   // classes of GPUs to be taken besides
	area   int64   // free on hosts
	spare  int     // GPUs of the node that are not taken, where they are counted
}

// compare orders placements, the best first: fewest additional GPUs, then the least
// free area on the GPUs that it uses, then the fewest remaining GPUs on the node.
func (l *placement) compare(o *placement) int {
	return cmp.Or(cmp.Compare(len(l.unused), len(o.unused)), cmp.Compare(l.area, o.area), cmp.Compare(l.spare, o.spare))
}

// placeOne places one instance of a function, if it wants one and there is room, and reports
// whether it did. Among the options that are at least half as dense as the densest, it chooses the
// option that needs the fewest additional GPUs. It tries other options only if no such option fits.
func (s *spanner) placeOne(d *draft, f int) bool {
	remaining := d.unserved()[f]
	if remaining == 0 {
		return false
	}
	var best *placement
	option := 0
	all, loads := s.requirement.byDensity(f, remaining), s.loads(d)
	for _, r := range all {
		if best != nil && (len(best.unused) == 0 || 2*r.density < all[0].density) {
			break
		}
		if l := s.bestPlacement(d, loads, Item{Func: f, Option: r.opt}); l != nil && (best == nil || len(l.unused) < len(best.unused)) {
			best, option = l, r.opt
		}
	}
	if best == nil {
		return false
	}
	s.place(d, best, Item{Func: f, Option: option})
	return true
}

// bestPlacement returns the best placement of an instance over all nodes; nil if there is no
// room.
func (s *spanner) bestPlacement(d *draft, loads [][]load, it Item) (best *placement) {
	for node := range s.pack.p.nodes() {
		if l := s.placementOn(d, loads[node], it, node); l != nil && (best == nil || l.compare(best) < 0) {
			best = l
		}
	}
	return best
}

// placementOn returns the best placement of an instance on a node; nil if there is no room.
func (s *spanner) placementOn(d *draft, loads []load, it Item, node int) *placement {
	n, l := s.pack.p.span(it.Func), &placement{node: node}
	s.bestFit(loads, it, l)
	if len(l.hosts) < n {
		l.unused = d.freeTogether([]Item{it}, node, n-len(l.hosts))
	}
	if len(l.hosts)+len(l.unused) < n {
		return nil
	}
	for k, c := range s.pack.p.Classes {
		if c.Count != Elastic {
			l.spare += d.freeOn(k, node)
		}
	}
	return l
}

// load is a GPU in use, with the area that is free on it.
type load struct {
	h    *host
	free int64
}

// loads returns the GPUs in use, by node, the fullest first.
func (s *spanner) loads(d *draft) [][]load {
	out := make([][]load, s.pack.p.nodes())
	for _, h := range d.hosts {
		out[h.node] = append(out[h.node], load{h, h.freeArea()})
	}
	for _, on := range out {
		slices.SortStableFunc(on, func(a, b load) int { return cmp.Compare(a.free, b.free) })
	}
	s.pack.work += int64(len(d.hosts))
	return out
}

// bestFit adds to l the fullest GPUs that have room for an instance, up to its span. Under tokens,
// other items keep their turns.
func (s *spanner) bestFit(loads []load, it Item, l *placement) {
	o := s.pack.p.option(it)
	from, _ := slices.BinarySearchFunc(loads, o.area(), func(at load, area int64) int { return cmp.Compare(at.free, area) })
	for _, at := range loads[from:] {
		if len(l.hosts) == s.pack.p.span(it.Func) {
			return
		}
		s.pack.work += int64(1 + len(at.h.items))
		if !o.On[at.h.class] || !at.h.hasMemory(it) {
			continue
		}
		if at.h.locate(&it, o) {
			l.hosts, l.items, l.area = append(l.hosts, at.h), append(l.items, it), l.area+at.free
		}
	}
}

// place adds an instance at a placement.
func (s *spanner) place(d *draft, l *placement, it Item) {
	s.count++
	for i, h := range l.hosts {
		l.items[i].Gang = s.count
		h.add(l.items[i])
		h.pinned = len(h.items)
		d.served[it.Func] += s.pack.p.option(it).Rate
	}
	for _, k := range l.unused {
		h := s.pack.newHost(k, nil)
		h.node = l.node
		s.pack.makeRoom(h, &it)
		it.Gang = s.count
		h.add(it)
		h.pinned = len(h.items)
		d.addHost(h)
	}
}
