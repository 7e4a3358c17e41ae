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

// resources holds the resources of an instance on each of its GPUs, or the free resources of a GPU.
type resources struct {
	request, limit int64 // billionths of the SMs
	mem            gpu.Bytes
}

// state describes one GPU of a fleet.
type state struct {
	free      resources
	class     int32   // index of its class: memory and model
	node      int32   // index of its node
	functions []int32 // functions of its instances, once per instance
}

// node is a range of GPUs.
type node struct {
	first, count int32
	idle         int32     // GPUs without instances
	shape        int32     // number of the list of its GPUs' classes; nodes with equal GPUs have the same
	room         resources // componentwise largest free resources of its GPUs
}

// blockSize is the number of nodes per block, about the square root of the nodes of a large cluster.
const blockSize = 32

// block summarizes consecutive nodes, so that a search can skip them at once.
type block struct {
	room  resources // componentwise largest free resources of the nodes' GPUs
	idle  bool      // none of the nodes' GPUs is in use
	shape int32     // shape of all nodes, or -1 if they differ
}

// placement is a running instance.
type placement struct {
	gpus      []int
	resources resources
	function  int32
}

// Fleet holds GPUs and the instances on them, and places instances by one rule.
type Fleet struct {
	rule        rule
	template    *plan.Device // memory and model of GPUs that are added; nil if the fleet is not elastic
	gpus        []state
	classes     []class
	nodes       []node
	blocks      []block
	largestNode int                  // largest number of GPUs of a node
	running     map[string]placement // by instance
	affinity    affinity
	lastQuery   []int       // by shape: the last query that has considered an idle node of the shape
	query       int         // number of the current search for a node
	candidates  []candidate // GPUs with room on the node that is being considered
	best        []int       // GPUs of the best node so far
}

// Grouped returns the devices grouped by node and, within a node, ordered by index. Nodes keep the
// order of their first device.
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

// newFleet returns an empty fleet. The devices must be grouped by node. A device with 0 MiB has
// unlimited memory.
func newFleet(devices []plan.Device, r rule) *Fleet {
	f := &Fleet{rule: r, running: map[string]placement{}, affinity: newAffinity()}
	for i, d := range devices {
		f.add(d, i > 0 && d.Node == devices[i-1].Node)
	}
	f.shapes()
	return f
}

// add adds an idle GPU to the last node or, if sameNode is false, to a new node.
func (f *Fleet) add(d plan.Device, sameNode bool) {
	if !sameNode {
		f.nodes = append(f.nodes, node{first: int32(len(f.gpus))})
	}
	n := &f.nodes[len(f.nodes)-1]
	n.count++
	n.idle++
	f.largestNode = max(f.largestNode, int(n.count))
	mem := gpu.Bytes(math.MaxInt64)
	if d.MemMiB > 0 {
		mem = max(0, gpu.FromMiB(d.MemMiB-d.UsedMemMiB))
	}
	at := f.classOf(mem, d.Model)
	f.classes[at].gpus++
	f.gpus = append(f.gpus, state{
		free: resources{f.rule.omega, f.rule.gamma, mem}, class: at, node: int32(len(f.nodes) - 1),
	})
}

// shapes sets the shape and room of each node, and computes the blocks.
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
			shape = int32(len(f.lastQuery))
			known[string(classes)] = shape
			f.lastQuery = append(f.lastQuery, 0)
		}
		n.shape = shape
		n.room = f.room(n)
	}
	for first := 0; first < len(f.nodes); first += blockSize {
		f.blocks = append(f.blocks, summarize(f.block(first)))
	}
}

// block returns the nodes of the block to which node n belongs.
func (f *Fleet) block(n int) []node {
	first := n / blockSize * blockSize
	return f.nodes[first:min(first+blockSize, len(f.nodes))]
}

func summarize(nodes []node) block {
	b := block{room: nodes[0].room, idle: true, shape: nodes[0].shape}
	for i := range nodes {
		n := &nodes[i]
		b.room = b.room.max(n.room)
		b.idle = b.idle && n.idle == n.count
		if n.shape != b.shape {
			b.shape = -1
		}
	}
	return b
}

// Put reserves the resources of an instance that another component has placed on these GPUs, even
// beyond the limits of the rule. The instance must not be running.
func (f *Fleet) Put(r Request, gpus []int) {
	request, limit := f.rule.share(r)
	p := placement{gpus: slices.Clone(gpus), resources: resources{share(request), share(limit), r.Mem}, function: f.affinity.id(r.Function)}
	for _, g := range p.gpus {
		f.allocate(g, p.resources, p.function)
	}
	f.running[r.Instance] = p
}

// Place decides on which GPUs the instance runs and reserves its resources there. The instance must
// not be running.
func (f *Fleet) Place(r Request) Decision {
	request, limit := f.rule.share(r)
	p := placement{resources: resources{share(request), share(limit), r.Mem}, function: f.affinity.id(r.Function)}
	if f.rule.affinity {
		f.affinity.mark(p.function)
	}
	d := f.choose(r, p.resources)
	f.recordDemand(r, p.resources)
	if len(d.GPUs) == 0 {
		return d
	}
	p.gpus = d.GPUs
	for _, g := range p.gpus {
		f.allocate(g, p.resources, p.function)
	}
	f.running[r.Instance] = p
	return d
}

