package kernel

import (
	"errors"
	"slices"
	"strconv"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// attempts limits how many times a request runs if failures do not appear to be its own fault.
const attempts = 3

// runner runs requests on GPUs.
type runner struct{ *gpus }

// execute runs a request on the GPU that the policy chose, and retries it if try allows that.
func (x *runner) execute(r *request) *kgraph.Problem {
	for attempt := 1; ; attempt++ {
		p, retry := x.try(r)
		if !retry || attempt == attempts {
			return p
		}
		x.log.Info("running a request again", "request", r.id, "client", r.client.name, "why", p.Message)
	}
}

// try runs a request once. It returns retry = true if the failure does not appear to be the
// request's fault, so that the caller may retry.
func (x *runner) try(r *request) (p *kgraph.Problem, retry bool) {
	plan := r.launched
	if r.launched = nil; plan == nil {
		if plan, p, retry = x.prepare(r); p != nil {
			return p, retry
		}
	}
	defer r.dev.lane.Unlock()
	x.mu.Lock()
	for _, t := range plan.side {
		_, _ = x.runTask(t) // after an error, runTask has dropped the objects
	}
	x.mu.Unlock()
	if plan.refused != nil {
		x.abandon(plan, job.NotStarted, 0, false)
		return plan.refused, plan.moved
	}
	if !plan.sent {
		x.send(plan.w, &plan.job)
	}
	o, err := x.outcome(plan.w, &plan.job)
	if err == nil && o.Code == 0 {
		x.commit(plan, &o)
		return nil, false
	}
	p, retry = x.blame(plan, &o, err)
	x.abandon(plan, o.Step, o.Index, err != nil || o.Fatal)
	return p, retry
}

// prepare brings the request's objects within reach and plans it. It returns with the lane held
// if, and only if, the plan is not nil. For retry see try.
func (x *runner) prepare(r *request) (planned *plan, p *kgraph.Problem, retry bool) {
	if p := x.gather(r); p != nil {
		return nil, p, false
	}
	r.dev.lane.Lock()
	x.mu.Lock()
	defer x.mu.Unlock()
	w, err := r.dev.ensureWorker(r.client.dom)
	if err != nil {
		r.dev.lane.Unlock()
		x.log.Error("cannot start an executor", "gpu", r.dev.name, "err", err)
		return nil, problem(CodeInternal, "", "cannot start an executor: %v", err), true
	}
	return x.launch(r, w), nil, false
}

// launch plans a request. It sends the job if the job is short and no side job must run first.
// The caller holds the lock and the lane.
func (x *runner) launch(r *request, w *worker) *plan {
	p := x.plan(r, w)
	if p.refused == nil && len(p.side) == 0 {
		text := p.job.Append(nil)
		if p.sent = len(text) <= maxInlineJob; p.sent {
			w.exec.Send(text, x.cfg.KernelTimeout)
		}
	}
	return p
}

// maxInlineJob is the longest job, in bytes, that launch sends under the lock. An idle executor
// reads this much without blocking the sender.
const maxInlineJob = 64 << 10

// blame maps the failure of a job to the request's problem. For retry see try.
func (x *runner) blame(p *plan, o *job.Outcome, err error) (answer *kgraph.Problem, retry bool) {
	switch {
	case errors.Is(err, job.ErrTimeout):
		return problem(CodeTimeout, "/kernels", "no progress for %v: the executor was killed", x.cfg.KernelTimeout), false
	case err != nil:
		return problem(CodeFault, "/kernels", "%v", err), true
	}
	switch at := p.kernel(o.Index); o.Step {
	case job.Load:
		module := &p.r.graph.Modules[p.loads[min(int(o.Index), len(p.loads)-1)]]
		code := kgraph.BadRequest
		if o.Code == job.CodeNoBinary || o.Code == job.CodeUnsupportedPTX {
			code = kgraph.Unsupported
		}
		if o.Code == job.CodeOutOfMemory {
			code = kgraph.TooLarge
		}
		where := "/modules/" + kgraph.Pointer(module.Name) + "/" + module.Source()
		if module.Binary != "" {
			return problem(code, where, "the driver does not load the code: %s", o.Text), false
		}
		return problem(code, where, "the PTX does not compile: %s", o.Text), false
	case job.Alloc:
		if o.Code == job.CodeOutOfMemory {
			p.r.squeeze = true
			return problem(kgraph.TooLarge, "/buffers", "the GPU has no memory for the buffers: other programs use it"), true
		}
	case job.Kernels:
		if o.Fatal {
			return problem(CodeFault, at, "%s", o.Text), false
		}
		if o.Code == job.CodeNoBinary {
			return problem(kgraph.Unsupported, at, "the kernel cannot be launched on %s: %s (a simulated GPU loads machine code, but runs only PTX)", p.w.dev.limits.Name, o.Text), false
		}
		return problem(kgraph.BadRequest, at, "the kernel cannot be launched: %s", o.Text), false
	case job.Download:
		if o.Fatal { // a kernel faulted after the Kernels step had reported success
			return problem(CodeFault, "/kernels", "%s", o.Text), false
		}
	}
	return problem(CodeInternal, "", "the job failed at step %d: %s", o.Step, o.Text), o.Fatal
}

// kernel returns the JSON pointer to a kernel, or to all of them if the index is unknown.
func (p *plan) kernel(index uint32) string {
	if index == job.AnyIndex {
		return "/kernels"
	}
	return "/kernels/" + strconv.Itoa(int(index))
}

// abandon undoes a plan whose job failed at the given step, or was not sent (job.None). It
// still carries out the planned evictions. The caller holds the lane.
func (x *runner) abandon(p *plan, at job.Step, index uint32, lost bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !lost && at < job.Save && (len(p.job.Save) > 0 || len(p.job.Free) > 0) {
		// The job failed before it saved or freed anything: carry out the evictions.
		o, err := x.runTask(&task{p.w, job.Job{Limit: p.job.Limit, Save: p.job.Save, Free: p.job.Free}, p.saves})
		lost = err != nil || o.Fatal
	}
	x.completeSaves(p.saves, at > job.Save)
	if !lost {
		for i, c := range p.allocated {
			c.unlink()
			if at > job.Alloc || at == job.Alloc && uint32(i) < index {
				continue
			}
			// The executor did not allocate this block.
			p.w.dev.cache.Remove(c)
			p.w.live -= job.Footprint(c.size)
			p.w.blockNumbers.release(c.number)
		}
		if at <= job.Load {
			p.forgetModules(at, index)
		}
		for _, c := range slices.Concat(p.allocated, p.reused) {
			c.unlink()
			c.unpin()
		}
	}
	for _, c := range p.used {
		c.unpin()
		// A faulty kernel may have overwritten the copy: rely on the one on the host.
		if at >= job.Kernels && !lost && c.object != nil && c.object.host != nil && c.pins == 0 {
			c.discard()
		}
	}
	x.charge(p.r.client, -p.bytes)
	x.unreserve(p.r.client, p.places)
	x.releaseInputs(p)
	for _, to := range p.regions {
		if to != nil {
			to.free()
		}
	}
}

// forgetModules removes the records of the modules that were not loaded.
func (p *plan) forgetModules(at job.Step, index uint32) {
	for i, m := range p.job.Load {
		if at == job.Load && uint32(i) < index {
			continue
		}
		p.w.forget(moduleKey(m.PTX))
	}
}

// releaseInputs releases the objects that a plan read from the host, and its staging memory. The
// caller holds the lock.
func (x *runner) releaseInputs(p *plan) {
	for _, o := range p.reading {
		o.readers--
		x.release(o)
	}
	for _, at := range p.staging {
		at.free()
	}
}

// commit stores all results of a request at once and fills in its answer.
func (x *runner) commit(p *plan, o *job.Outcome) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := p.r
	r.answer.GPUMS = ms(o.GPU)
	r.phases = phases{0, o.Link, o.CopyIn, o.GPU, o.CopyOut} // finish sets the time in the queue
	r.client.gpuTime += o.GPU
	x.completeSaves(p.saves, true)
	for i := range r.graph.Buffers {
		b := &r.graph.Buffers[i]
		if b.Kind != kgraph.Output && b.Kind != kgraph.Inout {
			continue
		}
		to := p.regions[i]
		var from, stored *object
		if answered(b) {
			from = &object{owner: r.client, size: b.Size, host: to, dropped: true}
			to = nil
		}
		if b.Writes() {
			stored = &object{owner: r.client, key: b.Key, size: b.Size, volatile: b.Volatile, host: to, used: true}
			if to == nil {
				stored.home = r.dev
			}
			c := p.blocks[i]
			c.object = stored
			stored.copies = append(stored.copies, c)
			x.add(stored)
		}
		if b.Inline && from == nil {
			from = stored
		}
		if from != nil {
			from.readers++
		}
		r.answer.Outputs[b.Name] = Output{Key: b.Key, Size: b.Size, from: from}
	}
	x.unreserve(r.client, p.places)
	for _, c := range slices.Concat(p.allocated, p.reused, p.used) {
		c.unpin()
	}
	x.releaseInputs(p)
}

