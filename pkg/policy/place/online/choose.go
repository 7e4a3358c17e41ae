package online

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// choose finds the GPUs for an instance (Dilu, section 3.3, Algorithm 1). One
// GPU in use is found by the ranking; several on a node, and new ones, by
// looking at the nodes.
func (f *Fleet) choose(r Request, n need) Decision {
	if r.GPUs == 1 {
		if g, affine := f.fullest(r, n); g >= 0 {
			reason := active
			if affine {
				reason = siblings
			}
			return Decision{GPUs: []int{g}, Reason: reason}
		}
	}
	if f.like != nil {
		return f.grow(r, n)
	}
	return f.spread(r, n)
}

// grow takes the best GPUs there are, for several, and adds what is missing:
// in a fleet that grows all are on one node.
func (f *Fleet) grow(r Request, n need) Decision {
	f.pick = f.pick[:0]
	if r.GPUs > 1 {
		f.gather(&node{count: int32(len(f.gpus))}, r, n)
	}
	lacking := max(0, r.GPUs-len(f.pick))
	if lacking > 0 && !n.within(f.fresh()) {
		return Decision{Reason: missing(r, n, r.GPUs)}
	}
	c := f.keepBest(&node{}, r, n)
	d := Decision{Fresh: lacking, Reason: f.reason(lacking, c.apart, r)}
	for _, p := range f.pick {
		d.GPUs = append(d.GPUs, p.gpu)
	}
	for range lacking {
		d.GPUs = append(d.GPUs, len(f.gpus))
		f.add(*f.like, false)
	}
	slices.Sort(d.GPUs)
	return d
}

// reason is why an instance goes to so many new GPUs, and so many without
// affinity.
func (f *Fleet) reason(fresh, apart int, r Request) Reason {
	switch {
	case fresh == r.GPUs:
		return noRoom
	case fresh > 0:
		return tooFew
	case f.emptiest(r):
		return emptiest
	case apart == 0:
		return siblings
	}
	return active
}

// fresh is what one more GPU has.
func (f *Fleet) fresh() need {
	n := need{f.rule.omega, f.rule.gamma, math.MaxInt64}
	if f.like.MemMiB > 0 {
		n.mem = gpu.FromMiB(f.like.MemMiB)
	}
	return n
}

// fullest is the GPU in use that an instance of one GPU goes to, -1 if none has
// room: of those with affinity if any has, else of all, the one with the
// least score after. Where all GPUs have the same memory that is the first
// with room in the order of their scores now.
func (f *Fleet) fullest(r Request, n need) (best int, affine bool) {
	best = -1
	var least int64
	for c := range f.classes {
		class := &f.classes[c]
		if !class.suits(r) {
			continue
		}
		g, with := f.first(class, n)
		if g < 0 || affine && !with {
			continue
		}
		score := f.score(&f.gpus[g]) - f.weigh(n, class.mem)
		if best < 0 || with && !affine || score < least || score == least && g < best {
			best, affine, least = g, with, score
		}
	}
	return best, affine
}

// first is the first GPU of the class with room, in the order of scores, and
// of those with affinity if one has. A GPU with room for the instance has at
// least the score of its needs.
func (f *Fleet) first(c *class, n need) (g int, affine bool) {
	g = -1
	for _, u := range c.used[c.used.from(f.weigh(n, c.mem)):] {
		s := &f.gpus[u.gpu]
		if !n.within(s.free) {
			continue
		}
		if f.rule.affinity && f.affinity.has(s.functions) {
			return u.gpu, true
		}
		if g < 0 {
			g = u.gpu
		}
		if !f.rule.affinity || !f.affinity.any {
			break
		}
	}
	return g, false
}

// cost orders nodes, and GPUs of a node: least is best.
type cost struct {
	fresh  int   // GPUs not in use
	apart  int   // GPUs without affinity
	score  int64 // left over after
	scarce int64 // how sought after their models are
	idle   int32 // GPUs of the node not in use
}

// option is a GPU that has room.
type option struct {
	gpu  int
	cost cost
}

func (a cost) compare(b cost) int {
	switch {
	case a.fresh != b.fresh:
		return cmp.Compare(a.fresh, b.fresh)
	case a.apart != b.apart:
		return cmp.Compare(a.apart, b.apart)
	case a.score != b.score:
		return cmp.Compare(a.score, b.score)
	case a.scarce != b.scarce:
		return cmp.Compare(a.scarce, b.scarce)
	}
	return cmp.Compare(a.idle, b.idle)
}

