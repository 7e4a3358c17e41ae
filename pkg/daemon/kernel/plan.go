package kernel

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// plan is how a request is to run on a worker: the job, and what to do when it
// is over.
type plan struct {
	r   *request
	w   *worker
	job job.Job

	side    []sideJob // of other workers of the GPU, before
	blocks  []*copied // by buffer
	fresh   []*copied // blocks of the request's own, as the job allocates them
	taken   []*copied // blocks that it took over from objects
	used    []*copied // blocks of objects that it reads
	reading []*object // whose bytes on the host it reads
	saves   []save    // objects that leave the GPU, or change there, and were nowhere else
	regions []*region // by buffer: where its bytes go on the host; nil for none
	staging []*region // of the request's own bytes
	loads   []int     // by module of the job: which of the request's
	moved   bool      // an object has to be brought here first
	bytes   int64     // of the host's budget, for what it stores and answers
	places  int       // for objects that it stores and that replace none
}

// sideJob makes room.
type sideJob struct {
	w   *worker
	job job.Job
	// saves are those of the job.
	saves []save
}

// save is an object on its way to the host.
type save struct {
	o  *object
	to *region
}

// toHost finds an object's place on the host, which settle gives it. Locked.
func (o *object) toHost() (save, error) {
	to, err := o.owner.dom.take(o.size)
	if err != nil {
		return save{}, err
	}
	o.readers++
	return save{o, to}, nil
}

// copy is what brings it there, from a block.
func (s *save) copy(c *copied) job.Copy {
	return job.Copy{Block: c.slot, Offset: s.to.offset, Size: s.o.size}
}

// plan decides what of a request is where, and makes room. Locked, and the lane is
// held. After a problem abandon must follow.
func (d *Daemon) plan(r *request, w *worker) (*plan, *Problem) {
	p := &plan{r: r, w: w, blocks: make([]*copied, len(r.graph.Buffers)), regions: make([]*region, len(r.graph.Buffers))}
	w.turn++
	w.used = d.lastJob
	r.answer.Cache = Cache{}
	if d.cfg.Policy == "exclusive" || r.squeeze {
		p.clear(r.client, r.squeeze)
	}
	refused := p.objects()
	if refused == nil {
		refused = p.hostRoom()
	}
	if refused == nil {
		refused = p.gpuRoom()
	}
	if refused == nil {
		if err := p.move(); err != nil {
			refused = problem(CodeInternal, "", "%v", err)
		}
	} else {
		w.free(&p.job)
	}
	p.limit()
	if refused == nil {
		p.kernels()
	}
	return p, refused
}

func (p *plan) d() *Daemon { return p.w.dev.d }

// clear has the objects of other clients leave the GPU, or all.
func (p *plan) clear(but *client, all bool) {
	for _, c := range p.w.dev.copies {
		if c.pins == 0 && c.of != nil && (all || c.of.owner != but) {
			p.evict(c)
		}
	}
}

