package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// attempts is how often a request is run whose executor ends without the
// request having anything to do with it, as far as can be told.
const attempts = 3

// execute runs a request on the GPU that the policy gave it.
func (d *Daemon) execute(r *request) *Problem {
	for attempt := 1; ; attempt++ {
		p, again := d.try(r)
		if !again || attempt == attempts {
			return p
		}
		d.log.Info("a request runs again", "request", r.id, "client", r.client.name, "why", p.Message)
	}
}

// try runs a request once. Again says that it may be run once more: what went
// wrong was not its fault.
func (d *Daemon) try(r *request) (p *Problem, again bool) {
	f := r.launched
	if r.launched = nil; f == nil {
		if f, p, again = d.prepare(r); p != nil {
			return p, again
		}
	}
	defer r.dev.lane.Unlock()
	plan, w := f.plan, f.plan.w
	for i := range plan.side {
		s := &plan.side[i]
		o, err := d.do(s.w, &s.job)
		d.mu.Lock()
		d.settle(s.saves, err == nil && o.Code == 0)
		d.mu.Unlock()
	}
	if f.refused != nil {
		d.abandon(plan, job.None, 0, false)
		return f.refused, plan.moved
	}
	if !f.sent {
		d.send(w, &plan.job)
	}
	o, err := d.outcome(w, &plan.job)
	if err == nil && o.Code == 0 {
		d.commit(plan, &o)
		return nil, false
	}
	p, again = d.blame(plan, &o, err)
	d.abandon(plan, o.Step, o.Index, err != nil || o.Fatal)
	return p, again
}

// flight is a request that is about to run: how, or why it cannot.
type flight struct {
	plan    *plan
	refused *Problem
	sent    bool // to the executor
}

// prepare plans a request, with what that needs first. When it returns a flight the
// lane is held. Again is as in try.
func (d *Daemon) prepare(r *request) (f *flight, p *Problem, again bool) {
	if p := d.gather(r); p != nil {
		return nil, p, false
	}
	r.dev.lane.Lock()
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := r.dev.worker(r.client.dom)
	if err != nil {
		r.dev.lane.Unlock()
		d.log.Error("an executor cannot be started", "gpu", r.dev.name, "err", err)
		return nil, problem(CodeInternal, "", "an executor cannot be started: %v", err), true
	}
	return d.launch(r, w), nil, false
}

// launch plans a request, and sends the job where nothing else has to be done
// before. Locked, and the lane is held.
func (d *Daemon) launch(r *request, w *worker) *flight {
	f := &flight{}
	if f.plan, f.refused = d.plan(r, w); f.refused == nil && len(f.plan.side) == 0 {
		text := f.plan.job.Append(nil)
		if f.sent = len(text) <= promptly; f.sent {
			w.exec.Send(text, d.cfg.KernelTimeout)
		}
	}
	return f
}

// promptly is how long a job may be that is sent under the lock: an executor that
// has nothing to do takes so much at once.
const promptly = 64 << 10

// do has a worker's executor carry out a job. One that is of no use afterwards is
// gone when it returns. The lane is held.
func (d *Daemon) do(w *worker, j *job.Job) (job.Outcome, error) {
	d.send(w, j)
	return d.outcome(w, j)
}

// send begins a job.
func (d *Daemon) send(w *worker, j *job.Job) {
	if w.exec != nil {
		w.exec.Send(j.Append(nil), d.cfg.KernelTimeout)
	}
}

// outcome waits for what becomes of a job that was sent.
func (d *Daemon) outcome(w *worker, j *job.Job) (job.Outcome, error) {
	if w.exec == nil {
		return job.Outcome{}, errors.New("the executor is gone")
	}
	o, err := w.exec.Wait(j.ID, d.cfg.KernelTimeout)
	if err == nil && o.Code != 0 && !harmless(o.Step) {
		o.Fatal = true
	}
	if err == nil && !o.Fatal {
		d.mu.Lock()
		w.held = o.Held
		d.mu.Unlock()
		return o, nil
	}
	if err == nil {
		d.log.Warn("a kernel faulted: its executor ends", "gpu", w.dev.name, "err", o.Text)
	} else {
		d.log.Warn("an executor ends", "gpu", w.dev.name, "err", err)
	}
	w.exec.Kill()
	d.mu.Lock()
	w.dev.faults++
	w.dev.lost(w)
	d.mu.Unlock()
	return o, err
}

