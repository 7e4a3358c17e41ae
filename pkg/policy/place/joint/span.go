package joint

import (
	"cmp"
	"slices"
)

// An instance of a function with a span of N is on N GPUs of one node, alike
// on each. The linear program counts a part of it for each GPU. Such instances
// are placed first, in one of two ways; each GPU is then filled up with other
// functions on its own. In gangs (placeGangs), L GPUs of a node, L a multiple of
// all spans on them, host the same. One by one (placeSingly), each instance goes
// where it fits best.

// span is the number of GPUs that a function's instance is on.
func (s *solver) span(f int) int { return max(1, s.p.Funcs[f].Span) }

// gangSize is the least number of GPUs that can host items like these alike:
// the least common multiple of their spans.
func (s *solver) gangSize(items []Item) int {
	out := 1
	for _, it := range items {
		a, b := out, s.span(it.Func)
		for b != 0 {
			a, b = b, a%b
		}
		out *= s.span(it.Func) / a
	}
	return out
}

// spanningItems are the items of functions that span several GPUs.
func (s *solver) spanningItems(items []Item) []Item {
	var out []Item
	for _, it := range items {
		if s.span(it.Func) > 1 {
			out = append(out, it)
		}
	}
	return out
}

// spans says whether any function spans several GPUs.
func (s *solver) spans() bool {
	return slices.ContainsFunc(s.p.Funcs, func(f Func) bool { return f.Span > 1 })
}

// widestSpan is the largest span of a function that can be served: no fewer
// GPUs serve all.
func (s *solver) widestSpan() int {
	n := 0
	for f := range s.p.Funcs {
		if s.solo[f] > 0 && s.p.Funcs[f].Demand > 0 {
			n = max(n, s.span(f))
		}
	}
	return n
}

// placeGangs places what of the program's solution spans several GPUs, and
// then what of such functions is left.
func (s *solver) placeGangs(d *draft, uses []use, price []float64) {
	for _, u := range uses {
		items := s.spanningItems(s.pool.patterns[u.pattern].gpu.Items)
		if len(items) == 0 {
			continue
		}
		for range wholeUses(u) / s.gangSize(items) {
			if !s.fillGang(d, items, price) {
				break
			}
		}
	}
	all := make([]bool, len(s.p.Funcs))
	for f := range all {
		all[f] = s.span(f) > 1
	}
	s.serveSpans(d, price, all)
	for f := range all { // alone a function needs no more GPUs together than its span
		if all[f] {
			one := make([]bool, len(all))
			one[f] = true
			s.serveSpans(d, price, one)
		}
	}
}

// serveSpans opens GPUs for what is left of these functions, as long as there
// are any.
func (s *solver) serveSpans(d *draft, price []float64, of []bool) {
	for k := 0; k < len(s.p.Classes); {
		left := s.unserved(d.served)
		var wanted []Item
		for f := range left {
			if !of[f] {
				left[f] = 0
			} else if left[f] > 0 {
				wanted = append(wanted, Item{Func: f})
			}
		}
		if len(wanted) == 0 {
			return
		}
		for f := range left {
			left[f] /= float64(s.gangSize(wanted))
		}
		h := s.newHost(k, nil)
		s.fill(h, s.prices(k, price), left)
		if len(h.items) == 0 || !s.fillGang(d, h.items, price) {
			k++
		}
	}
}

// fillGang takes GPUs of one node that host these alike, and what fits besides.
// It says whether there were enough.
func (s *solver) fillGang(d *draft, items []Item, price []float64) bool {
	from := len(d.hosts)
	if !s.openGang(d, items) {
		return false
	}
	s.fillHosts(d, d.hosts[from:], price)
	return true
}

// fillHosts fills GPUs with functions that span one.
func (s *solver) fillHosts(d *draft, hosts []*host, price []float64) {
	for _, h := range hosts {
		before := len(h.items)
		s.fill(h, s.prices(h.class, price), s.unservedSingle(d.served))
		d.serve(h.items[before:], s.p)
	}
}

// openGang takes GPUs of one node that host these alike. It says whether there
// were enough.
func (s *solver) openGang(d *draft, items []Item) bool {
	n := s.gangSize(items)
	for node := range s.nodes() {
		classes := s.freeTogether(d, items, node, n)
		if len(classes) < n {
			continue
		}
		from := s.gangs
		for j, k := range classes {
			h := s.newHost(k, nil)
			h.node = node
			for i, it := range items {
				it.Gang = 1 + from + i*n + j/s.span(it.Func)
				h.add(it)
			}
			s.gangs = max(s.gangs, from+len(items)*n)
			h.pinned = len(h.items)
			s.addHost(d, h)
		}
		return true
	}
	return false
}