// gather copies to the host those objects of the request whose only copy is on another GPU.
func (x *runner) gather(r *request) *kgraph.Problem {
	for i := range r.graph.Buffers {
		b := &r.graph.Buffers[i]
		if !b.Reads() {
			continue
		}
		x.mu.Lock()
		o := r.client.objects[b.Key]
		remote := r.onOtherGPU(o)
		x.mu.Unlock()
		if !remote {
			continue
		}
		if err := x.save(o); err != nil {
			return problem(CodeInternal, "/buffers/"+kgraph.Pointer(b.Name), "%v", err)
		}
		if r.missed == nil {
			r.missed = map[string]bool{}
		}
		r.missed[b.Key] = true
	}
	return nil
}

// plan assigns memory to a request and makes room for it. If it sets plan.refused, the caller must
// call abandon. The caller holds the lock and the lane.
func (x *runner) plan(r *request, w *worker) *plan {
	p := &plan{task: task{w: w}, r: r, blocks: make([]*block, len(r.graph.Buffers)), regions: make([]*region, len(r.graph.Buffers))}
	w.turn++
	w.used = x.lastJob
	r.answer.Cache = Cache{}
	if x.cfg.Policy == "exclusive" || r.squeeze {
		p.evictUnused(r.client, r.squeeze)
	}
	p.refused = p.pinObjects()
	if p.refused == nil {
		p.refused = p.reserveHost()
	}
	if p.refused == nil {
		p.refused = p.reserveGPU()
	}
	w.free(&p.job)
	if p.refused == nil {
		if err := p.assignBlocks(); err != nil {
			p.refused = problem(CodeInternal, "", "%v", err)
		}
	}
	p.setLimits()
	if p.refused == nil {
		p.addKernels()
	}
	return p
}