// objects finds the objects that the request reads, and keeps those that are on
// the GPU from leaving it.
func (p *plan) objects() *Problem {
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
		case o == nil:
			return problem(kgraph.NotFound, where+"/key", "there is no object %q", b.Key)
		case o.size != b.Size:
			return problem(kgraph.BadRequest, where+"/size", "the object %q has %d bytes now", b.Key, o.size)
		}
		c := o.on(p.w.dev)
		if c == nil && o.host == nil { // another took its place since gather
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

// hostRoom reserves room on the host for what the request stores and answers.
func (p *plan) hostRoom() *Problem {
	d := p.d()
	places := 0
	for i := range p.r.graph.Buffers {
		if b := &p.r.graph.Buffers[i]; b.Writes() && p.r.client.objects[b.Key] == nil {
			places++
		}
	}
	if refused := d.reserve(p.r.client, places); refused != nil {
		refused.Where = "/buffers"
		return refused
	}
	p.places = places
	for i := range p.r.graph.Buffers {
		b := &p.r.graph.Buffers[i]
		var need int64
		if b.Writes() {
			need += b.Size
		}
		if answered(b) {
			need += b.Size
		}
		if refused := d.room(need); refused != nil {
			refused.Where = "/buffers/" + kgraph.Pointer(b.Name)
			return refused
		}
		d.charge(p.r.client, need)
		p.bytes += need
	}
	return nil
}

// answered says whether a buffer has bytes on the host for the answer alone.
func answered(b *kgraph.Buffer) bool { return b.Inline && (!b.Writes() || b.Volatile) }

// takesOver says whether a buffer that replaces an object may work on the block
// that the object has: nobody else does, in this request or another.
func (p *plan) takesOver(b *kgraph.Buffer) *copied {
	o := p.r.client.objects[b.Key]
	c := o.on(p.w.dev)
	if c == nil || c.pins > 1 || c.at != p.w || !slices.Contains(p.used, c) {
		return nil
	}
	return c
}

// gpuRoom has what nobody uses leave the GPU until all new blocks fit.
func (p *plan) gpuRoom() *Problem {
	dev := p.w.dev
	var need int64
	once := map[string]bool{}
	for i := range p.r.graph.Buffers {
		b := &p.r.graph.Buffers[i]
		switch {
		case p.blocks[i] != nil, b.Kind == kgraph.Inout && p.takesOver(b) != nil:
			continue
		case b.Kind == kgraph.Input && b.Key != "":
			if once[b.Key] {
				continue
			}
			once[b.Key] = true
		}
		need += footprint(b.Size)
	}
	leave, ok := dev.cache.Room(need)
	if !ok {
		return problem(kgraph.TooLarge, "/buffers", "%d bytes of buffers do not fit beside what is in use: %s may have %d", need, dev.limits.Name, dev.limits.Budget)
	}
	for _, id := range leave {
		p.evict(dev.copies[id])
	}
	return nil
}

// evict has a block leave. What is nowhere else is saved; its place on the host is
// reserved.
func (p *plan) evict(c *copied) {
	d := p.d()
	o := c.of
	p.r.answer.Cache.Evicted++
	c.at.dev.evicted++
	if o != nil && o.host == nil && len(o.copies) == 1 {
		s, err := o.toHost()
		if err != nil { // more than the address space: see newDomain
			d.log.Error("an object cannot be saved", "client", o.owner.name, "key", o.key, "err", err)
			d.drop(o)
			return
		}
		if c.at == p.w {
			p.job.Save = append(p.job.Save, s.copy(c))
			p.saves = append(p.saves, s)
		} else {
			side := p.sideOf(c.at)
			side.job.Save = append(side.job.Save, s.copy(c))
			side.saves = append(side.saves, s)
		}
	}
	d.discard(c)
}

func (p *plan) sideOf(w *worker) *sideJob {
	for i := range p.side {
		if p.side[i].w == w {
			return &p.side[i]
		}
	}
	p.side = append(p.side, sideJob{w: w})
	return &p.side[len(p.side)-1]
}

// move gives every buffer a block and says what is in it, and where it goes.
func (p *plan) move() error {
	w, j := p.w, &p.job
	w.free(j)
	cache := &p.r.answer.Cache
	upload := func(slot uint32, o *object) {
		o.readers++
		p.reading = append(p.reading, o)
		j.Upload = append(j.Upload, job.Copy{Block: slot, Offset: o.host.offset, Size: o.size})
		cache.BytesUp += o.size
	}
	fresh := func(size int64, of *object) *copied {
		c := w.alloc(size, of)
		p.fresh = append(p.fresh, c)
		j.Alloc = append(j.Alloc, job.Block{Number: c.slot, Size: size})
		return c
	}
	for i := range p.r.graph.Buffers { // what is only read, first: others may copy it
		b := &p.r.graph.Buffers[i]
		if b.Kind != kgraph.Input || p.blocks[i] != nil {
			continue
		}
		if b.Data != nil {
			at, err := w.dom.take(b.Size)
			if err != nil {
				return err
			}
			p.staging = append(p.staging, at)
			copy(at.bytes(), b.Data)
			c := fresh(b.Size, nil)
			p.blocks[i] = c
			j.Upload = append(j.Upload, job.Copy{Block: c.slot, Offset: at.offset, Size: b.Size})
			cache.BytesUp += b.Size
			continue
		}
		o := p.r.client.objects[b.Key]
		c := o.on(w.dev)
		if c == nil {
			c = fresh(b.Size, o)
			upload(c.slot, o)
		}
		p.blocks[i] = c
	}
	for i := range p.r.graph.Buffers {
		b := &p.r.graph.Buffers[i]
		if b.Kind == kgraph.Input {
			continue
		}
		var c *copied
		if b.Kind == kgraph.Inout {
			c = p.takesOver(b)
		}
		if c != nil {
			if err := p.takeOver(c); err != nil {
				return err
			}
		} else {
			c = fresh(b.Size, nil)
			switch {
			case b.Kind != kgraph.Inout:
				j.Zero = append(j.Zero, c.slot)
			default:
				o := p.r.client.objects[b.Key]
				if from := o.on(w.dev); from != nil && from.at == w {
					j.Duplicate = append(j.Duplicate, job.Duplicate{To: c.slot, From: from.slot})
				} else {
					upload(c.slot, o)
				}
			}
		}
		p.blocks[i] = c
		if b.Inline || b.Writes() && !b.Volatile {
			to, err := w.dom.take(b.Size)
			if err != nil {
				return err
			}
			p.regions[i] = to
			j.Download = append(j.Download, job.Copy{Block: c.slot, Offset: to.offset, Size: b.Size})
		}
	}
	return nil
}

// takeOver makes an object's block one of the request's. The object is on the host
// from then on, for the next that wants it, or for this one if it fails.
func (p *plan) takeOver(c *copied) error {
	o := c.of
	if o.host == nil {
		s, err := o.toHost()
		if err != nil {
			return err
		}
		p.job.Save = append(p.job.Save, s.copy(c))
		p.saves = append(p.saves, s)
	}
	c.unlink()
	for i, used := range p.used {
		if used == c {
			p.used = append(p.used[:i], p.used[i+1:]...)
			break
		}
	}
	p.taken = append(p.taken, c)
	return nil
}

// limit shares the GPU's memory out: what other executors hold without using it
// they give back.
func (p *plan) limit() {
	d, dev := p.d(), p.w.dev
	var others int64
	for _, w := range dev.workers {
		if w != p.w && w.exec != nil {
			others += w.held
		}
	}
	if others+p.w.live > dev.limits.Budget {
		others = 0
		for _, w := range dev.workers {
			if w == p.w || w.exec == nil {
				continue
			}
			if w.held > w.live {
				p.sideOf(w)
			}
			others += w.live
		}
	}
	p.job.Limit = dev.limits.Budget - others
	for i := range p.side {
		s := &p.side[i]
		s.w.free(&s.job)
		s.job.Limit = s.w.live
		d.lastJob++
		s.job.ID = d.lastJob
	}
	d.lastJob++
	p.job.ID = d.lastJob
}

// kernels writes the launches down.
func (p *plan) kernels() {
	g, j := p.r.graph, &p.job
	j.Iterations = g.Iterations
	numbers := make([]uint32, len(g.Modules))
	for i := range g.Modules {
		if !p.launches(i) {
			continue
		}
		m := &g.Modules[i]
		text := m.PTX
		if m.Builtin != "" {
			text = kgraph.BuiltinPTX(m.Builtin)
		}
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
				args[n] = job.Arg{Block: p.blocks[a.Buffer].slot, Offset: a.Offset}
			} else {
				args[n] = job.Arg{Value: a.Value}
			}
		}
		j.Kernels[i] = job.Kernel{Module: numbers[k.Module], Name: k.Name, Grid: k.Grid, Block: k.Block, Shared: k.Shared, Args: args}
	}
}

// launches says whether any kernel is of that module.
func (p *plan) launches(module int) bool {
	for i := range p.r.graph.Kernels {
		if p.r.graph.Kernels[i].Module == module {
			return true
		}
	}
	return false
}