func (s *solver) nodes() int {
	n := 1
	for _, c := range s.p.Classes {
		n = max(n, len(c.Nodes))
	}
	return n
}

// freeTogether are the classes of n free GPUs of a node that can host the
// items.
func (s *solver) freeTogether(d *draft, items []Item, node, n int) (classes []int) {
	for k, c := range s.p.Classes {
		if !s.canHost(k, items) {
			continue
		}
		free := n
		if c.Count != Elastic {
			free = s.freeOn(d, k, node)
		}
		for ; free > 0 && len(classes) < n; free-- {
			classes = append(classes, k)
		}
	}
	return classes
}

// canHost says whether a GPU of the class may host the items.
func (s *solver) canHost(k int, items []Item) bool {
	for _, it := range items {
		if !s.p.option(it).On[k] {
			return false
		}
	}
	room := s.p.Classes[k].Room
	return room == Unlimited || s.p.memoryOf(items) <= room
}

// freeOn counts the GPUs of a class on a node that are not taken. GPUs without
// spanning instances are of no node yet, so those come after.
func (s *solver) freeOn(d *draft, k, node int) int {
	nodes := s.p.Classes[k].Nodes
	if node >= len(nodes) {
		return 0
	}
	free := nodes[node]
	for _, h := range d.hosts {
		if h.class == k && h.pinned > 0 && h.node == node {
			free--
		}
	}
	return min(free, d.counts[k])
}

// singlyWork allows for about 3,000 instances on 700 GPUs, which take a tenth of
// a second; from some 10,000 on gangs are nearly as good.
const singlyWork = 4

// placeSingly places what spans several GPUs, the largest spans first: whole
// gangs of the program's solution, then each instance where it takes the fewest
// GPUs more. It says whether that took no more than singlyWork times the work
// limit; if not, the draft is good for nothing.
func (s *solver) placeSingly(d *draft, uses []use, price []float64, limit int64) bool {
	from := s.work
	for _, n := range s.spansByWidth() {
		for _, u := range uses {
			items := s.spanningItems(s.pool.patterns[u.pattern].gpu.Items)
			if s.widestOf(items) != n {
				continue
			}
			for range wholeUses(u) / s.gangSize(items) {
				if !s.openGang(d, items) {
					break
				}
			}
		}
		for _, f := range s.spanning(n) {
			for s.placeOne(d, f) {
				if s.work-from > singlyWork*limit || s.expired() {
					return false
				}
			}
		}
	}
	s.fillHosts(d, d.hosts, price)
	return true
}

// spansByWidth are the spans of more than one GPU, largest first.
func (s *solver) spansByWidth() (out []int) {
	for f := range s.p.Funcs {
		if n := s.span(f); n > 1 {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return cmp.Compare(b, a) })
	return slices.Compact(out)
}

// widestOf is the largest span of the items.
func (s *solver) widestOf(items []Item) int {
	n := 0
	for _, it := range items {
		n = max(n, s.span(it.Func))
	}
	return n
}

// spanning are the functions that span n GPUs, those whose densest
// configuration is largest first.
func (s *solver) spanning(n int) (out []int) {
	size := make([]float64, len(s.p.Funcs))
	for f := range s.p.Funcs {
		if s.span(f) != n || s.solo[f] == 0 {
			continue
		}
		out = append(out, f)
		if all := s.byDensity(f, s.p.Funcs[f].Demand); len(all) > 0 {
			size[f] = s.share(&s.p.Funcs[f].Options[all[0].opt])
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(size[b], size[a]) })
	return out
}

// byDensity are the options of a function by what an instance serves of what is
// left for its share of a GPU, most first.
func (s *solver) byDensity(f int, left float64) (out []pick) {
	for i := range s.p.Funcs[f].Options {
		o := &s.p.Funcs[f].Options[i]
		if slices.Contains(o.On, true) {
			out = append(out, pick{f, i, min(o.Rate, left/float64(s.span(f))) / s.share(o)})
		}
	}
	slices.SortStableFunc(out, func(a, b pick) int { return cmp.Compare(b.density, a.density) })
	return out
}

// share is the part of a GPU that an instance takes on each: of its area, or of
// the memory of the largest, whichever is more.
func (s *solver) share(o *Option) float64 {
	room := int64(0)
	for _, c := range s.p.Classes {
		room = max(room, c.Room)
	}
	return max(float64(o.W)/One*(float64(o.H)/One), float64(o.Mem)/float64(max(1, room)))
}

