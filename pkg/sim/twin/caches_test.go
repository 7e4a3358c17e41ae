package twin

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// device is a GPU of lb, lalb and lalb-o3. It runs one request at a time and has a cache of
// models (R18).
type device struct {
	index      int
	cache      []string // least recently used first
	size       map[string]float64
	current    *invocation
	end        time.Duration
	local      []*invocation
	dispatches int
}

type request struct {
	*invocation
	visits int
}

// caches is the state for R18 to R20.
type caches struct {
	*world
	devices []*device
	queue   []*request
}

func (w *world) runCaches() *caches {
	c := &caches{world: w}
	for g := range w.gpus {
		c.devices = append(c.devices, &device{index: g, size: map[string]float64{}})
	}
	if w.policy == "lalb" {
		w.limit = 0
	}
	arrivals := w.invocations
	for {
		w.now = time.Duration(math.MaxInt64)
		if len(arrivals) > 0 {
			w.now = arrivals[0].at
		}
		for _, d := range c.devices {
			if d.current != nil {
				w.now = min(w.now, d.end)
			}
		}
		if w.now == math.MaxInt64 {
			return c
		}
		for _, d := range c.devices {
			if d.current != nil && d.end == w.now {
				d.current.completed, d.current.finished = w.now, true
				d.current = nil
			}
		}
		for ; len(arrivals) > 0 && arrivals[0].at == w.now; arrivals = arrivals[1:] {
			if w.memory > 0 && w.functions[arrivals[0].f].MemMiB > w.memory {
				arrivals[0].rejected = true
				continue
			}
			c.queue = append(c.queue, &request{invocation: arrivals[0]})
		}
		c.dispatch()
	}
}

// idle returns the idle GPUs in the order of R19.
func (c *caches) idle() []*device {
	var out []*device
	for _, d := range c.devices {
		if d.current == nil {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b *device) int {
		return cmp.Or(cmp.Compare(a.dispatches, b.dispatches), cmp.Compare(a.index, b.index))
	})
	return out
}

func (c *caches) dispatch() {
	if c.policy == "lb" {
		for len(c.queue) > 0 && len(c.idle()) > 0 {
			c.start(c.idle()[0], c.queue[0].invocation)
		}
		return
	}
	for _, d := range c.idle() { // Algorithm 1
		switch {
		case d.current != nil:
		case len(d.local) > 0:
			in := d.local[0]
			d.local = d.local[1:]
			c.start(d, in)
		default:
			c.serve(d)
		}
	}
}

// serve implements lines 6 to 22 of Algorithm 1 for an idle GPU.
func (c *caches) serve(d *device) {
	for _, r := range slices.Clone(c.queue) {
		if c.has(d, r.f) {
			c.start(d, r.invocation)
			return
		}
		if r.visits >= c.limit {
			if c.balance(d, r) {
				return
			}
			continue
		}
		r.visits++
	}
	for _, r := range slices.Clone(c.queue) {
		if c.balance(d, r) {
			return
		}
	}
}

// balance implements Algorithm 2.
func (c *caches) balance(d *device, r *request) bool {
	var busy []*device
	cached := false
	for _, other := range c.idle() {
		if other != d && c.has(other, r.f) {
			c.start(other, r.invocation)
			return false
		}
	}
	for _, other := range c.devices {
		if other.current != nil && c.has(other, r.f) {
			busy, cached = append(busy, other), true
		}
	}
	if !cached {
		c.start(d, r.invocation)
		return true
	}
	first := slices.MinFunc(busy, func(a, b *device) int { return cmp.Compare(c.freeAt(a), c.freeAt(b)) })
	if c.freeAt(first)-c.now < c.functions[r.f].Load {
		c.remove(r.invocation)
		first.local = append(first.local, r.invocation)
		return false
	}
	c.start(d, r.invocation)
	return true
}

// freeAt returns when a busy GPU has completed its request and its local queue.
func (c *caches) freeAt(d *device) time.Duration {
	at := d.end
	for _, in := range d.local {
		at += c.functions[in.f].Warm
	}
	return at
}

func (c *caches) has(d *device, f int) bool { return slices.Contains(d.cache, c.functions[f].Model) }

func (c *caches) remove(in *invocation) {
	c.queue = slices.DeleteFunc(c.queue, func(r *request) bool { return r.invocation == in })
}

func (c *caches) start(d *device, in *invocation) {
	c.remove(in)
	fn := c.functions[in.f]
	in.start, in.kind, in.gpu, in.ran = c.now, gpuWarm, d.index, fn.Warm
	d.end = c.now + fn.Warm
	if !c.has(d, in.f) {
		in.kind = hostWarm
		d.end += fn.Load
		for _, other := range c.devices {
			if other != d && c.has(other, in.f) {
				c.falseMisses++
				break
			}
		}
		c.fit(d, fn.MemMiB)
	}
	d.cache = append(slices.DeleteFunc(d.cache, func(m string) bool { return m == fn.Model }), fn.Model)
	d.size[fn.Model] = fn.MemMiB
	d.current = in
	d.dispatches++
}

// fit evicts the least recently used models until there is room.
func (c *caches) fit(d *device, need float64) {
	for c.memory > 0 && len(d.cache) > 0 {
		used := need
		for _, m := range d.cache {
			used += d.size[m]
		}
		if used <= c.memory {
			return
		}
		d.cache = d.cache[1:]
	}
}
