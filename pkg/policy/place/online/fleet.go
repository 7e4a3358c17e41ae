package online

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
)

// need is what an instance takes of each of its GPUs.
type need struct {
	request, limit int64 // billionths of the SMs
	mem            gpu.Bytes
}

// state is what is left of one GPU.
type state struct {
	free      need
	class     int32   // of GPUs of the same memory and model
	node      int32   // which node
	functions []int32 // of the instances on it, one each
}

// node is a run of GPUs.
type node struct {
	first, count int32
	idle         int32 // GPUs without instances
	shape        int32 // of nodes with the same GPUs
	room         need  // most that one of its GPUs has left, of each
}

// blockSize is how many nodes are passed over at once: about the root of how
// many there are in a large cluster.
const blockSize = 32

// block sums up nodes that follow one another.
type block struct {
	room  need  // most that one of their GPUs has left, of each
	idle  bool  // no GPU of them is in use
	shape int32 // of all of them; -1 when they differ
}

// placement is a running instance.
type placement struct {
	gpus     []int
	need     need
	function int32
}

// Fleet is the GPUs there are and what runs on them, under one rule.
type Fleet struct {
	rule     rule
	like     *plan.Device // what more GPUs are like that come as they are needed; nil for none
	gpus     []state
	classes  []class
	nodes    []node
	blocks   []block
	widest   int // most GPUs of a node
	running  map[string]placement
	affinity affinity
	seen     []int // by shape of node: the last query that met an idle one
	query    int
	pick     []option // of the node at hand
	best     []int    // of the best node so far
}

// Grouped are the devices with those of a node together, in the order of their
// numbers; nodes stay in the order in which they first come.
func Grouped(devices []plan.Device) []plan.Device {
	at := map[string]int{}
	for _, d := range devices {
		if _, ok := at[d.Node]; !ok {
			at[d.Node] = len(at)
		}
	}
	out := slices.Clone(devices)
	slices.SortStableFunc(out, func(a, b plan.Device) int {
		return cmp.Or(cmp.Compare(at[a.Node], at[b.Node]), cmp.Compare(a.Index, b.Index))
	})
	return out
}

// newFleet makes an empty fleet. The devices are grouped; one of 0 MiB has
// memory without limit.
func newFleet(devices []plan.Device, r rule) *Fleet {
	f := &Fleet{rule: r, running: map[string]placement{}, affinity: newAffinity()}
	for i, d := range devices {
		f.add(d, i > 0 && d.Node == devices[i-1].Node)
	}
	f.shapes()
	return f
}

// add adds an idle GPU, to the last node or as a node of its own.
func (f *Fleet) add(d plan.Device, same bool) {
	if !same {
		f.nodes = append(f.nodes, node{first: int32(len(f.gpus))})
	}
	n := &f.nodes[len(f.nodes)-1]
	n.count++
	n.idle++
	f.widest = max(f.widest, int(n.count))
	mem := gpu.Bytes(math.MaxInt64)
	if d.MemMiB > 0 {
		mem = max(0, gpu.FromMiB(d.MemMiB-d.UsedMemMiB))
	}
	at := f.classOf(mem, d.Model)
	f.classes[at].gpus++
	f.gpus = append(f.gpus, state{
		free: need{f.rule.omega, f.rule.gamma, mem}, class: at, node: int32(len(f.nodes) - 1),
	})
}

// shapes numbers the nodes' shapes.
func (f *Fleet) shapes() {
	known := map[string]int32{}
	for i := range f.nodes {
		n := &f.nodes[i]
		var classes []byte
		for _, s := range f.gpus[n.first : n.first+n.count] {
			classes = binary.AppendVarint(classes, int64(s.class))
		}
		shape, ok := known[string(classes)]
		if !ok {
			shape = int32(len(f.seen))
			known[string(classes)] = shape
			f.seen = append(f.seen, 0)
		}
		n.shape = shape
		n.room = f.room(n)
	}
	for first := 0; first < len(f.nodes); first += blockSize {
		f.blocks = append(f.blocks, sum(f.block(first)))
	}
}

// block is the nodes of the block that a node is in.
func (f *Fleet) block(n int) []node {
	first := n / blockSize * blockSize
	return f.nodes[first:min(first+blockSize, len(f.nodes))]
}

func sum(nodes []node) block {
	b := block{room: nodes[0].room, idle: true, shape: nodes[0].shape}
	for i := range nodes {
		n := &nodes[i]
		b.room = b.room.most(n.room)
		b.idle = b.idle && n.idle == n.count
		if n.shape != b.shape {
			b.shape = -1
		}
	}
	return b
}

// Place decides where the instance goes and takes what it needs there.
func (f *Fleet) Place(r Request) Decision {
	request, limit := f.rule.share(r)
	p := placement{need: need{share(request), share(limit), r.Mem}, function: f.affinity.id(r.Function)}
	if f.rule.affinity {
		f.affinity.mark(p.function)
	}
	d := f.choose(r, p.need)
	f.ask(r, p.need)
	if len(d.GPUs) == 0 {
		return d
	}
	p.gpus = d.GPUs
	for _, g := range p.gpus {
		f.take(g, p.need, p.function)
	}
	f.running[r.Instance] = p
	return d
}

// Remove gives back what the instance took.
func (f *Fleet) Remove(instance string) bool {
	p, ok := f.running[instance]
	if !ok {
		return false
	}
	delete(f.running, instance)
	for _, g := range p.gpus {
		f.giveBack(g, p.need, p.function)
	}
	return true
}

