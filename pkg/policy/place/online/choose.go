package online

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/reason"
)

// choose finds the GPUs for an instance (Dilu, section 3.3, Algorithm 1). n holds the resources that
// the instance needs on each GPU. For an instance of one GPU, choose first looks for a GPU in use
// (bestActive). If that fails, and for several GPUs, it searches the nodes.
func (f *Fleet) choose(r Request, n resources) Decision {
	if r.GPUs == 1 {
		if g, affine := f.bestActive(r, n); g >= 0 {
			code := bestFit
			if affine {
				code = besideSiblings
			}
			return Decision{GPUs: []int{g}, Reason: reason.New(code)}
		}
	}
	if f.template != nil {
		return f.grow(r, n)
	}
	return f.searchNodes(r, n)
}

// grow chooses GPUs in an elastic fleet, in which all GPUs are on one node. If the instance needs
// several GPUs, grow chooses the best GPUs with room. It adds new GPUs for those that are missing.
func (f *Fleet) grow(r Request, n resources) Decision {
	f.candidates = f.candidates[:0]
	if r.GPUs > 1 {
		f.findCandidates(&node{count: int32(len(f.gpus))}, r, n)
	}
	lacking := max(0, r.GPUs-len(f.candidates))
	if lacking > 0 && !n.fitsIn(f.resourcesOfNewGPU()) {
		return Decision{Reason: rejection(r, n, r.GPUs)}
	}
	c := f.keepBest(&node{}, r, n)
	d := Decision{NewGPUs: lacking, Reason: reason.New(f.code(lacking, c.withoutAffinity, r))}
	for _, p := range f.candidates {
		d.GPUs = append(d.GPUs, p.gpu)
	}
	for range lacking {
		d.GPUs = append(d.GPUs, len(f.gpus))
		f.add(*f.template, false)
	}
	slices.Sort(d.GPUs)
	return d
}

// code returns the code of a choice, given the numbers of unused GPUs and of GPUs without
// affinity among the chosen.
func (f *Fleet) code(unused, withoutAffinity int, r Request) reason.Code {
	switch {
	case unused == r.GPUs:
		return newGPUs
	case unused > 0:
		return someNewGPUs
	case f.usesWorstFit(r):
		return mostMemory
	case withoutAffinity == 0:
		return besideSiblings
	}
	return bestFit
}

// resourcesOfNewGPU returns the free resources of a GPU that is added to an elastic fleet.
func (f *Fleet) resourcesOfNewGPU() resources {
	n := resources{f.rule.omega, f.rule.gamma, math.MaxInt64}
	if f.template.MemMiB > 0 {
		n.mem = gpu.FromMiB(f.template.MemMiB)
	}
	return n
}

// bestActive returns the GPU in use for an instance of one GPU, or -1 if none has room. It prefers a
// GPU with affinity (see type affinity), and then the GPU with the least score after the placement. Among
// GPUs with the same memory, that is the first GPU with room in the order of the current scores.
func (f *Fleet) bestActive(r Request, n resources) (best int, affine bool) {
	best = -1
	var lowest int64
	for c := range f.classes {
		class := &f.classes[c]
		if !class.suits(r) {
			continue
		}
		g, gAffine := f.first(class, r, n)
		if g < 0 || affine && !gAffine {
			continue
		}
		score := f.score(&f.gpus[g]) - f.weigh(n, class.mem)
		if best < 0 || gAffine && !affine || score < lowest || score == lowest && g < best {
			best, affine, lowest = g, gAffine, score
		}
	}
	return best, affine
}

// first returns the first GPU of the class that has room and affinity, in the order of scores. If
// there is none, it returns the first GPU with room, or -1 if none has room. The search starts at the
// score of the instance's resources, since a GPU with room has at least that score.
func (f *Fleet) first(c *class, r Request, n resources) (g int, affine bool) {
	g = -1
	for _, u := range c.used[c.used.search(f.weigh(n, c.mem)):] {
		s := &f.gpus[u.gpu]
		if !n.fitsIn(s.free) || r.excepts(u.gpu) {
			continue
		}
		if f.rule.affinity && f.affinity.hasMarked(s.functions) {
			return u.gpu, true
		}
		if g < 0 {
			g = u.gpu
		}
		if !f.rule.affinity || !f.affinity.hasMarks {
			break
		}
	}
	return g, false
}

// cost is the cost of placing an instance on a GPU, or on several GPUs of a node (the sums). The
// lowest cost is best. The fields are in order of priority.
type cost struct {
	unused          int   // number of the GPUs that are not in use
	withoutAffinity int   // number of the GPUs without affinity
	score           int64 // score of the GPUs after the placement
	scarcity        int64 // see class.scarcity
	idle            int32 // number of GPUs of the node that are not in use; 0 for a single GPU
}

// candidate is a GPU with room for an instance.
type candidate struct {
	gpu  int
	cost cost
}

