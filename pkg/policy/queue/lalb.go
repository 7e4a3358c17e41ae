package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// lalb is locality-aware load balancing (LALB, section IV, Algorithms 1 and 2;
// R18 to R20): one invocation at a time on a GPU, a cache of models on each.
// Limit is how often an invocation may be passed over by one whose model is
// cached. Without locality it is lb: the oldest invocation on any idle GPU.
type lalb struct {
	functions []Function
	locality  bool
	limit     int64
	cache     *residency.Cache
	global    *requests
	gpus      []worker
	hits      []heap // by GPU: models it has that are waited for, by their oldest
	idle      heap   // GPUs, by dispatches so far, then index
	localIdle int    // idle GPUs with a queue of their own
	aside     []int32
	named     []int32 // by model: a function of it, for messages
}

type worker struct {
	busy       bool
	owes       bool // idle with a queue of its own
	dispatches int64
	until      time.Duration // expected end of what runs
	local      []request     // invocations that wait for this GPU
	backlog    time.Duration // how long those take
}

func newLB(c Config) *lalb { return newCached(c, 0, false) }

func newLALB(c Config, limit int) *lalb { return newCached(c, limit, true) }

func newCached(c Config, limit int, locality bool) *lalb {
	models := int32(0)
	for i := range c.Functions {
		models = max(models, c.Functions[i].Model+1)
	}
	p := &lalb{functions: c.Functions, locality: locality, limit: int64(limit), cache: residency.NewCache(c.GPUs, int(models), c.Mem),
		global: newRequests(int(models)), gpus: make([]worker, c.GPUs), hits: make([]heap, c.GPUs), idle: newHeap(c.GPUs),
		named: make([]int32, models)}
	for i := len(c.Functions) - 1; i >= 0; i-- {
		p.named[c.Functions[i].Model] = int32(i)
	}
	for g := range p.gpus {
		p.free(int32(g))
	}
	return p
}

// free puts a GPU among the idle ones.
func (p *lalb) free(g int32) { p.idle.set(g, key{a: p.gpus[g].dispatches, c: int64(g)}) }

// Step applies events and dispatches.
func (p *lalb) Step(now time.Duration, events []Event, actions []Action) []Action {
	for i := range events {
		switch ev := &events[i]; ev.Kind {
		case Completed:
			w := &p.gpus[ev.GPU]
			w.busy = false
			if len(w.local) > 0 {
				w.owes = true
				p.localIdle++
			}
			p.free(ev.GPU)
		case Arrived:
			f := &p.functions[ev.Function]
			if !p.cache.Fits(f.Mem) {
				actions = append(actions, reject(ev))
				continue
			}
			p.global.push(request{id: ev.ID, at: ev.At, function: ev.Function, model: f.Model})
			if p.global.models[f.Model].len == 1 {
				p.follow(f.Model)
			}
		}
	}
	for p.idle.len() > 0 && (p.global.total > 0 || p.localIdle > 0) {
		g := p.idle.min().function
		actions = p.serve(now, g, actions)
		if !p.gpus[g].busy {
			p.idle.remove(g)
			p.aside = append(p.aside, g)
		}
	}
	for _, g := range p.aside {
		p.free(g)
	}
	p.aside = p.aside[:0]
	return actions
}

// serve finds an idle GPU something to do (Algorithm 1).
func (p *lalb) serve(now time.Duration, g int32, actions []Action) []Action {
	if w := &p.gpus[g]; len(w.local) > 0 {
		it := w.local[0]
		w.local = w.local[1:]
		w.backlog -= p.functions[it.function].Warm
		return p.run(now, g, it, "first of the GPU's own queue", actions)
	}
	if !p.locality {
		return p.run(now, g, p.take(p.global.head), "oldest invocation", actions)
	}
	r := p.global
	for r.head != none && r.marks >= p.limit {
		if p.cache.Has(g, r.nodes[r.head].model) {
			return p.run(now, g, p.take(r.head), "its model is cached", actions)
		}
		if actions = p.balance(now, g, actions); p.gpus[g].busy {
			return actions
		}
	}
	hit := p.firstHit(g)
	r.visit(hit)
	if hit != none {
		return p.run(now, g, p.take(hit), "its model is cached", actions)
	}
	for r.head != none && !p.gpus[g].busy {
		actions = p.balance(now, g, actions)
	}
	return actions
}