func (f *Fleet) take(g int, n need, function int32) {
	s := &f.gpus[g]
	used := &f.classes[s.class].used
	if len(s.functions) == 0 {
		f.nodes[s.node].idle--
	} else {
		used.remove(f.score(s), g)
	}
	s.free = need{s.free.request - n.request, s.free.limit - n.limit, s.free.mem - n.mem}
	used.insert(f.score(s), g)
	if f.rule.affinity {
		f.affinity.come(function, s.functions)
	}
	s.functions = append(s.functions, function)
	f.measure(s.node)
}

func (f *Fleet) giveBack(g int, n need, function int32) {
	s := &f.gpus[g]
	used := &f.classes[s.class].used
	used.remove(f.score(s), g)
	s.free = need{s.free.request + n.request, s.free.limit + n.limit, s.free.mem + n.mem}
	i := slices.Index(s.functions, function)
	s.functions = slices.Delete(s.functions, i, i+1)
	if f.rule.affinity {
		f.affinity.leave(function, s.functions)
	}
	if len(s.functions) == 0 {
		f.nodes[s.node].idle++
	} else {
		used.insert(f.score(s), g)
	}
	f.measure(s.node)
}

// within says whether there is room for it.
func (n need) within(free need) bool {
	return n.request <= free.request && n.limit <= free.limit && n.mem <= free.mem
}

// most is the larger of each.
func (n need) most(o need) need {
	return need{max(n.request, o.request), max(n.limit, o.limit), max(n.mem, o.mem)}
}

func (f *Fleet) room(n *node) need {
	room := f.gpus[n.first].free
	for i := n.first + 1; i < n.first+n.count; i++ {
		room = room.most(f.gpus[i].free)
	}
	return room
}

// measure brings what is known of a node up to date.
func (f *Fleet) measure(node int32) {
	n := &f.nodes[node]
	n.room = f.room(n)
	if f.like == nil {
		f.blocks[node/blockSize] = sum(f.block(int(node)))
	}
}

// score is α(1 − Σ request) + β(1 − Σ memory / M) of a GPU as it is, in
// billionths of millionths, with Ω for 1: which changes no order.
func (f *Fleet) score(s *state) int64 { return f.weigh(s.free, f.classes[s.class].mem) }

func (f *Fleet) weigh(n need, mem gpu.Bytes) int64 {
	return f.rule.alpha*n.request + f.rule.beta*fraction(n.mem, mem)
}

// fraction is part/whole in billionths, 0 where memory has no limit.
func fraction(part, whole gpu.Bytes) int64 {
	if whole == math.MaxInt64 || part >= whole {
		if whole == math.MaxInt64 || whole == 0 {
			return 0
		}
		return one
	}
	hi, lo := bits.Mul64(uint64(part), one)
	q, _ := bits.Div64(hi, lo, uint64(whole))
	return int64(q)
}

// class is what GPUs of a kind have in common. Those in use are kept in the
// order of their score.
type class struct {
	mem   gpu.Bytes
	model string
	used  ranking
	gpus  int64 // how many there are
	asked int64 // GPUs that instances asked for by model, in billionths, so far
}

// scarce is how sought after the class is by those who name models: GPUs asked
// for by each there is. It breaks ties only.
func (c *class) scarce() int64 { return c.asked / max(1, c.gpus) }

func (f *Fleet) classOf(mem gpu.Bytes, model string) int32 {
	i := slices.IndexFunc(f.classes, func(c class) bool { return c.mem == mem && c.model == model })
	if i < 0 {
		i = len(f.classes)
		f.classes = append(f.classes, class{mem: mem, model: model})
	}
	return int32(i)
}

// suits says whether GPUs of a class are of a model that will do.
func (c *class) suits(r Request) bool {
	return len(r.Models) == 0 || c.model == "" || slices.Contains(r.Models, c.model)
}

// ask notes which models an instance named, placed or not.
func (f *Fleet) ask(r Request, n need) {
	if len(r.Models) == 0 {
		return
	}
	total := int64(0)
	for i := range f.classes {
		if f.classes[i].suits(r) {
			total += f.classes[i].gpus
		}
	}
	for i := range f.classes {
		if c := &f.classes[i]; c.suits(r) {
			c.asked += n.request * int64(r.GPUs) / max(1, total) * c.gpus
		}
	}
}

// ranked is a GPU and its score.
type ranked struct {
	score int64
	gpu   int
}

func byScore(a, b ranked) int {
	if a.score != b.score {
		return cmp.Compare(a.score, b.score)
	}
	return cmp.Compare(a.gpu, b.gpu)
}

// ranking is GPUs in the order of their score, least first; ties by number.
type ranking []ranked

func (r *ranking) insert(score int64, g int) {
	i, _ := slices.BinarySearchFunc(*r, ranked{score, g}, byScore)
	*r = slices.Insert(*r, i, ranked{score, g})
}

func (r *ranking) remove(score int64, g int) {
	i, _ := slices.BinarySearchFunc(*r, ranked{score, g}, byScore)
	*r = slices.Delete(*r, i, i+1)
}

// from is where scores of at least least begin.
func (r ranking) from(least int64) int {
	i, _ := slices.BinarySearchFunc(r, ranked{least, -1}, byScore)
	return i
}