func (a cost) compare(b cost) int {
	return cmp.Or(cmp.Compare(a.unused, b.unused), cmp.Compare(a.withoutAffinity, b.withoutAffinity),
		cmp.Compare(a.score, b.score), cmp.Compare(a.scarcity, b.scarcity), cmp.Compare(a.idle, b.idle))
}

// searchNodes finds a node for an instance, and GPUs on it. It prefers the node with the fewest new
// GPUs (Equation 1), then the most GPUs with affinity, the least score, the least scarcity, and the
// fewest idle GPUs, so that other nodes remain entirely idle. Among idle nodes with the same GPUs
// (the same shape), it considers only the first.
func (f *Fleet) searchNodes(r Request, n resources) Decision {
	f.best = f.best[:0]
	f.query++
	var lowest cost
	for i := range f.blocks {
		b := &f.blocks[i]
		if !n.fitsIn(b.room) || b.idle && b.shape >= 0 && f.lastQuery[b.shape] == f.query {
			continue
		}
		nodes := f.block(i * blockSize)
		for k := range nodes {
			f.considerNode(&nodes[k], r, n, &lowest)
		}
	}
	if len(f.best) == 0 {
		return Decision{Reason: rejection(r, n, f.largestNode)}
	}
	d := Decision{GPUs: slices.Clone(f.best), NewGPUs: lowest.unused, Reason: reason.New(f.code(lowest.unused, lowest.withoutAffinity, r))}
	slices.Sort(d.GPUs)
	return d
}

// usesWorstFit reports whether the instance is placed by worst fit, which means on the GPUs with the
// most free memory. The paper does so for a large model that needs several GPUs (section 3.3,
// principle 2).
func (f *Fleet) usesWorstFit(r Request) bool { return f.rule.worstFit && r.Large && r.GPUs > 1 }

// considerNode stores a node in f.best and lowest if its cost is lower than lowest.
func (f *Fleet) considerNode(node *node, r Request, n resources, lowest *cost) {
	if int(node.count) < r.GPUs || !n.fitsIn(node.room) {
		return
	}
	if node.idle == node.count {
		if f.lastQuery[node.shape] == f.query {
			return
		}
		f.lastQuery[node.shape] = f.query
	}
	unused, ok := f.findCandidates(node, r, n)
	if !ok || len(f.best) > 0 && unused > lowest.unused {
		return
	}
	if c := f.keepBest(node, r, n); len(f.best) == 0 || c.compare(*lowest) < 0 {
		*lowest = c
		f.best = f.best[:0]
		for _, p := range f.candidates {
			f.best = append(f.best, p.gpu)
		}
	}
}

// findCandidates sets f.candidates to the GPUs of a node that have room. It returns the number of idle
// GPUs that the instance would use at least, and whether there are enough candidates.
func (f *Fleet) findCandidates(node *node, r Request, n resources) (unused int, ok bool) {
	f.candidates = f.candidates[:0]
	inUse := 0
	for g := int(node.first); g < int(node.first+node.count); g++ {
		s := &f.gpus[g]
		if !n.fitsIn(s.free) || !f.classes[s.class].suits(r) || r.excepts(g) {
			continue
		}
		f.candidates = append(f.candidates, candidate{gpu: g})
		if len(s.functions) > 0 {
			inUse++
		}
	}
	return max(0, r.GPUs-inUse), len(f.candidates) >= r.GPUs
}

// keepBest reduces f.candidates to the best GPUs for the instance and returns their total cost.
func (f *Fleet) keepBest(node *node, r Request, n resources) cost {
	for i := range f.candidates {
		f.candidates[i].cost = f.costOf(f.candidates[i].gpu, r, n)
	}
	if len(f.candidates) > r.GPUs {
		slices.SortStableFunc(f.candidates, func(a, b candidate) int { return a.cost.compare(b.cost) })
		f.candidates = f.candidates[:r.GPUs]
	}
	total := cost{idle: node.idle}
	for _, p := range f.candidates {
		total.unused += p.cost.unused
		total.withoutAffinity += p.cost.withoutAffinity
		total.score += p.cost.score
		total.scarcity += p.cost.scarcity
	}
	return total
}

// costOf returns the cost of one GPU for an instance. Under worst fit, the score is the memory in
// use.
func (f *Fleet) costOf(g int, r Request, n resources) cost {
	s := &f.gpus[g]
	c := cost{scarcity: f.classes[s.class].scarcity()}
	if len(s.functions) == 0 {
		c.unused = 1
	}
	if !f.rule.affinity || !f.affinity.hasMarked(s.functions) {
		c.withoutAffinity = 1
	}
	if f.usesWorstFit(r) {
		c.score = -int64(s.free.mem)
	} else {
		c.score = f.score(s) - f.weigh(n, f.classes[s.class].mem)
	}
	return c
}