// harmless says whether an executor goes on after a failure at that step. At
// others it and the daemon do not agree on what there is.
func harmless(at job.Step) bool { return at == job.Load || at == job.Alloc || at == job.Kernels }

// blame says what a job's failure is to the request.
func (d *Daemon) blame(p *plan, o *job.Outcome, err error) (answer *Problem, again bool) {
	switch {
	case errors.Is(err, job.ErrTimeout):
		return problem(CodeTimeout, "/kernels", "no progress for %v: the executor was ended", d.cfg.KernelTimeout), false
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
		return problem(code, "/modules/"+kgraph.Pointer(module.Name)+"/ptx", "it does not compile: %s", o.Text), false
	case job.Alloc:
		if o.Code == job.CodeOutOfMemory {
			p.r.squeeze = true
			return problem(kgraph.TooLarge, "/buffers", "the GPU has no room for its buffers: others have taken memory"), true
		}
	case job.Kernels:
		if o.Fatal {
			return problem(CodeFault, at, "%s", o.Text), false
		}
		return problem(kgraph.BadRequest, at, "it cannot be launched: %s", o.Text), false
	case job.Download:
		if o.Fatal { // of a kernel that went on behind the others' back
			return problem(CodeFault, "/kernels", "%s", o.Text), false
		}
	}
	return problem(CodeInternal, "", "a job failed at step %d: %s", o.Step, o.Text), o.Fatal
}

// kernel is the place of a kernel, as far as it is known.
func (p *plan) kernel(index uint32) string {
	if index == job.AnyIndex {
		return "/kernels"
	}
	return "/kernels/" + strconv.Itoa(int(index))
}

// settle notes whether objects that left a GPU are on the host now. Locked.
func (d *Daemon) settle(saves []save, ok bool) {
	for i := range saves {
		s := saves[i]
		if saves[i].to = nil; s.to == nil {
			continue // settled before
		}
		s.o.readers--
		if ok {
			s.o.host, s.o.home = s.to, nil
		} else {
			s.to.give()
			if !s.o.gone {
				d.log.Warn("a volatile object is lost with its executor", "client", s.o.owner.name, "key", s.o.key)
				d.drop(s.o)
				continue
			}
		}
		d.release(s.o)
	}
}