// spread finds a node for an instance: the one where it takes the fewest new
// GPUs (Equation 1), then most with affinity, then with the least score, then
// one with few idle GPUs, which keeps others whole. Of the nodes that are idle
// and alike it looks at the first only.
func (f *Fleet) spread(r Request, n need) Decision {
	f.best = f.best[:0]
	f.query++
	var least cost
	for i := range f.blocks {
		b := &f.blocks[i]
		if !n.within(b.room) || b.idle && b.shape >= 0 && f.seen[b.shape] == f.query {
			continue
		}
		nodes := f.block(i * blockSize)
		for k := range nodes {
			f.try(&nodes[k], r, n, &least)
		}
	}
	if len(f.best) == 0 {
		return Decision{Reason: missing(r, n, f.widest)}
	}
	d := Decision{GPUs: slices.Clone(f.best), Fresh: least.fresh, Reason: f.reason(least.fresh, least.apart, r)}
	slices.Sort(d.GPUs)
	return d
}

// emptiest says whether the instance goes where most memory is left: a large
// model that exceeds a single fragment (section 3.3, principle 2).
func (f *Fleet) emptiest(r Request) bool { return f.rule.worst && r.Large && r.GPUs > 1 }

// try makes a node the best so far if it is, in f.best and least.
func (f *Fleet) try(node *node, r Request, n need, least *cost) {
	if int(node.count) < r.GPUs || !n.within(node.room) {
		return
	}
	if node.idle == node.count {
		if f.seen[node.shape] == f.query {
			return
		}
		f.seen[node.shape] = f.query
	}
	fresh, ok := f.gather(node, r, n)
	if !ok || len(f.best) > 0 && fresh > least.fresh {
		return
	}
	if c := f.keepBest(node, r, n); len(f.best) == 0 || c.compare(*least) < 0 {
		*least = c
		f.best = f.best[:0]
		for _, p := range f.pick {
			f.best = append(f.best, p.gpu)
		}
	}
}

// gather puts the GPUs of a node that have room in f.pick. It says whether
// they suffice and how many idle ones it takes.
func (f *Fleet) gather(node *node, r Request, n need) (fresh int, ok bool) {
	f.pick = f.pick[:0]
	active := 0
	for g := int(node.first); g < int(node.first+node.count); g++ {
		s := &f.gpus[g]
		if !n.within(s.free) || !f.classes[s.class].suits(r) {
			continue
		}
		f.pick = append(f.pick, option{gpu: g})
		if len(s.functions) > 0 {
			active++
		}
	}
	return max(0, r.GPUs-active), len(f.pick) >= r.GPUs
}

// keepBest keeps the best of what gather found and says what they cost together.
func (f *Fleet) keepBest(node *node, r Request, n need) cost {
	for i := range f.pick {
		f.pick[i].cost = f.costOf(f.pick[i].gpu, r, n)
	}
	if len(f.pick) > r.GPUs {
		sortOptions(f.pick)
		f.pick = f.pick[:r.GPUs]
	}
	total := cost{idle: node.idle}
	for _, p := range f.pick {
		total.fresh += p.cost.fresh
		total.apart += p.cost.apart
		total.score += p.cost.score
		total.scarce += p.cost.scarce
	}
	return total
}

// sortOptions sorts stably, the few there are on a node by insertion.
func sortOptions(all []option) {
	const few = 16
	if len(all) > few {
		slices.SortStableFunc(all, func(a, b option) int { return a.cost.compare(b.cost) })
		return
	}
	for i := 1; i < len(all); i++ {
		for j := i; j > 0 && all[j].cost.compare(all[j-1].cost) < 0; j-- {
			all[j], all[j-1] = all[j-1], all[j]
		}
	}
}

// costOf is what one GPU costs for an instance. In the worst fit the score is
// memory in use.
func (f *Fleet) costOf(g int, r Request, n need) cost {
	s := &f.gpus[g]
	c := cost{scarce: f.classes[s.class].scarce()}
	if len(s.functions) == 0 {
		c.fresh = 1
	}
	if !f.rule.affinity || !f.affinity.has(s.functions) {
		c.apart = 1
	}
	if f.emptiest(r) {
		c.score = -int64(s.free.mem)
	} else {
		c.score = f.score(s) - f.weigh(n, f.classes[s.class].mem)
	}
	return c
}
