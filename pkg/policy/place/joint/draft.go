package joint

import (
	"math"
	"slices"
)

// draft is an unfinished plan for a requirement. It has decided GPUs (groups) and open GPUs
// (hosts), which the search may still change.
type draft struct {
	*requirement
	groups []Group
	hosts  []*host
	served []float64 // by function, on all GPUs
	counts []int     // by class: unused GPUs, or Elastic
	// minRate is the rate that a GPU must serve of a function with a span of 1 for the
	// function to be placed now. It is above 0 only while functions are placed by rank.
	minRate float64
}

func newDraft(t *requirement) *draft {
	return &draft{requirement: t, served: make([]float64, len(t.p.Funcs)), counts: t.p.counts()}
}

// betterThan reports whether a draft leaves less demand unserved than another, or leaves the same
// and uses fewer GPUs.
func (d *draft) betterThan(o *draft) bool {
	return better(sum(d.unserved()), sum(o.unserved()), d.gpus(), o.gpus())
}

// better reports whether a plan that leaves x requests per second unserved and uses m GPUs is
// better than a plan that leaves y and uses n.
func better(x, y float64, m, n int) bool {
	if math.Abs(x-y) > tolerance*max(x, y) {
		return x < y
	}
	return m < n
}

// unserved returns the remaining demand by function. It leaves out functions that no GPU can
// serve.
func (d *draft) unserved() []float64 {
	out := make([]float64, len(d.served))
	for f := range out {
		if d.solo[f] > 0 {
			out[f] = d.p.Funcs[f].remaining(d.served[f])
		}
	}
	return out
}

// unservedSingle returns the remaining demand of the functions that span one GPU and may be
// placed now.
func (d *draft) unservedSingle() []float64 {
	out := d.unserved()
	for f := range out {
		if d.p.span(f) > 1 || d.solo[f] < d.minRate {
			out[f] = 0
		}
	}
	return out
}

// gpus returns the number of GPUs that host at least one item.
func (d *draft) gpus() int {
	n := 0
	for _, g := range d.groups {
		n += g.Count
	}
	for _, h := range d.hosts {
		if len(h.items) > 0 {
			n++
		}
	}
	return n
}

// weights returns the value of one request per second of each function for the search: its price
// while the search saves GPUs, or the same for all functions if there are too few GPUs.
func (d *draft) weights(price []float64) []float64 {
	if sum(d.unservedSingle()) == 0 {
		return price
	}
	return slices.Repeat([]float64{1 / d.minSolo}, len(price))
}

// decide uses n GPUs for a pattern.
func (d *draft) decide(t pattern, n int) {
	if d.counts[t.gpu.Class] != Elastic {
		n = min(n, d.counts[t.gpu.Class])
		d.counts[t.gpu.Class] -= n
	}
	if n <= 0 {
		return
	}
	d.groups = append(d.groups, Group{t.gpu, n})
	for k, f := range t.fns {
		d.served[f] += float64(n) * t.rates[k]
	}
}

// addHost adds an open GPU.
func (d *draft) addHost(h *host) {
	d.hosts = append(d.hosts, h)
	if d.counts[h.class] != Elastic {
		d.counts[h.class]--
	}
	d.serve(h.items)
}

// serve adds the rates of items to the served rates.
func (d *draft) serve(items []Item) {
	for _, it := range items {
		d.served[it.Func] += d.p.option(it).Rate
	}
}

// recount recomputes the served rates from all GPUs.
func (d *draft) recount() {
	clear(d.served)
	for _, g := range d.groups {
		for _, it := range g.GPU.Items {
			d.served[it.Func] += float64(g.Count) * d.p.option(it).Rate
		}
	}
	for _, h := range d.hosts {
		d.serve(h.items)
	}
}

// drop closes the open GPU that serves the least value and has no spanning instances. There must
// be such a GPU.
func (d *draft) drop(price []float64) {
	worth := func(h *host) float64 {
		total := 0.0
		for _, it := range h.items {
			total += price[it.Func] * d.p.option(it).Rate
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
	d.recount()
}

// costLeft returns the value of the remaining demand of functions that span one GPU, in GPUs.
func (d *draft) costLeft(price []float64) float64 {
	total := 0.0
	for f, v := range d.unservedSingle() {
		total += v * price[f]
	}
	return total
}

// freeTogether returns the classes of n free GPUs of a node that can host the items.
func (d *draft) freeTogether(items []Item, node, n int) (classes []int) {
	for k, c := range d.p.Classes {
		if !d.p.canHost(k, items) {
			continue
		}
		free := n
		if c.Count != Elastic {
			free = d.freeOn(k, node)
		}
		for ; free > 0 && len(classes) < n; free-- {
			classes = append(classes, k)
		}
	}
	return classes
}

// freeOn counts the free GPUs of a class on a node. GPUs without spanning instances belong to
// no node yet, so they do not count as used.
func (d *draft) freeOn(k, node int) int {
	nodes := d.p.Classes[k].Nodes
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
