package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// lalb is locality-aware load balancing (LALB, section IV, Algorithms 1 and 2;
// R18 to R20): one invocation at a time on a GPU, which keeps the instances that
// it has memory for, least recently used out. Limit is how often an invocation
// may be passed over by one whose model is there. Without locality it is lb: the
// oldest invocation on any idle GPU.
//
// By the paper what is sent to a busy GPU waits for that one, however long its
// work takes; see Options.Patient.
type lalb struct {
	engine    *engine
	locality  bool
	limit     int64
	global    *requests
	gpus      []worker
	first     []int32   // by model: the first function of it
	kin       []kin     // by function
	copies    sets      // by model: the GPUs that have it
	hits      []heap    // by GPU: models it has that are waited for, by their oldest as it was at some time: see firstHit
	idle      heap      // GPUs, by dispatches so far, then index
	queued    []int32   // GPUs with a queue of their own, in order
	localIdle int       // idle ones of those
	aside     []int32   // idle GPUs for which there was nothing
	swept     int32     // the GPU whose visits of this step are counted
	parked    []request // invocations that no GPU can take now
	taken     request   // what next chose
}

// kin is a function's model, which functions may share, and the next of those.
type kin struct{ model, next int32 }

type worker struct {
	open, busy bool
	owes       bool  // idle with a queue of its own
	model      int32 // busy: what runs
	slot       int32 // the same: where
	dispatches int64
	begin      time.Duration // when what runs began
	until      time.Duration // expected end of what runs
	local      []request     // invocations that wait for this GPU
	backlog    time.Duration // how long those take
}

func newLALB(e *engine, limit int, locality bool) *lalb {
	return &lalb{engine: e, locality: locality, limit: int64(limit), global: newRequests(), swept: none, taken: request{function: none}}
}

func (p *lalb) shape(c *residency.Config) { c.Pool, c.NoHost = residency.Unlimited, true }

func (p *lalb) grow(functions, gpus, _ int) {
	p.gpus = grown(p.gpus, gpus)
	p.hits = grown(p.hits, gpus)
	p.idle.grow(gpus)
	for len(p.kin) < functions {
		p.kin = append(p.kin, kin{none, none})
	}
	p.size(functions)
	for g := range p.gpus {
		if w := &p.gpus[g]; !w.open && p.engine.slots[g] > 0 {
			if w.open = true; !w.busy {
				p.free(int32(g))
			}
		}
	}
}

func (p *lalb) changed(f int32) {
	for _, g := range p.queued {
		p.measure(&p.gpus[g])
	}
	m := f
	if shared := p.engine.functions[f].Model; shared > 0 {
		m = shared - 1
	}
	if m == p.kin[f].model {
		p.outdated(m)
		return
	}
	p.forget(f)
	p.size(int(m) + 1)
	at := &p.first[m]
	for *at != none && *at < f {
		at = &p.kin[*at].next
	}
	p.kin[f] = kin{m, *at}
	*at = f
}

// outdated has what waits for a GPU be decided again, where the instance that it waits for
// is of an old version.
func (p *lalb) outdated(model int32) {
	for g := range p.gpus {
		if w := &p.gpus[g]; w.busy && w.model == model && p.engine.pool.Obsolete(w.slot) {
			p.look(int32(g), model)
			p.release(int32(g))
		}
	}
}

// measure adds up how long what waits for a GPU takes.
func (p *lalb) measure(w *worker) {
	w.backlog = 0
	for i := range w.local {
		w.backlog += p.engine.functions[w.local[i].function].Warm
	}
}

// size makes room for that many models.
func (p *lalb) size(models int) {
	for len(p.first) < models {
		p.first = append(p.first, none)
	}
	p.copies.grow(len(p.first), len(p.gpus))
	p.global.grow(len(p.first))
	for g := range p.hits {
		p.hits[g].grow(len(p.first))
	}
}

func (p *lalb) forget(f int32) {
	if p.kin[f].model == none {
		return
	}
	at := &p.first[p.kin[f].model]
	for *at != f {
		at = &p.kin[*at].next
	}
	*at = p.kin[f].next
	p.kin[f].model = none
}

// free puts a GPU among the idle ones.
func (p *lalb) free(g int32) { p.idle.set(g, key{a: p.gpus[g].dispatches, c: int64(g)}) }

