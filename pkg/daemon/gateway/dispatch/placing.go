package dispatch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/placement"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// The queueing policy starts most instances itself, but none of a placed function. A function is
// placed if its instances span several GPUs, or if it is scaled and Config.Placement chooses the
// GPUs of scaled instances. The dispatcher requests the starts of a placed function from the policy
// (StartRequested), on GPUs that the placer chooses: the number that scale.min and the autoscaler
// want, and one if a call waits and there is none. The placer is informed of all instances.

// placements is what the placement of all functions shares. Dispatcher.mu guards it.
type placements struct {
	d      *Dispatcher
	placer placement.Placer
	scaled bool // the placer chooses the GPUs of scaled instances
	// requested is the start that has been requested from the policy and that the policy has not begun.
	requested *placedStart
}

// placing is the placement of a function's instances. Dispatcher.mu guards it.
type placing struct {
	f        *Function
	unplaced bool      // the placer found no room, so the policy may start an instance, and evict others for it
	clearing *clearing // nil unless an instance waits until several GPUs have room
	logged   string    // the reason for the lack of room that was logged last; empty after a placement
}

// placedStart is an instance that starts, or that the policy is asked to start, on the first of its GPUs.
type placedStart struct {
	function *Function
	id       string
	gpus     []int
	mem      int64 // bytes on each GPU
	config   *scale.Instance
}

// newPlacer returns the placer of a configuration for the listed GPUs. scaled reports whether it places the
// instances of scaled functions.
func newPlacer(cfg *Config, list []GPU) (p placement.Placer, scaled bool, err error) {
	kind, ok := placement.KindOf(cmp.Or(cfg.Placement, placement.Names()[0]))
	if !ok {
		return nil, false, fmt.Errorf("unknown placement %q", cfg.Placement)
	}
	options := cmp.Or(cfg.Placing, new(placement.DefaultOptions()))
	var gpus []placement.GPU
	for _, g := range list {
		gpus = append(gpus, placement.GPU{Mem: gpu.Bytes(g.Mem), Model: g.Model})
	}
	return kind.New(gpus, *options), kind.Scaled, nil
}

// byPlacer reports whether the placer chooses the GPUs of the function's instances. Locked.
func (p *placing) byPlacer() bool {
	return p.f.definition.Spans() || p.f.d.placements.scaled && p.f.scaling != nil && !p.unplaced
}

// startMissing starts the missing instances of all placed functions. Locked.
func (p *placements) startMissing() {
	var placed []*Function
	for _, f := range p.d.inOrder() {
		if f.placing.unplaced && f.instances.countAlive() > 0 {
			f.placing.unplaced = false
			f.respec()
		}
		if !f.removed && f.placing.byPlacer() {
			placed = append(placed, f)
		}
	}
	if len(placed) == 0 {
		return
	}
	waiting := map[*Function]bool{}
	for _, a := range p.d.attempts {
		if a.state == attemptWaits {
			waiting[a.function] = true
		}
	}
	for _, f := range placed {
		f.placing.fill(waiting[f])
	}
}

// fill starts the missing instances of the function if it is placed. waiting reports
// whether calls wait. Locked.
func (p *placing) fill(waiting bool) {
	f, d := p.f, p.f.d
	if !p.byPlacer() || !d.Known.IsSet() || d.Draining.IsSet() {
		return
	}
	have, want := f.instances.countAlive(), int(f.spec.Min)
	if waiting {
		want = max(want, 1)
	}
	if f.spec.Max > 0 {
		want = min(want, int(f.spec.Max))
	}
	if have >= want {
		p.endClearing()
	}
	for ; have < want && p.startOne(); have++ {
	}
	if have == 0 && waiting && !f.definition.Spans() {
		p.unplaced = true
		f.respec()
	}
}

// startOne starts one more instance of a placed function. It returns false if there is no
// room, or if GPUs are still being cleared for it. Locked.
func (p *placing) startOne() bool {
	free, evictable := p.f.d.placements.free(p.f)
	configs, requested := p.configs()
	var first placement.Request
	var why reason.Reason
	for n, config := range configs {
		r := p.requestFor(config)
		placed, lack := p.startWith(r, config, free)
		if placed {
			if n > 0 {
				p.returnConfig(requested)
			}
			p.logged = ""
			return true
		}
		if n == 0 {
			first, why = r, lack
		}
	}
	p.returnConfig(requested)
	p.noRoom(first, why, evictable)
	return false
}

