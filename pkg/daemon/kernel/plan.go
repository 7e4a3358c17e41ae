package kernel

import (
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// plan describes how a request runs on a worker: the job to send, and the state to update
// when the job has ended.
type plan struct {
	task // its saves are objects without a host copy that are evicted or taken over
	r    *request

	side      []*task   // tasks on other workers of the GPU that make room, run before job
	blocks    []*block  // by buffer
	allocated []*block  // new blocks of the request, in the order in which the job allocates them
	reused    []*block  // blocks reused from objects
	used      []*block  // blocks of objects that the request reads
	reading   []*object // objects whose host bytes the request reads
	regions   []*region // by buffer: host memory for its result; nil for none
	staging   []*region // host memory for bytes sent with the request
	loads     []int     // by module of the job: its index in the request
	moved     bool      // an object turned out to be on another GPU; gather must run again
	bytes     int64     // charged to the host's budget for stored objects and answers
	places    int       // reserved for new objects

	refused *kgraph.Problem // why the request cannot run; nil if it can
	sent    bool            // job was sent to the executor
}

func (p *plan) gpus() *gpus { return p.w.dev.gpus }

// evictUnused evicts unused objects from the GPU: those of all clients if all is set, otherwise
// those of clients other than except.
func (p *plan) evictUnused(except *client, all bool) {
	for c := range p.w.dev.cache.All() {
		if c.pins == 0 && c.object != nil && (all || c.object.owner != except) {
			p.evict(c)
		}
	}
}

// pinObjects looks up the objects that the request reads, and pins their copies on the GPU. It
// also counts cache hits and misses.
func (p *plan) pinObjects() *kgraph.Problem {
	cache := &p.r.answer.Cache
	counted := map[*object]bool{}
	for i := range p.r.graph.Buffers {
		b := &p.r.graph.Buffers[i]
		if !b.Reads() {
			continue
		}
		where := "/buffers/" + kgraph.Pointer(b.Name)
		o := p.r.client.objects[b.Key]
		switch {
		case o == nil && strings.HasPrefix(b.Key, "@"):
			return p.r.client.missing(b.Key, where+"/key")
		case o == nil:
			return problem(kgraph.NotFound, where+"/key", "there is no object %q", b.Key)
		case o.size != b.Size:
			return problem(kgraph.BadRequest, where+"/size", "the object %q now has %d bytes", b.Key, o.size)
		}
		c := o.copyOn(p.w.dev)
		if c == nil && o.host == nil { // replaced since gather ran
			p.moved = true
			return problem(CodeInternal, where+"/key", "the object %q is on another GPU", b.Key)
		}
		if !counted[o] {
			counted[o] = true
			switch {
			case c != nil && o.used:
				cache.GPUHits++
			case p.r.missed[b.Key]:
				cache.Misses++
			default:
				cache.HostHits++
			}
		}
		o.used = true
		if c != nil {
			c.pin()
			p.used = append(p.used, c)
		}
		if b.Kind == kgraph.Input {
			p.blocks[i] = c
		}
	}
	return nil
}

// reserveHost reserves host memory and places for the objects that the request stores, and host
// memory for its answer.
func (p *plan) reserveHost() *kgraph.Problem {
	g := p.gpus()
	places := 0
	for i := range p.r.graph.Buffers {
		if b := &p.r.graph.Buffers[i]; b.Writes() && p.r.client.objects[b.Key] == nil {
			places++
		}
	}
	if refused := g.reserve(p.r.client, places); refused != nil {
		refused.Where = "/buffers"
		return refused
	}
	p.places = places
	for i := range p.r.graph.Buffers {
		b := &p.r.graph.Buffers[i]
		var size int64
		if b.Writes() {
			size += b.Size
		}
		if answered(b) {
			size += b.Size
		}
		if refused := g.checkHostBudget(size); refused != nil {
			refused.Where = "/buffers/" + kgraph.Pointer(b.Name)
			return refused
		}
		g.charge(p.r.client, size)
		p.bytes += size
	}
	return nil
}

// answered reports whether the host bytes of a buffer serve only the answer and are not
// stored as an object.
func answered(b *kgraph.Buffer) bool { return b.Inline && (!b.Writes() || b.Volatile) }

// reusableBlock returns the object's block if a buffer that replaces the object may use that
// block in place, and nil otherwise. The block must be on this worker, and no other request
// or buffer may use it.
func (p *plan) reusableBlock(b *kgraph.Buffer) *block {
	o := p.r.client.objects[b.Key]
	c := o.copyOn(p.w.dev)
	if c == nil || c.pins > 1 || c.worker != p.w || !slices.Contains(p.used, c) {
		return nil
	}
	return c
}

// reserveGPU evicts unused blocks until all new blocks of the request fit.
func (p *plan) reserveGPU() *kgraph.Problem {
	dev := p.w.dev
	var size int64
	counted := map[string]bool{}
	for i := range p.r.graph.Buffers {
		b := &p.r.graph.Buffers[i]
		switch {
		case p.blocks[i] != nil, b.Kind == kgraph.Inout && p.reusableBlock(b) != nil:
			continue
		case b.Kind == kgraph.Input && b.Key != "":
			if counted[b.Key] {
				continue
			}
			counted[b.Key] = true
		}
		size += job.Footprint(b.Size)
	}
	evicted, ok := dev.cache.Room(size)
	if !ok {
		return problem(kgraph.TooLarge, "/buffers", "%d bytes of buffers do not fit in addition to the memory in use: the limit on %s is %d", size, dev.limits.Name, dev.limits.Budget)
	}
	for _, c := range evicted {
		p.evict(c)
	}
	return nil
}

// evict removes a block from the GPU. If the block holds the only copy of an object, evict
// reserves host memory and adds the transfer to the job of the block's worker.
func (p *plan) evict(c *block) {
	g := p.gpus()
	o := c.object
	p.r.answer.Cache.Evicted++
	c.worker.dev.evicted++
	if o != nil && o.host == nil && len(o.copies) == 1 {
		if err := p.taskOn(c.worker).save(c); err != nil { // the domain's addresses are exhausted: see newDomain
			g.log.Error("cannot copy an object to the host", "client", o.owner.name, "key", o.key, "err", err)
			g.drop(o)
			return
		}
	}
	c.discard()
}

// taskOn returns the plan's task on a worker of the GPU, which it adds if necessary.
func (p *plan) taskOn(w *worker) *task {
	if w == p.w {
		return &p.task
	}
	for _, t := range p.side {
		if t.w == w {
			return t
		}
	}
	t := &task{w: w}
	p.side = append(p.side, t)
	return t
}

// assignBlocks assigns a block to every buffer and adds the allocations and transfers to the job.
func (p *plan) assignBlocks() error {
	w, j := p.w, &p.job
	cache := &p.r.answer.Cache
	upload := func(number uint32, o *object) {
		o.readers++
		p.reading = append(p.reading, o)
		j.Upload = append(j.Upload, job.Copy{Block: number, Offset: o.host.offset, Size: o.size})
		cache.BytesUp += o.size
	}
	allocate := func(size int64, of *object) *block {
		c := w.alloc(size, of)
		p.allocated = append(p.allocated, c)
		j.Alloc = append(j.Alloc, job.Block{Number: c.number, Size: size})
		return c
	}
	for i := range p.r.graph.Buffers { // read-only inputs first: other buffers may copy them
		b := &p.r.graph.Buffers[i]
		if b.Kind != kgraph.Input || p.blocks[i] != nil {
			continue
		}
		if b.Data != nil {
			at, err := w.dom.alloc(b.Size)
			if err != nil {
				return err
			}
			p.staging = append(p.staging, at)
			copy(at.bytes(), b.Data)
			c := allocate(b.Size, nil)
			p.blocks[i] = c
			j.Upload = append(j.Upload, job.Copy{Block: c.number, Offset: at.offset, Size: b.Size})
			cache.BytesUp += b.Size
			continue
		}
		o := p.r.client.objects[b.Key]
		c := o.copyOn(w.dev)
		if c == nil {
			c = allocate(b.Size, o)
			upload(c.number, o)
		}
		p.blocks[i] = c
	}
	for i := range p.r.graph.Buffers {
		b := &p.r.graph.Buffers[i]
		if b.Kind == kgraph.Input {
			continue
		}
		var c *block
		if b.Kind == kgraph.Inout {
			c = p.reusableBlock(b)
		}
		if c != nil {
			if err := p.reuseBlock(c); err != nil {
				return err
			}
		} else {
			c = allocate(b.Size, nil)
			switch {
			case b.Kind != kgraph.Inout:
				j.Zero = append(j.Zero, c.number)
			default:
				o := p.r.client.objects[b.Key]
				if from := o.copyOn(w.dev); from != nil && from.worker == w {
					j.Duplicate = append(j.Duplicate, job.Duplicate{To: c.number, From: from.number})
				} else {
					upload(c.number, o)
				}
			}
		}
		p.blocks[i] = c
		if b.Inline || b.Writes() && !b.Volatile {
			to, err := w.dom.alloc(b.Size)
			if err != nil {
				return err
			}
			p.regions[i] = to
			j.Download = append(j.Download, job.Copy{Block: c.number, Offset: to.offset, Size: b.Size})
		}
	}
	return nil
}

// reuseBlock turns an object's block into one of the request's own. It first saves an object
// without a host copy, because the object must survive if the request fails.
func (p *plan) reuseBlock(c *block) error {
	if c.object.host == nil {
		if err := p.save(c); err != nil {
			return err
		}
	}
	c.unlink()
	i := slices.Index(p.used, c)
	p.used = slices.Delete(p.used, i, i+1)
	p.reused = append(p.reused, c)
	return nil
}

// setLimits sets how much GPU memory each executor may hold, and numbers the plan's job. If the GPU's
// budget would be exceeded, it makes other executors release their free blocks.
func (p *plan) setLimits() {
	g, dev := p.gpus(), p.w.dev
	var otherBytes int64
	for _, w := range dev.workers {
		if w != p.w && w.exec != nil {
			otherBytes += w.allocated
		}
	}
	if otherBytes+p.w.live > dev.limits.Budget {
		otherBytes = 0
		for _, w := range dev.workers {
			if w == p.w || w.exec == nil {
				continue
			}
			if w.allocated > w.live {
				p.taskOn(w)
			}
			otherBytes += w.live
		}
	}
	p.job.Limit = dev.limits.Budget - otherBytes
	for _, t := range p.side {
		t.w.free(&t.job)
		t.job.Limit = t.w.live
	}
	g.lastJob++
	p.job.ID = g.lastJob
}

// addKernels adds the launches to the job, and loads the modules that they need.
func (p *plan) addKernels() {
	g, j := p.r.graph, &p.job
	j.Iterations = g.Iterations
	numbers := make([]uint32, len(g.Modules))
	for i := range g.Modules {
		if !p.launchesModule(i) {
			continue
		}
		text := g.Modules[i].Code()
		before := len(j.Load)
		numbers[i] = p.w.link(text, j)
		if len(j.Load) > before {
			p.loads = append(p.loads, i)
		}
	}
	p.r.answer.Cache.ModulesLinked = len(j.Load)
	j.Kernels = make([]job.Kernel, len(g.Kernels))
	for i := range g.Kernels {
		k := &g.Kernels[i]
		args := make([]job.Arg, len(k.Args))
		for n := range k.Args {
			if a := &k.Args[n]; a.Type == "buffer" {
				args[n] = job.Arg{Block: p.blocks[a.Buffer].number, Offset: a.Offset}
			} else {
				args[n] = job.Arg{Value: a.Value}
			}
		}
		j.Kernels[i] = job.Kernel{Module: numbers[k.Module], Name: k.Name, Grid: k.Grid, Block: k.Block, Shared: k.Shared, Args: args}
	}
}

// launchesModule reports whether the request launches a kernel of the module.
func (p *plan) launchesModule(module int) bool {
	return slices.ContainsFunc(p.r.graph.Kernels, func(k kgraph.Kernel) bool { return k.Module == module })
}