// closed has what waits for a GPU that is gone wait for any.
func (p *lalb) closed(g int32) {
	p.gpus[g].open = false
	p.idle.remove(g)
	p.aside = without(p.aside, g)
	p.release(g)
}

// release has what waits for a GPU be decided again.
func (p *lalb) release(g int32) {
	w := &p.gpus[g]
	for _, it := range w.local {
		p.global.putBack(it)
		p.follow(it.model)
	}
	w.local, w.backlog = nil, 0
	p.settle(g)
}

// settle notes whether a GPU has a queue of its own, and is idle.
func (p *lalb) settle(g int32) {
	w := &p.gpus[g]
	p.queued = holding(p.queued, g, len(w.local) > 0)
	if owes := w.open && !w.busy && len(w.local) > 0; owes != w.owes {
		if w.owes = owes; owes {
			p.localIdle++
		} else {
			p.localIdle--
		}
	}
}

func (p *lalb) request(f int32, m member) request {
	return request{member: m, function: f, model: p.kin[f].model}
}

// count has the engine's queues know how many wait.
func (p *lalb) count(f, by int32) {
	q := p.engine.queues
	q.queues[f].len += by
	q.total += int(by)
}

func (p *lalb) push(_ time.Duration, f int32, m member) {
	it := p.request(f, m)
	p.count(f, 1)
	p.global.push(it)
	if p.global.models[it.model].len == 1 {
		p.follow(it.model)
	}
}

func (p *lalb) putBack(f int32, m member) {
	it := p.request(f, m)
	p.count(f, 1)
	p.global.putBack(it)
	p.follow(it.model)
}

// take gives what next chose, or else the function's oldest.
func (p *lalb) take(f int32) member {
	if p.taken.function == f {
		p.taken.function = none
		p.count(f, -1)
		return p.taken.member
	}
	m := p.list(f)[0]
	p.drop(f, m.id)
	return m
}

func (p *lalb) drop(f int32, id int64) bool {
	if n := p.global.find(p.kin[f].model, id); n != none {
		p.pick(n)
		p.count(f, -1)
		return true
	}
	is := func(it request) bool { return it.id == id }
	for _, g := range p.queued {
		w := &p.gpus[g]
		if i := slices.IndexFunc(w.local, is); i >= 0 {
			w.local = slices.Delete(w.local, i, i+1)
			w.backlog -= p.engine.functions[f].Warm
			p.settle(g)
			p.count(f, -1)
			return true
		}
	}
	if i := slices.IndexFunc(p.parked, is); i >= 0 {
		p.parked = slices.Delete(p.parked, i, i+1)
		p.count(f, -1)
		return true
	}
	return false
}

func (p *lalb) list(f int32) (out []member) {
	add := func(it request) {
		if it.function == f {
			out = append(out, it.member)
		}
	}
	for n := p.global.models[p.kin[f].model].head; n != none; n = p.global.nodes[n].later {
		add(p.global.nodes[n])
	}
	for _, g := range p.queued {
		for _, it := range p.gpus[g].local {
			add(it)
		}
	}
	for _, it := range p.parked {
		add(it)
	}
	slices.SortFunc(out, func(a, b member) int { return cmp.Compare(a.id, b.id) })
	return out
}

func (p *lalb) began(time.Duration, int32, bool)                {}
func (p *lalb) grew(int32)                                      {}
func (p *lalb) ceased(int32)                                    {}
func (p *lalb) plans() bool                                     { return false }
func (p *lalb) ended(time.Duration, int32, *run, time.Duration) {}

// opened begins a step: GPUs for which there was nothing are looked at again,
// and so is what no GPU could take.
func (p *lalb) opened(now time.Duration) {
	for _, g := range p.aside {
		if w := &p.gpus[g]; w.open && !w.busy {
			p.free(g)
		}
	}
	p.aside, p.swept = p.aside[:0], none
	for _, it := range p.parked {
		p.global.putBack(it)
		p.follow(it.model)
	}
	p.parked = p.parked[:0]
	if p.engine.config.Patient {
		return
	}
	for i := len(p.queued) - 1; i >= 0; i-- { // releasing one takes it out
		if w := &p.gpus[p.queued[i]]; w.busy && w.extend(now) {
			p.release(p.queued[i])
		}
	}
}

// extend takes work that is overdue to last for as long again as it has so far.
func (w *worker) extend(now time.Duration) (late bool) {
	if late = overdue(w.begin, w.until) < now; late {
		w.until = now + now - w.begin
	}
	return late
}