// abandon gives up a plan that failed at a step, or of which nothing was done.
// What was to leave the GPU before does so. The lane is held.
func (d *Daemon) abandon(p *plan, at job.Step, index uint32, lost bool) {
	if !lost && at < job.Save && (len(p.job.Save) > 0 || len(p.job.Free) > 0) {
		// Nothing but modules was touched: do the rest of what makes room.
		j := job.Job{ID: p.job.ID, Limit: p.job.Limit, Save: p.job.Save, Free: p.job.Free}
		_, err := d.do(p.w, &j)
		lost = err != nil
		d.mu.Lock()
		d.settle(p.saves, !lost)
		d.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settle(p.saves, at > job.Save)
	if !lost {
		for i, c := range p.fresh {
			c.unlink()
			if at > job.Alloc || at == job.Alloc && uint32(i) < index {
				continue
			}
			// It was never there: nothing is to be freed.
			p.w.dev.cache.Remove(c.id)
			delete(p.w.dev.copies, c.id)
			p.w.live -= footprint(c.size)
			p.w.slots.give(c.slot)
		}
		if at <= job.Load {
			p.forgetModules(at, index)
		}
		for _, c := range slices.Concat(p.fresh, p.taken) {
			c.unlink()
			d.unpin(c)
		}
	}
	for _, c := range p.used {
		d.unpin(c)
		// A kernel may have written where it should not: the host knows better.
		if at >= job.Kernels && !lost && c.of != nil && c.of.host != nil && c.pins == 0 {
			d.discard(c)
		}
	}
	d.charge(p.r.client, -p.bytes)
	d.unreserve(p.r.client, p.places)
	d.putBack(p)
	for _, to := range p.regions {
		if to != nil {
			to.give()
		}
	}
}

// forgetModules takes out those that were not loaded.
func (p *plan) forgetModules(at job.Step, index uint32) {
	for i, m := range p.job.Load {
		if at == job.Load && uint32(i) < index {
			continue
		}
		p.w.forget(moduleKey(m.PTX))
	}
}

// putBack gives back what a plan only read, and its own bytes. Locked.
func (d *Daemon) putBack(p *plan) {
	for _, o := range p.reading {
		o.readers--
		d.release(o)
	}
	for _, at := range p.staging {
		at.give()
	}
}

// commit stores what a request has made, all at once.
func (d *Daemon) commit(p *plan, o *job.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := p.r
	r.answer.GPUMS = ms(o.GPU)
	r.client.gpuTime += o.GPU
	d.settle(p.saves, true)
	for i := range r.graph.Buffers {
		b := &r.graph.Buffers[i]
		if b.Kind != kgraph.Output && b.Kind != kgraph.Inout {
			continue
		}
		to := p.regions[i]
		var from, made *object
		if answered(b) {
			from = &object{owner: r.client, size: b.Size, host: to, gone: true}
			to = nil
		}
		if b.Writes() {
			made = &object{owner: r.client, key: b.Key, size: b.Size, volatile: b.Volatile, host: to, used: true}
			if to == nil {
				made.home = r.dev
			}
			c := p.blocks[i]
			c.of = made
			made.copies = append(made.copies, c)
			d.store(made)
		}
		if b.Inline && from == nil {
			from = made
		}
		if from != nil {
			from.readers++
		}
		r.answer.Outputs[b.Name] = Output{Key: b.Key, Size: b.Size, from: from}
	}
	d.unreserve(r.client, p.places)
	for _, c := range slices.Concat(p.fresh, p.taken, p.used) {
		d.unpin(c)
	}
	d.putBack(p)
}

// gather brings objects to the host that are on another GPU alone.
func (d *Daemon) gather(r *request) *Problem {
	d.mu.Lock()
	away := d.scattered(r)
	d.mu.Unlock()
	if !away {
		return nil
	}
	for i := range r.graph.Buffers {
		b := &r.graph.Buffers[i]
		if !b.Reads() {
			continue
		}
		d.mu.Lock()
		o := r.client.objects[b.Key]
		away := r.away(o)
		d.mu.Unlock()
		if !away {
			continue
		}
		if err := d.save(o); err != nil {
			return problem(CodeInternal, "/buffers/"+kgraph.Pointer(b.Name), "%v", err)
		}
		if r.missed == nil {
			r.missed = map[string]bool{}
		}
		r.missed[b.Key] = true
	}
	return nil
}

// scattered says whether an object that a request reads is on another GPU alone.
// Locked.
func (d *Daemon) scattered(r *request) bool {
	for i := range r.graph.Buffers {
		if b := &r.graph.Buffers[i]; b.Reads() && r.away(r.client.objects[b.Key]) {
			return true
		}
	}
	return false
}

func (r *request) away(o *object) bool { return o != nil && o.host == nil && o.home != r.dev }

// save brings an object to the host that is on a GPU alone. It may be gone
// afterwards.
func (d *Daemon) save(o *object) error {
	d.mu.Lock()
	dev := o.home
	d.mu.Unlock()
	if dev == nil {
		return nil
	}
	dev.lane.Lock()
	defer dev.lane.Unlock()
	d.mu.Lock()
	if o.host != nil || len(o.copies) == 0 {
		d.mu.Unlock()
		return nil
	}
	c := o.copies[0]
	s, err := o.toHost()
	if err != nil {
		d.mu.Unlock()
		return err
	}
	d.lastJob++
	j := job.Job{ID: d.lastJob, Limit: max(c.at.held, c.at.live), Save: []job.Copy{s.copy(c)}}
	c.pin()
	d.mu.Unlock()
	outcome, err := d.do(c.at, &j)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unpin(c)
	d.settle([]save{s}, err == nil && outcome.Code == 0)
	if err == nil && outcome.Code != 0 {
		err = fmt.Errorf("saving %s: %s", o.key, outcome.Text)
	}
	return err
}