// configs returns the configurations that the next instance of a placed function may
// have, the preferred first: the one that the autoscaler has requested, then the usual ones
// for the models of the GPUs. Without rows in the profile, the only element is nil. If
// requested is not nil, it was taken from the requests of the autoscaler. Locked.
func (p *placing) configs() (configs []*scale.Instance, requested *scale.Instance) {
	f := p.f
	if f.scaling != nil && f.scaling.chooses {
		if like, ok := f.scaling.removeRequested(func(profile.Row) bool { return true }); ok {
			configs, requested = append(configs, &like), &like
		}
	}
	for number := range f.d.GPUs.list {
		row := f.chooser().config(number)
		if row != nil && !slices.ContainsFunc(configs, func(c *scale.Instance) bool { return c.Request == row.Request }) {
			configs = append(configs, row)
		}
	}
	if len(configs) == 0 {
		configs = append(configs, nil)
	}
	return configs, requested
}

// returnConfig returns a configuration to the requests of the autoscaler. Locked.
func (p *placing) returnConfig(c *scale.Instance) {
	if s := p.f.scaling; s != nil && c != nil {
		s.requested = append(s.requested, scale.Start{Count: 1, Like: *c})
	}
}

// requestFor returns the request for an instance with a configuration, without its ID.
// Locked.
func (p *placing) requestFor(config *scale.Instance) placement.Request {
	f := p.f
	mem := gpu.Bytes(max(f.spec.Mem, f.spec.MeasuredMem))
	r := placement.Request{Function: f.name, GPUs: max(f.definition.GPUs, 1), Slice: f.chooser().sliceOf(config), Mem: mem}
	if config != nil {
		r.Model = config.Request.GPU
		if mem == 0 {
			r.Mem = gpu.FromMiB(config.Request.GPUMemMiB)
		}
	}
	return r
}

// startWith starts an instance with a configuration. If there is no room, it returns the
// reason. Locked.
func (p *placing) startWith(r placement.Request, config *scale.Instance, free []gpu.Bytes) (bool, reason.Reason) {
	f, d := p.f, p.f.d
	refused := map[int]bool{}
	except := func(g int) bool { return refused[g] }
	for {
		r.ID = instanceID(f.name, d.Instances.lastNumber+1)
		at, why := p.cleared(r, free)
		if at == nil && p.clearing == nil {
			at, why = d.placements.placer.Place(r, free, except)
		}
		switch {
		case len(at) == 0 && len(refused) > 0:
			return false, reason.New(placement.Refused)
		case len(at) == 0:
			return false, why
		}
		d.Instances.lastNumber++
		if d.placements.request(&placedStart{f, r.ID, at, int64(r.Mem), config}) {
			d.log.Info("placed an instance", "function", f.name, "instance", r.ID, "gpu", strings.Join(d.GPUs.names(at), ","), "why", why.String())
			return true, why
		}
		d.placements.placer.Remove(r.ID)
		if f.definition.Spans() {
			d.memory.sendOccupied(at) // cleared released only the first
		}
		refused[at[0]] = true
	}
}

// request requests the start from the policy, and reports whether the instance is starting. Locked.
func (p *placements) request(s *placedStart) bool {
	p.requested = s
	p.d.policy.step(&queue.StartRequested{Function: s.function.number, GPU: int32(s.gpus[0])})
	started := p.requested == nil
	p.requested = nil
	return started
}

// claim returns the requested start, and clears it, if it is for this
// function and GPU. Otherwise it returns nil. Locked.
func (p *placements) claim(f *Function, gpu int32) *placedStart {
	s := p.requested
	if s == nil || s.function != f || int32(s.gpus[0]) != gpu {
		return nil
	}
	p.requested = nil
	return s
}

// noRoom begins to clear GPUs for an instance that spans several, if idle instances there use
// the room. Otherwise it logs the reason for the lack of room, once. Locked.
func (p *placing) noRoom(r placement.Request, why reason.Reason, evictable []gpu.Bytes) {
	f, d := p.f, p.f.d
	if p.clearing != nil {
		return
	}
	if f.definition.Spans() {
		if at, _ := d.placements.placer.Place(r, evictable, func(int) bool { return false }); len(at) > 0 {
			d.placements.placer.Remove(r.ID)
			p.beginClearing(at, int64(r.Mem))
			return
		}
	}
	if text := why.String(); text != p.logged {
		p.logged = text
		d.log.Warn("no GPU has room for an instance", "function", f.name, "why", text)
	}
}

// reportPlaced reports an instance to the placer. Locked.
func (i *Instance) reportPlaced() {
	gpus := []int{int(i.gpu)}
	for _, g := range i.further {
		gpus = append(gpus, int(g))
	}
	mem := max(i.mem, int64(i.record.Slice.Mem), i.function.spec.Mem)
	i.d.placements.placer.Put(placement.Request{ID: i.record.ID, Function: i.function.name, GPUs: len(gpus), Slice: i.record.Slice, Mem: gpu.Bytes(mem)}, gpus)
}

// Unstartable returns why this gateway can never start an instance of the function, or "".
func (f *Function) Unstartable() string {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return f.chooser().unstartable()
}