// Remove releases the resources of an instance. It reports whether the instance was running.
func (f *Fleet) Remove(instance string) bool {
	p, ok := f.running[instance]
	if !ok {
		return false
	}
	delete(f.running, instance)
	for _, g := range p.gpus {
		f.release(g, p.resources, p.function)
	}
	return true
}

func (f *Fleet) allocate(g int, n resources, function int32) {
	s := &f.gpus[g]
	used := &f.classes[s.class].used
	if len(s.functions) == 0 {
		f.nodes[s.node].idle--
	} else {
		used.remove(f.score(s), g)
	}
	s.free = resources{s.free.request - n.request, s.free.limit - n.limit, s.free.mem - n.mem}
	used.insert(f.score(s), g)
	if f.rule.affinity {
		f.affinity.addPairs(function, s.functions, 1)
	}
	s.functions = append(s.functions, function)
	f.refreshRoom(s.node)
}

func (f *Fleet) release(g int, n resources, function int32) {
	s := &f.gpus[g]
	used := &f.classes[s.class].used
	used.remove(f.score(s), g)
	s.free = resources{s.free.request + n.request, s.free.limit + n.limit, s.free.mem + n.mem}
	i := slices.Index(s.functions, function)
	s.functions = slices.Delete(s.functions, i, i+1)
	if f.rule.affinity {
		f.affinity.addPairs(function, s.functions, -1)
	}
	if len(s.functions) == 0 {
		f.nodes[s.node].idle++
	} else {
		used.insert(f.score(s), g)
	}
	f.refreshRoom(s.node)
}

// fitsIn reports whether free suffices for n.
func (n resources) fitsIn(free resources) bool {
	return n.request <= free.request && n.limit <= free.limit && n.mem <= free.mem
}

// max returns the componentwise maximum.
func (n resources) max(o resources) resources {
	return resources{max(n.request, o.request), max(n.limit, o.limit), max(n.mem, o.mem)}
}

func (f *Fleet) room(n *node) resources {
	room := f.gpus[n.first].free
	for i := n.first + 1; i < n.first+n.count; i++ {
		room = room.max(f.gpus[i].free)
	}
	return room
}

// refreshRoom recomputes the room of a node and its block.
func (f *Fleet) refreshRoom(node int32) {
	n := &f.nodes[node]
	n.room = f.room(n)
	if f.template == nil {
		f.blocks[node/blockSize] = summarize(f.block(int(node)))
	}
}

// score returns α(Ω − Σ request) + β(1 − Σ memory / M) of a GPU, scaled by 10^15. The paper has 1
// in place of Ω, which does not change the order. A GPU with less free resources has a lower score
// and is preferred.
func (f *Fleet) score(s *state) int64 { return f.weigh(s.free, f.classes[s.class].mem) }

// weigh returns the contribution of resources to the score of a GPU with that memory.
func (f *Fleet) weigh(n resources, mem gpu.Bytes) int64 {
	return f.rule.alpha*n.request + f.rule.beta*fraction(n.mem, mem)
}

// fraction returns partial/whole in billionths, or 0 if memory is unlimited or partial is negative.
func fraction(partial, whole gpu.Bytes) int64 {
	switch {
	case whole == math.MaxInt64 || whole == 0 || partial < 0:
		return 0
	case partial >= whole:
		return billion
	}
	hi, lo := bits.Mul64(uint64(partial), billion)
	q, _ := bits.Div64(hi, lo, uint64(whole))
	return int64(q)
}

// class describes GPUs with the same memory and model.
type class struct {
	mem       gpu.Bytes
	model     string
	used      ranking // its GPUs in use
	gpus      int64   // number of GPUs
	requested int64   // sum of requests for GPUs of its model by instances that name models, in billionths
}

// scarcity returns the demand for the class by instances that name models, per GPU. It only breaks
// ties.
func (c *class) scarcity() int64 { return c.requested / max(1, c.gpus) }

func (f *Fleet) classOf(mem gpu.Bytes, model string) int32 {
	i := slices.IndexFunc(f.classes, func(c class) bool { return c.mem == mem && c.model == model })
	if i < 0 {
		i = len(f.classes)
		f.classes = append(f.classes, class{mem: mem, model: model})
	}
	return int32(i)
}

// suits reports whether the request allows GPUs of the class's model.
func (c *class) suits(r Request) bool {
	return len(r.Models) == 0 || c.model == "" || slices.Contains(r.Models, c.model)
}

// recordDemand adds the request to the demand of the classes that it names, even if it was not
// placed.
func (f *Fleet) recordDemand(r Request, n resources) {
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
			c.requested += n.request * int64(r.GPUs) / max(1, total) * c.gpus
		}
	}
}

// ranked is a GPU and its score.
type ranked struct {
	score int64
	gpu   int
}

func byScore(a, b ranked) int {
	return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.gpu, b.gpu))
}

// ranking holds GPUs in ascending order of score; ties are by index.
type ranking []ranked

func (r *ranking) insert(score int64, g int) {
	i, _ := slices.BinarySearchFunc(*r, ranked{score, g}, byScore)
	*r = slices.Insert(*r, i, ranked{score, g})
}

func (r *ranking) remove(score int64, g int) {
	i, _ := slices.BinarySearchFunc(*r, ranked{score, g}, byScore)
	*r = slices.Delete(*r, i, i+1)
}

// search returns the position of the first score that is at least lowest.
func (r ranking) search(lowest int64) int {
	i, _ := slices.BinarySearchFunc(r, ranked{lowest, -1}, byScore)
	return i
}