func (p *lalb) wake() time.Duration {
	at := Never
	if !p.engine.config.Patient {
		for _, g := range p.queued {
			if w := &p.gpus[g]; w.busy {
				at = min(at, overdue(w.begin, w.until)+1)
			}
		}
	}
	return at
}

func (p *lalb) next(now time.Duration, c *choice) bool {
	for p.idle.len() > 0 && (p.global.total > 0 || p.localIdle > 0) {
		g := p.idle.min().function
		if p.serve(now, g, c) {
			return true
		}
		p.idle.remove(g)
		p.aside = append(p.aside, g)
		p.swept = none
	}
	return false
}

// serve finds an idle GPU something to do, or an invocation a place (Algorithm 1).
func (p *lalb) serve(now time.Duration, g int32, c *choice) bool {
	w := &p.gpus[g]
	for len(w.local) > 0 {
		it := w.local[0]
		w.local = w.local[1:]
		w.backlog -= p.engine.functions[it.function].Warm
		p.settle(g)
		if p.can(g, it.function) {
			return p.run(c, g, &it, "first of the GPU's own queue")
		}
		p.global.putBack(it)
		p.follow(it.model)
	}
	r := p.global
	if !p.locality {
		for r.head != none {
			it := p.pick(r.head)
			if at := p.place(g, it.function); at != none {
				return p.run(c, at, it, "oldest invocation")
			}
			p.parked = append(p.parked, *it)
		}
		return false
	}
	for p.swept != g && r.head != none && r.marks >= p.limit {
		if it := &r.nodes[r.head]; p.copies.has(it.model, g) && p.can(g, it.function) {
			return p.run(c, g, p.pick(r.head), "its model is cached")
		}
		if p.balance(now, g, c) {
			return true
		}
	}
	if p.swept != g {
		hit := p.firstHit(g)
		r.visit(hit)
		if hit != none {
			return p.run(c, g, p.pick(hit), "its model is cached")
		}
		p.swept = g
	}
	for r.head != none {
		if p.balance(now, g, c) {
			return true
		}
	}
	return false
}

// can says whether a GPU could run an invocation of the function at once.
func (p *lalb) can(g, f int32) bool {
	pool := p.engine.pool
	return !p.gpus[g].busy && pool.Room(g, f) && !pool.Blocked(f, p.engine.queues.queues[f].len) &&
		(pool.On(f, g).Slot != none || !pool.Capped(f))
}

// place is that GPU, or another idle one, that could run an invocation of the
// function.
func (p *lalb) place(g, f int32) int32 {
	if p.can(g, f) {
		return g
	}
	for _, it := range p.idle.items {
		if p.can(it.function, f) {
			return it.function
		}
	}
	return none
}

// firstHit is the oldest invocation whose model the GPU has: as a rule one of the
// first that wait.
func (p *lalb) firstHit(g int32) int32 {
	const near = 64
	r, hit := p.global, none
	for n, i := r.head, 0; n != none && i < near && hit == none && !r.mixed; n, i = r.nodes[n].next, i+1 {
		if p.copies.has(r.nodes[n].model, g) {
			hit = n
		}
	}
	if hit == none {
		hit = p.foremost(g)
	}
	if hit == none || !p.can(g, r.nodes[hit].function) {
		return none
	}
	return hit
}

// foremost is the oldest invocation by what a GPU's hits say. A model's place there
// is corrected only when it comes first: meanwhile its oldest may have gone, so that
// it is to come later, or none may wait for it any more.
func (p *lalb) foremost(g int32) int32 {
	r, h := p.global, &p.hits[g]
	for h.len() > 0 && r.head != none {
		first := h.min()
		switch oldest := r.models[first.function].head; {
		case oldest == none:
			h.remove(first.function)
		case r.nodes[oldest].id > first.key.a:
			h.set(first.function, key{a: r.nodes[oldest].id})
		default:
			return oldest
		}
	}
	return none
}

// pick takes an invocation out of the global queue. It is to be read before the
// next is put there.
func (p *lalb) pick(n int32) *request {
	it := p.global.take(n)
	if p.global.mixed { // the next of its model may have a lower number
		p.follow(it.model)
	}
	return it
}

// on is an idle instance of a function of the model on the GPU, if there is one.
func (p *lalb) on(g, model int32) (residency.Place, bool) {
	for f := p.first[model]; f != none; f = p.kin[f].next {
		if at := p.engine.pool.On(f, g); at.Slot != none {
			return at, true
		}
	}
	return residency.Place{}, false
}