// unstartable implements Function.Unstartable.
func (c chooser) unstartable() string {
	if why := c.cfg.whyUnsupported(*c.fn); why != "" {
		return why
	}
	large := 0
	for _, g := range c.gpus {
		if g.Mem == 0 || g.Mem >= int64(c.fn.GPUMem) {
			large++
		}
	}
	if !c.fn.Spans() || c.fn.GPUs <= large {
		return ""
	}
	if n := len(c.gpus); n < c.fn.GPUs {
		return fmt.Sprintf("it spans %d GPUs, and the gateway has %d", c.fn.GPUs, n)
	}
	return fmt.Sprintf("it spans %d GPUs, and of the gateway's GPUs, %d have %v of memory", c.fn.GPUs, large, c.fn.GPUMem)
}

// Unsupported returns why the gateway supports no function with this definition, or "".
func (d *Dispatcher) Unsupported(fn function.Function) string { return d.cfg.whyUnsupported(fn) }

// whyUnsupported implements Dispatcher.Unsupported.
func (c *Config) whyUnsupported(fn function.Function) string {
	if c.Unsupported == nil {
		return ""
	}
	return c.Unsupported(fn)
}

// unserved returns the refusal for a call of a training function, or of a function that has no
// instance and that the gateway can never start, and otherwise nil. Instances of a plan may still
// serve the latter. Locked.
func (f *Function) unserved() *refusal.Error {
	if e := uncallable(&f.definition); e != nil {
		return e
	}
	why := f.chooser().unstartable()
	if why == "" || f.instances.countAlive() > 0 {
		return nil
	}
	if f.d.cfg.whyUnsupported(f.definition) != "" {
		return &refusal.Error{Code: refusal.StartFailed, Message: fmt.Sprintf("the gateway cannot start function %s: %s", f.name, why)}
	}
	return &refusal.Error{Code: refusal.StartFailed,
		Message: fmt.Sprintf("function %s has no instance, and the gateway cannot start one: %s", f.name, why),
		Hint:    "place an instance with 'gfaas-place plan' and start it with 'gfaas up PLAN.json'; the gateway then uses it"}
}

// The policy sees an instance that spans several GPUs on the first of them. On the others,
// it only learns how much memory is occupied (Occupied).

// clearing keeps room on several GPUs for an instance while idle instances there stop: the
// memory counts as occupied for the policy.
type clearing struct {
	gpus  []int
	mem   int64         // bytes on each GPU
	until time.Duration // when it ends at the latest
}

// clearTime is how long idle instances may take to stop for an instance on several GPUs.
const clearTime = 30 * time.Second

// beginClearing begins to stop idle instances on GPUs. Locked.
func (p *placing) beginClearing(gpus []int, mem int64) {
	p.clearing = &clearing{gpus, mem, p.f.d.policy.now() + clearTime}
	p.f.d.log.Info("stopping idle instances to make room", "function", p.f.name, "gpu", strings.Join(p.f.d.GPUs.names(gpus), ","))
	p.f.d.memory.sendOccupied(gpus)
}

// endClearing releases the room. Locked.
func (p *placing) endClearing() {
	if c := p.clearing; c != nil {
		p.clearing = nil
		p.f.d.memory.sendOccupied(c.gpus)
	}
}

// cleared returns the GPUs that were cleared for an instance if all of them have room now,
// releases the room on the first, where the policy is about to start the instance, and
// reserves the place. It ends a clearing that takes too long. Locked.
func (p *placing) cleared(r placement.Request, free []gpu.Bytes) ([]int, reason.Reason) {
	c := p.clearing
	if c == nil {
		return nil, reason.Reason{}
	}
	for _, g := range c.gpus {
		if free[g]+gpu.Bytes(c.mem) < r.Mem {
			if p.f.d.policy.now() > c.until {
				p.endClearing()
			}
			return nil, reason.Reason{}
		}
	}
	p.clearing = nil
	p.f.d.memory.sendOccupied(c.gpus[:1])
	p.f.d.placements.placer.Put(r, c.gpus)
	return c.gpus, reason.New(placement.Cleared)
}

// free returns the free memory of each GPU, and the same together with the memory of idle
// instances of other functions that may stop. Locked.
func (p *placements) free(f *Function) (free, evictable []gpu.Bytes) {
	for _, m := range p.d.memory.gpus {
		capacity := placement.Unlimited
		if m.capacity > 0 {
			capacity = gpu.Bytes(m.capacity - m.occupied)
		}
		free, evictable = append(free, capacity), append(evictable, capacity)
	}
	for _, s := range p.d.policy.policy.Snapshot().Instances {
		free[s.GPU] -= gpu.Bytes(s.Mem)
		i := p.d.Instances.byID[s.Instance]
		if i == nil || !i.own || i.function == f || len(i.attempts) > 0 || i.state != instanceReady || i.alive() && i.function.instances.countAlive() <= int(i.function.spec.Min) {
			evictable[s.GPU] -= gpu.Bytes(s.Mem)
		}
	}
	return free, evictable
}
