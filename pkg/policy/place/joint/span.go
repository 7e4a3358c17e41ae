package joint

import (
	"math"
	"slices"
)

// An instance of a function with a span of N is on N GPUs of one node, alike
// on each. The linear program counts a part of it for each GPU. Such instances
// are placed first, in one of two ways; each GPU is then filled up with other
// functions on its own. In gangs, L GPUs of a node, L a multiple of all spans
// on them, host the same. Beside each other (beside.go), each instance goes
// where it has room.

// span is the number of GPUs that a function's instance is on.
func (s *solver) span(f int) int { return max(1, s.p.Funcs[f].Span) }

// gang is the least number of GPUs that can host items like these alike.
func (s *solver) gang(items []Item) int {
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

// spanning are the items of functions that span several GPUs.
func (s *solver) spanning(items []Item) []Item {
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

// widest is the largest span of a function that can be served: no fewer GPUs
// serve all.
func (s *solver) widest() int {
	n := 0
	for f := range s.p.Funcs {
		if s.unit[f] > 0 && s.p.Funcs[f].Demand > 0 {
			n = max(n, s.span(f))
		}
	}
	return n
}

// plan makes the plan. Spanning functions are placed in both ways where the
// first misses the bound, and what leaves less, or takes fewer GPUs, is taken.
func (s *solver) plan(uses []use, price []float64, bound int) *draft {
	d := s.draft()
	if !s.spans() {
		s.finish(d, uses, price, bound)
		return d
	}
	all, before := s.limit, s.done()
	s.limit = before + max(0, all-before)/2
	s.placeGangs(d, uses, price)
	s.finish(d, uses, price, bound)
	s.limit = all
	if sum(s.left(d.served)) == 0 && d.gpus() <= bound {
		return d
	}
	other := s.draft()
	if !s.placeBeside(other, uses, price) {
		return d
	}
	s.finish(other, uses, price, bound)
	if s.better(other, d) {
		return other
	}
	return d
}

// finish serves what does not span GPUs.
func (s *solver) finish(d *draft, uses []use, price []float64, bound int) {
	s.round(d, uses, price)
	s.search(d, s.weights(price, d), bound)
}

// better says whether a draft leaves less than another, or takes fewer GPUs.
func (s *solver) better(a, b *draft) bool {
	x, y := sum(s.left(a.served)), sum(s.left(b.served))
	if math.Abs(x-y) > none*max(x, y) {
		return x < y
	}
	return a.gpus() < b.gpus()
}

// placeGangs places what of the program's solution spans several GPUs, and
// then what of such functions is left.
func (s *solver) placeGangs(d *draft, uses []use, price []float64) {
	for _, u := range uses {
		items := s.spanning(s.pool[u.pattern].gpu.Items)
		if len(items) == 0 {
			continue
		}
		for range int(u.count+1e-6) / s.gang(items) {
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
		left := s.left(d.served)
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
			left[f] /= float64(s.gang(wanted))
		}
		h := s.host(k, nil)
		s.fill(h, price, left)
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
		s.fill(h, price, s.rest(d.served))
		for _, it := range h.items[before:] {
			d.served[it.Func] += s.rate(it)
		}
	}
}

// openGang takes GPUs of one node that host these alike. It says whether there
// were enough.
func (s *solver) openGang(d *draft, items []Item) bool {
	n := s.gang(items)
	for node := range s.nodes() {
		classes := s.together(d, items, node, n)
		if len(classes) < n {
			continue
		}
		from := s.gangs
		for j, k := range classes {
			h := s.host(k, nil)
			h.node = node
			for i, it := range items {
				it.Gang = 1 + from + i*n + j/s.span(it.Func)
				h.add(s.p, it)
			}
			s.gangs = max(s.gangs, from+len(items)*n)
			h.pinned = len(h.items)
			s.join(d, h)
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

// together are the classes of n free GPUs of a node that can host the items.
func (s *solver) together(d *draft, items []Item, node, n int) (classes []int) {
	for k, c := range s.p.Classes {
		if !s.hosts(k, items) {
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

// hosts says whether a GPU of the class may host the items.
func (s *solver) hosts(k int, items []Item) bool {
	for _, it := range items {
		if !s.p.Funcs[it.Func].Options[it.Option].On[k] {
			return false
		}
	}
	room := s.p.Classes[k].Room
	return room == Unlimited || s.memory(items) <= room
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

// rest is what is not served yet of the functions that span one GPU.
func (s *solver) rest(served []float64) []float64 {
	out := s.left(served)
	for f := range out {
		if s.span(f) > 1 {
			out[f] = 0
		}
	}
	return out
}

// loose says whether any GPU of a draft is without spanning instances.
func loose(d *draft) bool {
	return slices.ContainsFunc(d.hosts, func(h *host) bool { return h.pinned == 0 })
}