// placement is where an instance may go.
type placement struct {
	node  int
	hosts []*host // in use, in order of what is free on them
	items []Item  // for each of hosts, where on it
	fresh []int   // classes of GPUs to be taken besides
	area  int64   // free on hosts
	spare int     // GPUs of the node that are not taken, where they are counted
}

// compare orders placements, the best first: fewest GPUs more, then the least
// free area beside the instance, then the fewest GPUs left on the node.
func (l *placement) compare(o *placement) int {
	return cmp.Or(cmp.Compare(len(l.fresh), len(o.fresh)), cmp.Compare(l.area, o.area), cmp.Compare(l.spare, o.spare))
}

// placeOne places one instance of a function, if it wants one and there is
// room. Of the options at least half as dense as the densest, that is taken
// which needs the fewest GPUs more; others only if none of those has room.
func (s *solver) placeOne(d *draft, f int) bool {
	left := s.unserved(d.served)[f]
	if left == 0 {
		return false
	}
	var best *placement
	option := 0
	all, loads := s.byDensity(f, left), s.loads(d)
	for _, r := range all {
		if best != nil && (len(best.fresh) == 0 || 2*r.density < all[0].density) {
			break
		}
		if l := s.bestPlacement(d, loads, Item{Func: f, Option: r.opt}); l != nil && (best == nil || len(l.fresh) < len(best.fresh)) {
			best, option = l, r.opt
		}
	}
	if best == nil {
		return false
	}
	s.take(d, best, Item{Func: f, Option: option})
	return true
}

// bestPlacement is the best for an instance over all nodes; nil if there is no
// room.
func (s *solver) bestPlacement(d *draft, loads [][]load, it Item) (best *placement) {
	for node := range s.nodes() {
		if l := s.placementOn(d, loads[node], it, node); l != nil && (best == nil || l.compare(best) < 0) {
			best = l
		}
	}
	return best
}

// placementOn is the best for an instance on a node; nil if there is no room.
func (s *solver) placementOn(d *draft, loads []load, it Item, node int) *placement {
	n, l := s.span(it.Func), &placement{node: node}
	s.bestFit(loads, it, l)
	if len(l.hosts) < n {
		l.fresh = s.freeTogether(d, []Item{it}, node, n-len(l.hosts))
	}
	if len(l.hosts)+len(l.fresh) < n {
		return nil
	}
	for k, c := range s.p.Classes {
		if c.Count != Elastic {
			l.spare += s.freeOn(d, k, node)
		}
	}
	return l
}

// load is a GPU in use, with the area that is free on it.
type load struct {
	h    *host
	free int64
}

// loads are the GPUs in use, by node, the fullest first.
func (s *solver) loads(d *draft) [][]load {
	out := make([][]load, s.nodes())
	for _, h := range d.hosts {
		out[h.node] = append(out[h.node], load{h, h.freeArea()})
	}
	for _, on := range out {
		slices.SortStableFunc(on, func(a, b load) int { return cmp.Compare(a.free, b.free) })
	}
	s.work += int64(len(d.hosts))
	return out
}

// bestFit finds the fullest GPUs that have room for an instance, as many as it
// spans. Under tokens what is there keeps its turns.
func (s *solver) bestFit(loads []load, it Item, l *placement) {
	o := s.p.option(it)
	from, _ := slices.BinarySearchFunc(loads, o.area(), func(at load, need int64) int { return cmp.Compare(at.free, need) })
	for _, at := range loads[from:] {
		if len(l.hosts) == s.span(it.Func) {
			return
		}
		s.work += int64(1 + len(at.h.items))
		if !o.On[at.h.class] || !at.h.hasMemory(it) {
			continue
		}
		if at.h.locate(&it, o) {
			l.hosts, l.items, l.area = append(l.hosts, at.h), append(l.items, it), l.area+at.free
		}
	}
}

// take places an instance.
func (s *solver) take(d *draft, l *placement, it Item) {
	s.gangs++
	for i, h := range l.hosts {
		l.items[i].Gang = s.gangs
		h.add(l.items[i])
		h.pinned = len(h.items)
		d.served[it.Func] += s.p.option(it).Rate
	}
	for _, k := range l.fresh {
		h := s.newHost(k, nil)
		h.node = l.node
		s.makeRoom(h, &it)
		it.Gang = s.gangs
		h.add(it)
		h.pinned = len(h.items)
		s.addHost(d, h)
	}
}