// look notes whether a GPU has the model, busy with it or not.
func (p *lalb) look(g, model int32) {
	w := &p.gpus[g]
	has := w.busy && w.model == model && !p.engine.pool.Obsolete(w.slot)
	if !has {
		_, has = p.on(g, model)
	}
	if p.copies.has(model, g) != has {
		p.cached(g, model, has)
	}
}

// cached notes that a GPU got the model, or lost it.
func (p *lalb) cached(g, model int32, has bool) {
	p.copies.set(model, g, has)
	if has {
		p.note(g, model)
	} else {
		p.hits[g].remove(model)
	}
}

// follow tells the GPUs that have a model of an invocation that may be its
// oldest now.
func (p *lalb) follow(model int32) {
	if !p.locality {
		return
	}
	for g := range p.copies.of(model) {
		p.note(g, model)
	}
}

// note has a GPU's hits know of the oldest invocation of a model that it has.
func (p *lalb) note(g, model int32) {
	if n := p.global.models[model].head; n != none && p.locality {
		p.hits[g].lower(model, key{a: p.global.nodes[n].id})
	}
}

// balance sends the oldest invocation where it ends first (Algorithm 2,
// LocalityLoadBalance): here unless another idle GPU has its model, or a busy
// one that has will be free before the model could be loaded. False is that no
// GPU can take it now.
func (p *lalb) balance(now time.Duration, g int32, c *choice) bool {
	it := p.pick(p.global.head)
	idle, busy := none, none
	for gpu := range p.copies.of(it.model) {
		w := &p.gpus[gpu]
		if !p.engine.config.Patient && w.busy {
			w.extend(now)
		}
		switch {
		case !w.open:
		case !w.busy && p.can(gpu, it.function) && (idle == none || w.dispatches < p.gpus[idle].dispatches):
			idle = gpu
		case w.busy && (busy == none || w.until+w.backlog < p.gpus[busy].until+p.gpus[busy].backlog):
			busy = gpu
		}
	}
	switch {
	case idle != none:
		return p.run(c, idle, it, "its model is cached on this idle GPU")
	case busy != none:
		f, w := &p.engine.functions[it.function], &p.gpus[busy]
		if wait := w.until + w.backlog - now; wait < f.Load {
			w.local = append(w.local, *it)
			w.backlog += f.Warm
			p.settle(busy)
			c.anywhere(it.function, "its model is cached on this busy GPU, free before it could be loaded", float64(wait)/1e6)
			c.assigned, c.at, c.member = true, residency.Place{GPU: busy}, it.member
			return true
		}
	}
	at := p.place(g, it.function)
	if at == none {
		p.parked = append(p.parked, *it)
		return false
	}
	if busy == none {
		return p.run(c, at, it, "its model is cached nowhere")
	}
	return p.run(c, at, it, "no GPU with its model is free before it can be loaded")
}

// run chooses an invocation for an idle GPU. It is true.
func (p *lalb) run(c *choice, g int32, it *request, rule string) bool {
	p.taken = *it
	at, cached := p.on(g, it.model)
	if !cached {
		at = residency.Place{GPU: g, Start: residency.Cold, Slot: none}
	}
	c.on(it.function, at, rule, 0)
	c.taken = true
	c.reason.Waiting = p.global.models[it.model].len + 1
	c.elsewhere = !cached && p.copies.some(it.model)
	return true
}

func (p *lalb) left(now time.Duration, f int32, r *run) {
	w := &p.gpus[r.gpu]
	p.idle.remove(r.gpu)
	w.busy, w.model, w.slot = true, p.kin[f].model, r.slot
	w.dispatches++
	w.begin, w.until = now, r.until
	p.settle(r.gpu)
	p.look(r.gpu, w.model)
	if p.swept == r.gpu {
		p.swept = none
	}
}

func (p *lalb) freed(f, g int32) {
	w := &p.gpus[g]
	w.busy = false
	p.settle(g)
	if w.open {
		p.free(g)
	}
	p.look(g, p.kin[f].model)
}

func (p *lalb) moved(f, g int32) { p.look(g, p.kin[f].model) }

func (p *lalb) why(f int32) string {
	for _, g := range p.queued {
		for _, it := range p.gpus[g].local {
			if it.function == f {
				return "waits for a busy GPU that has its model"
			}
		}
	}
	return ""
}