// firstHit is the oldest invocation whose model the GPU has.
func (p *lalb) firstHit(g int32) int32 {
	if p.hits[g].len() == 0 {
		return none
	}
	return p.global.models[p.hits[g].min().function].head
}

// take takes an invocation out of the global queue.
func (p *lalb) take(n int32) request {
	it := p.global.take(n)
	p.follow(it.model)
	return it
}

// follow tells the GPUs that have a model which of its invocations is the
// oldest.
func (p *lalb) follow(model int32) {
	if !p.locality {
		return
	}
	p.cache.On(model, func(gpu int32) bool {
		p.note(gpu, model)
		return true
	})
}

// note keeps the hits of a GPU that has the model.
func (p *lalb) note(gpu, model int32) {
	h := &p.hits[gpu]
	if h.place == nil {
		*h = newHeap(len(p.named))
	}
	if n := p.global.models[model].head; n == none {
		h.remove(model)
	} else {
		h.set(model, key{c: p.global.nodes[n].id})
	}
}

// balance sends the oldest invocation where it ends first (Algorithm 2,
// LocalityLoadBalance): here unless another idle GPU has its model, or a busy
// one that has will be free before the model could be loaded.
func (p *lalb) balance(now time.Duration, g int32, actions []Action) []Action {
	it := p.take(p.global.head)
	if p.cache.Copies(it.model) == 0 {
		return p.run(now, g, it, "its model is cached nowhere", actions)
	}
	idle, busy := none, none
	p.cache.On(it.model, func(gpu int32) bool {
		w := &p.gpus[gpu]
		switch {
		case !w.busy && (idle == none || w.dispatches < p.gpus[idle].dispatches):
			idle = gpu
		case w.busy && (busy == none || w.until+w.backlog < p.gpus[busy].until+p.gpus[busy].backlog):
			busy = gpu
		}
		return true
	})
	if idle != none {
		return p.run(now, idle, it, "its model is cached on this idle GPU", actions)
	}
	f := &p.functions[it.function]
	if wait := p.gpus[busy].until + p.gpus[busy].backlog - now; wait < f.Load {
		w := &p.gpus[busy]
		w.local = append(w.local, it)
		w.backlog += f.Warm
		return append(actions, Action{Kind: Assign, Function: it.function, GPU: busy, Container: none, ID: it.id, Arrived: it.at,
			Reason: Reason{Rule: "its model is cached on this busy GPU, free before it could be loaded", Value: float64(wait) / 1e6}})
	}
	return p.run(now, g, it, "no GPU with its model is free before it can be loaded", actions)
}

// run starts an invocation on an idle GPU.
func (p *lalb) run(now time.Duration, g int32, it request, rule string, actions []Action) []Action {
	f, w := &p.functions[it.function], &p.gpus[g]
	elsewhere := p.cache.Copies(it.model) > 0
	a := Action{Kind: Run, Start: residency.GPUWarm, Function: it.function, GPU: g, Container: none, ID: it.id, Arrived: it.at,
		Expected: f.Warm, Reason: Reason{Rule: rule, Waiting: p.global.models[it.model].len + 1}}
	if !p.cache.Use(g, it.model, f.Mem) {
		a.Start, a.Elsewhere, a.Expected = residency.HostWarm, elsewhere, f.Warm+f.Load
		if p.locality {
			p.note(g, it.model)
		}
	}
	for _, c := range p.cache.Changes() {
		if p.locality {
			p.hits[g].remove(c.Function)
		}
		actions = append(actions, Action{Kind: Remove, Function: p.named[c.Function], GPU: g, Container: none,
			Reason: Reason{Rule: "model used least recently"}})
	}
	if p.idle.has(g) {
		p.idle.remove(g)
	}
	w.busy = true
	w.dispatches++
	w.until = now + a.Expected
	if w.owes {
		w.owes = false
		p.localIdle--
	}
	return append(actions, a)
}
