package queue_test

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// driver replaces the gateway and injects faults: slow and failed starts, overrunning work,
// disconnecting callers, failed moves, dying instances, removed GPUs and functions, and restarts.
// It checks every action against its own state of GPUs and instances.
type driver struct {
	t             *rapid.T
	r             *rand.Rand
	config        queue.Config
	policy        queue.Policy
	now, wake     time.Duration
	gpus          map[int32]*queue.GPUSet
	occupied      map[int32]int64 // memory of instances that span the GPU
	functions     map[int32]*queue.Function
	tenants       map[int32]int32 // of the functions that the policy knows
	moved         bool            // a function has changed its tenant in this step
	calls         map[int64]*call
	instances     map[residency.ID]*instance
	dead          map[residency.ID]bool // dead instances, perhaps not reported to the policy yet
	removed       map[int32]bool        // removed functions before Forget
	closed        map[int32]bool        // removed GPUs
	starts        map[int32]*starts     // by function
	pending       []timed
	ids           int64
	adopted       residency.ID
	failingStarts int  // percentage of failing starts
	outOfMemory   int  // percentage of these that fail for lack of memory
	noFaults      bool // no more faults
	steps         []step
}

type call struct {
	function int32
	state    string // "waits", "runs" or "done"
	instance residency.ID
	deadline time.Duration // 0 means none
	starting time.Duration // starts.total of its function when the deadline was set
	bound    residency.ID  // the instance that it is bound to until it runs, or residency.None
	wasBound bool          // it was bound at its arrival
}

// starts tracks the starts of a function's instances.
type starts struct {
	version    int // older instances accept no more calls
	failures   int // consecutive
	pause      time.Duration
	unsure     bool // a start failed for lack of memory, which may or may not count
	inProgress int
	since      time.Duration
	before     time.Duration // total time with a start in progress before since
}

// total returns the total time with a start in progress.
func (s *starts) total(now time.Duration) time.Duration {
	if s.inProgress > 0 {
		return s.before + now - s.since
	}
	return s.before
}

func (s *starts) begin(now time.Duration) {
	if s.inProgress == 0 {
		s.since = now
	}
	s.inProgress++
}

func (s *starts) end(now time.Duration) {
	s.before = s.total(now)
	s.since = now
	s.inProgress--
}

func (s *starts) failed(now time.Duration) {
	if now < s.pause {
		return
	}
	if s.failures++; s.failures >= 3 {
		s.pause = now + min(time.Second<<(s.failures-3), time.Minute)
	}
}

func (d *driver) startsOf(f int32) *starts {
	if d.starts[f] == nil {
		d.starts[f] = &starts{}
	}
	return d.starts[f]
}

// instance is an instance.
type instance struct {
	moves             int // actions so far that moved its memory or used it
	function, gpu     int32
	mem, promised     int64 // promised is the memory that it was promised
	residual          int64 // in addition to mem, while mem is on the host
	resident, started bool  // started: its start has completed
	pinned            bool  // owned by another process: it must not be stopped or moved
	starting          bool  // the policy expects the end of its start
	stopping          bool
	retired           bool
	version           int // version of its function
	calls             int
	slice             float64 // the smallest slice that it was given; 0: only its function's
}

type timed struct {
	at time.Duration
	do func() []queue.Event
}

// step records one call of Policy.Step.
type step struct {
	now     time.Duration
	events  []queue.Event
	actions []queue.Action
}

func (d *driver) chance(percent int) bool { return !d.noFaults && d.r.IntN(100) < percent }

func (d *driver) randomDuration(limit time.Duration) time.Duration {
	return time.Duration(d.r.Int64N(int64(limit)) + 1)
}

func (d *driver) after(t time.Duration, do func() []queue.Event) {
	d.pending = append(d.pending, timed{d.now + t, do})
	slices.SortStableFunc(d.pending, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
}

// report reports events to the policy and performs its actions.
func (d *driver) report(events ...queue.Event) {
	d.moved = false
	for i := range events {
		d.observe(events[i])
	}
	for _, c := range d.calls {
		if c.bound != residency.None && !d.isBound(c) {
			c.bound = residency.None // for good
		}
	}
	actions := d.policy.Step(d.now, events, nil)
	d.steps = append(d.steps, step{d.now, slices.Clone(events), slices.Clone(actions)})
	for i := range actions {
		a := &actions[i]
		if err := queue.Reasons.Check(a.Reason.Full()); err != nil {
			d.t.Fatalf("at %v: reason of %+v: %v", d.now, a, err)
		}
		d.perform(a)
	}
	d.check()
}

// observe updates the state of starts after an event.
func (d *driver) observe(ev queue.Event) {
	started := func(id residency.ID) {
		if s := d.instances[id]; s != nil && s.starting {
			of := d.startsOf(s.function)
			s.starting = false
			of.end(d.now)
			of.failures, of.pause, of.unsure = 0, 0, false
		}
	}
	switch ev := ev.(type) {
	case *queue.FunctionSet:
		tenant, known := d.tenants[ev.Function]
		d.moved = d.moved || known && tenant != ev.Spec.Tenant
		d.tenants[ev.Function] = ev.Spec.Tenant
		s := d.startsOf(ev.Function)
		if ev.Renew || d.removed[ev.Function] {
			s.failures, s.pause, s.unsure = 0, 0, false
		}
		if ev.Renew {
			s.version++
		}
		delete(d.removed, ev.Function)
	case *queue.Started:
		started(ev.Instance)
	case *queue.Ready:
		started(ev.Instance)
	case *queue.Completed:
		started(ev.Instance)
	}
}

func (d *driver) perform(a *queue.Action) {
	switch c, s := d.calls[a.ID], d.instances[a.Instance]; a.Kind {
	case queue.Run:
		if c == nil || c.state != "waits" || c.function != a.Function {
			d.t.Fatalf("at %v: got %+v for invocation %+v, want a waiting invocation of the function", d.now, a, c)
		}
		first := s == nil
		if first {
			s = d.start(a)
		}
		if s.function != a.Function || s.gpu != a.GPU || s.stopping || !s.pinned && s.version < d.startsOf(s.function).version || s.calls >= max(int(d.functions[a.Function].Inflight), 1) {
			d.t.Fatalf("at %v: got %+v on instance %+v, want a running instance of the function, on this GPU, with a free place and of the current version", d.now, a, s)
		}
		if d.isBound(c) && c.bound != a.Instance {
			d.t.Fatalf("at %v: got %+v for invocation %+v, want it on the instance that it is bound to, %+v", d.now, a, c, d.instances[c.bound])
		}
		c.bound = residency.None
		returns := !s.resident
		if returns {
			s.mem = s.promised // it accepts that amount
		}
		c.state, c.instance, s.resident = "runs", a.Instance, true
		if first || returns {
			d.checkTenant(a, s, first)
		}
		s.moves++
		s.calls++
		d.run(a.ID, a.Instance, first)
	case queue.Reject:
		if c == nil || c.state != "waits" {
			d.t.Fatalf("at %v: got %+v for invocation %+v, want a waiting invocation", d.now, a, c)
		}
		if of := d.startsOf(a.Function); a.Reason.Code == queue.TooLate && c.deadline > 0 && (of.inProgress > 0 || c.deadline+of.total(d.now)-c.starting > d.now) {
			d.t.Fatalf("at %v: got %+v for invocation %+v with starts %+v, want an expired deadline and no start in progress", d.now, a, c, of)
		}
		c.state = "done"
	case queue.Start:
		s := d.start(a)
		d.checkTenant(a, s, true)
		d.after(d.randomDuration(time.Second), func() []queue.Event {
			switch {
			case d.instances[a.Instance] != s:
				return nil
			case s.stopping && d.chance(50): // it became ready before it was cancelled
				return []queue.Event{&queue.Ready{Instance: a.Instance}}
			case s.stopping:
				return nil
			case d.chance(d.failingStarts):
				return d.loseInstance(a.Instance, d.chance(d.outOfMemory))
			}
			s.started = true
			return []queue.Event{&queue.Ready{Instance: a.Instance}}
		})
	case queue.Remove, queue.Offload, queue.Prefetch:
		if d.dead[a.Instance] {
			return
		}
		if s != nil && s.starting && !s.pinned && a.Kind == queue.Remove {
			d.cancel(a.Instance, s)
			return
		}
		if s == nil || s.calls > 0 || s.stopping || !s.started && !s.pinned {
			d.t.Fatalf("at %v: got %+v for instance %+v, want a started, idle instance that is not stopping", d.now, a, s)
		}
		if s.pinned && (a.Kind != queue.Remove || d.functions[a.Function] != nil && !d.removed[a.Function] && d.gpus[a.GPU] != nil && !d.closed[a.GPU]) {
			d.t.Fatalf("at %v: got %+v for the pinned instance %+v, want it unchanged", d.now, a, s)
		}
		if s.starting { // a planned instance
			s.starting = false
			d.startsOf(s.function).end(d.now)
		}
		s.stopping = a.Kind == queue.Remove
		to := residency.HostWarm
		if a.Kind == queue.Prefetch {
			to, s.resident, s.mem = residency.GPUWarm, true, s.promised
		}
		s.moves++
		move := s.moves
		d.after(d.randomDuration(300*time.Millisecond), func() []queue.Event {
			if s.moves != move && to == residency.HostWarm && !s.stopping {
				return nil // a later action has superseded it
			}
			return d.finishMove(a.Instance, s, to)
		})
	case queue.Wake:
		d.wake = a.At
	case queue.Forget:
		delete(d.functions, a.Function)
		delete(d.removed, a.Function)
		delete(d.starts, a.Function)
	}
}

// Values of the argument short: whether the GPU of a lost instance had too little memory.
const (
	memoryShort    = true
	memorySufficed = false
)

// loseInstance ends an instance. A start that failed for lack of memory may or may not count as a
// failure; one on a removed GPU does not.
func (d *driver) loseInstance(id residency.ID, short bool) []queue.Event {
	if s := d.instances[id]; s.starting {
		s.starting = false
		d.startsOf(s.function).end(d.now)
		if short {
			d.startsOf(s.function).unsure = true
		} else if !s.pinned && !d.closed[s.gpu] {
			d.startsOf(s.function).failed(d.now)
		}
	}
	delete(d.instances, id)
	return []queue.Event{&queue.Lost{Instance: id, OutOfMemory: short}}
}

// cancel cancels the start of an instance, and makes its calls wait again.
func (d *driver) cancel(id residency.ID, s *instance) {
	s.starting, s.stopping, s.calls = false, true, 0
	d.startsOf(s.function).end(d.now)
	for _, c := range d.calls {
		if c.state == "runs" && c.instance == id {
			c.state = "waits"
		}
	}
	d.after(d.randomDuration(300*time.Millisecond), func() []queue.Event { return d.finishMove(id, s, residency.HostWarm) })
}

func (d *driver) start(a *queue.Action) *instance {
	if d.instances[a.Instance] != nil || d.gpus[a.GPU] == nil {
		d.t.Fatalf("at %v: got %+v of a new instance, want an unused ID and a known GPU", d.now, a)
	}
	of := d.startsOf(a.Function)
	if !of.unsure && (d.now < of.pause || of.failures >= 3 && of.inProgress > 0) {
		d.t.Fatalf("at %v: got %+v, which starts an instance after failures %+v, want a pause", d.now, a, of)
	}
	of.begin(d.now)
	s := &instance{function: a.Function, gpu: a.GPU, mem: d.functions[a.Function].Mem, promised: d.functions[a.Function].Mem, resident: true, starting: true, version: of.version}
	d.instances[a.Instance] = s
	return s
}

// finishMove ends a stop or a move, which may have failed.
func (d *driver) finishMove(id residency.ID, s *instance, to residency.Start) []queue.Event {
	if d.instances[id] != s {
		return nil // it died
	}
	if s.stopping {
		return d.loseInstance(id, memorySufficed)
	}
	fault := d.chance(20)
	if s.calls == 0 {
		s.resident = (to == residency.GPUWarm) != fault // a failed move changes nothing
	}
	return []queue.Event{&queue.Moved{Instance: id, To: to, Failed: fault}}
}

// run performs a call, with a start of the instance first if it is new.
func (d *driver) run(id int64, on residency.ID, first bool) {
	starting := time.Duration(0)
	if first {
		starting = d.randomDuration(2 * time.Second)
	}
	duration := d.randomDuration(200 * time.Millisecond)
	if d.chance(10) {
		duration *= 100
	}
	s := d.instances[on]
	d.after(starting, func() []queue.Event {
		switch {
		case d.instances[on] == s && s.stopping && d.chance(50): // it became ready before it was cancelled
			return []queue.Event{&queue.Started{Instance: on, ID: id}}
		case d.calls[id].state != "runs" || d.calls[id].instance != on || d.instances[on] != s:
			return nil // the instance has died, or its start was cancelled
		case first && s.starting && d.chance(d.failingStarts):
			short := d.chance(d.outOfMemory)
			events := d.finishCall(id, &queue.Failed{Starting: true, OutOfMemory: short, Requeue: d.chance(50)})
			return append(events, d.killInstance(on, short)[1:]...)
		}
		s.started = true
		d.after(duration, func() []queue.Event {
			if d.calls[id].state != "runs" || d.calls[id].instance != on || d.instances[on] != s {
				return nil
			}
			s.calls--
			if d.chance(10) {
				return d.finishCall(id, &queue.Failed{Execution: queue.Execution{Executed: duration}, Requeue: d.chance(50)})
			}
			return d.finishCall(id, &queue.Completed{Execution: queue.Execution{Executed: duration}})
		})
		return []queue.Event{&queue.Started{Instance: on, ID: id}}
	})
}

func (d *driver) finishCall(id int64, ev queue.Event) []queue.Event {
	c := d.calls[id]
	c.state = "done"
	switch ev := ev.(type) {
	case *queue.Completed:
		ev.ID, ev.Instance, ev.Function = id, c.instance, c.function
	case *queue.Failed:
		ev.ID, ev.Instance, ev.Function = id, c.instance, c.function
		if !ev.Requeue {
			break
		}
		c.state = "waits"
		if s := d.instances[c.instance]; d.chance(20) {
			ev.Deadline = d.now + d.randomDuration(2*time.Second)
			c.deadline, c.starting = ev.Deadline, d.startsOf(c.function).total(d.now)
		} else if s != nil && s.started {
			c.deadline = 0 // the deadline may have passed during the call
		}
	}
	return []queue.Event{ev}
}

// kill ends an instance and the calls on it.
func (d *driver) kill(id residency.ID) []queue.Event { return d.killInstance(id, memorySufficed) }

func (d *driver) killInstance(id residency.ID, short bool) []queue.Event {
	d.dead[id] = true
	inst := d.instances[id]
	events := d.loseInstance(id, short)
	for _, c := range d.callIDs() {
		if d.calls[c].state == "runs" && d.calls[c].instance == id {
			events = append(events, d.finishCall(c, &queue.Failed{Execution: queue.Execution{Executed: d.randomDuration(time.Second)}, Requeue: d.chance(50)})...)
			if inst.started && events[len(events)-1].(*queue.Failed).Deadline == 0 {
				d.calls[c].deadline = 0 // the deadline may have passed during the call
			}
		}
	}
	return events
}

func (d *driver) callIDs() []int64 {
	var ids []int64
	for id := range d.calls {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// check compares the slots and the memory in use with the limits of the GPUs, and looks for calls
// that wait beyond their deadlines.
func (d *driver) check() {
	busy, sliced, mem := map[int32]float64{}, map[int32]float64{}, maps.Clone(d.occupied)
	for _, s := range d.instances {
		f := d.functions[s.function]
		mayExceed := f == nil || f.Batches && f.Inflight > 1 && d.slots(s.gpu) > 0 // it may run without a slot
		mem[s.gpu] += s.gpuMem()
		if s.calls > 0 && !s.pinned {
			share := 1.0
			if f != nil && f.Slice > 0 {
				share = f.Slice * float64(d.slots(s.gpu))
			}
			if s.slice > 0 { // a slice holds from the next call on
				share = min(share, s.slice*float64(d.slots(s.gpu)))
			}
			if f != nil && f.Slice > 0 {
				sliced[s.gpu] += share
			}
			if !mayExceed {
				busy[s.gpu] += share
			}
		}
	}
	for g, m := range d.gpus {
		if m.Mem > 0 && mem[g] > m.Mem {
			d.t.Fatalf("at %v: memory on GPU %d: got %d bytes, want at most %d: %+v", d.now, g, mem[g], m.Mem, d.policy.Snapshot())
		}
		if busy[g] > float64(d.slots(g))+0.01 {
			d.t.Fatalf("at %v: slots in use on GPU %d: got %g, want at most %d", d.now, g, busy[g], d.slots(g))
		}
		if sliced[g] > float64(d.slots(g))+0.01 {
			d.t.Fatalf("at %v: slices in use on GPU %d: got %g slots, want at most %d", d.now, g, sliced[g], d.slots(g))
		}
	}
	if d.config.Limits.Slots == 0 && d.config.Limits.Mem == 0 && d.config.Policy != "batch" {
		d.checkPlanned()
	}
	for id, c := range d.calls {
		of := d.startsOf(c.function)
		if c.state == "waits" && c.deadline > 0 && of.inProgress == 0 && c.deadline+of.total(d.now)-c.starting <= d.now {
			d.t.Fatalf("at %v: invocation %d waits after its deadline, want it rejected: %+v, with starts %+v", d.now, id, c, of)
		}
	}
}

// checkTenant checks the limits of a tenant after an action that started an instance, or returned its
// memory to the GPU.
func (d *driver) checkTenant(a *queue.Action, started *instance, isNew bool) {
	if d.moved { // an event before the change may have led to the action
		return
	}
	instances, mem, others := 0, int64(0), int64(0)
	for id, s := range d.instances {
		if f := d.functions[s.function]; s.pinned || f == nil || f.Tenant != d.functions[a.Function].Tenant || d.dead[id] {
			continue
		}
		instances++
		mem += s.gpuMem()
		if s != started {
			others += s.gpuMem()
		}
	}
	limits := &d.config.Limits
	if isNew && limits.Processes > 0 && instances > limits.Processes {
		d.t.Fatalf("at %v: %+v: got %d instances of the tenant, want at most %d: %+v", d.now, a, instances, limits.Processes, d.policy.Snapshot())
	}
	if limits.Mem > 0 && mem > limits.Mem && others > 0 && started.gpuMem() > 0 {
		d.t.Fatalf("at %v: %+v: got %d bytes of the tenant, want at most %d: %+v", d.now, a, mem, limits.Mem, d.policy.Snapshot())
	}
}

// isBound reports whether a waiting call must run on the instance that it is bound to: that exists and
// accepts calls.
func (d *driver) isBound(c *call) bool {
	s := d.instances[c.bound]
	choosesBoth := queue.OneAtATime(d.config.Policy) || d.config.Policy == "exclusive" || d.config.Policy == "batch"
	return s != nil && !choosesBoth && !d.dead[c.bound] && !s.stopping && !s.retired && (s.pinned || s.version == d.startsOf(s.function).version) &&
		d.gpus[s.gpu] != nil && !d.closed[s.gpu] && !d.removed[s.function]
}

// checkPlanned checks that no call waits while a planned instance could run it.
func (d *driver) checkPlanned() {
	waiting := map[int32]int64{}
	for id, c := range d.calls {
		if c.state == "waits" && d.functions[c.function] != nil && !c.wasBound {
			waiting[c.function] = id
		}
	}
	for id, s := range d.instances {
		call, isWaiting := waiting[s.function]
		if isWaiting && s.pinned && s.started && !s.stopping && !d.dead[id] && !d.closed[s.gpu] && s.calls < max(int(d.functions[s.function].Inflight), 1) {
			d.t.Fatalf("at %v: invocation %d waits, want it on the free planned instance %+v", d.now, call, s)
		}
	}
}

func (d *driver) slots(gpu int32) int {
	if queue.OneAtATime(d.config.Policy) {
		return 1
	}
	if g := d.gpus[gpu]; g != nil {
		return g.Slots
	}
	return 9
}

// function draws the description of a function.
func (d *driver) function(f int32) queue.Event {
	warm := d.randomDuration(200 * time.Millisecond)
	spec := &queue.Function{Name: string(rune('a' + f)), Warm: warm, Load: d.randomDuration(100 * time.Millisecond), Mem: int64(d.r.IntN(12)),
		Weight: []float64{1, 2, 0.5, 0.3}[d.r.IntN(4)], Tenant: int32(d.r.IntN(2)), Queue: int32(d.r.IntN(3) * 4),
		Inflight: int32(d.r.IntN(3)), Min: int32(d.r.IntN(4) / 3), Max: int32(d.r.IntN(3)), Slice: []float64{0, 0, 0.25, 0.6}[d.r.IntN(4)],
		Idle: time.Duration(d.r.IntN(3)) * time.Second, Placed: d.chance(15), Batches: d.r.IntN(2) == 0, BatchWindow: time.Duration(d.r.IntN(3)) * 200 * time.Millisecond,
		BatchSlope: float64(d.r.IntN(3)) / 4}
	spec.Cold = spec.Warm + spec.Load + d.randomDuration(2*time.Second)
	if old := d.functions[f]; old != nil { // calls in flight were checked with these values
		spec.Slice, spec.Inflight, spec.Batches, spec.Mem = old.Slice, old.Inflight, old.Batches, old.Mem
	}
	if spec.Max > 0 {
		spec.Max = max(spec.Max, spec.Min)
	}
	d.functions[f] = spec
	return &queue.FunctionSet{Function: f, Spec: *spec, Renew: d.chance(20)}
}

func (d *driver) gpu(g int32) queue.Event {
	if d.gpus[g] == nil {
		d.gpus[g] = &queue.GPUSet{GPU: g, Slots: 1 + d.r.IntN(3), Mem: int64(d.r.IntN(2) * (12 + d.r.IntN(20)))}
	}
	delete(d.closed, g)
	set := *d.gpus[g]
	set.Class = g % 2 * int32(d.r.IntN(2))
	return &set
}

// drawEvent draws the next event: usually an arrival, sometimes another event.
func (d *driver) drawEvent() []queue.Event {
	f := int32(d.r.IntN(5))
	switch d.r.IntN(40) {
	case 0:
		return []queue.Event{d.function(f)}
	case 1:
		if d.functions[f] == nil {
			return nil
		}
		d.removed[f] = true
		return []queue.Event{&queue.FunctionRemoved{Function: f}}
	case 2:
		return []queue.Event{d.gpu(int32(d.r.IntN(3)))}
	case 3:
		g := int32(d.r.IntN(3))
		d.closed[g] = true
		return []queue.Event{&queue.GPURemoved{GPU: g}}
	case 4:
		if old := d.functions[f]; old != nil {
			spec := *old
			spec.Warm, spec.MeasuredMem = d.randomDuration(time.Second), int64(d.r.IntN(20))
			return []queue.Event{&queue.Learned{Function: f, Spec: spec, Class: int32(d.r.IntN(2))}}
		}
	case 5, 6:
		for _, id := range d.instanceIDs() {
			if d.instances[id].started && d.chance(50) {
				events := d.kill(id)
				if d.r.IntN(2) == 0 {
					slices.Reverse(events)
				}
				return events
			}
		}
	case 7, 8, 9:
		for _, id := range d.callIDs() {
			if c := d.calls[id]; c.state == "waits" && d.chance(30) {
				c.state = "done"
				return []queue.Event{&queue.Cancelled{ID: id, Function: c.function}}
			}
		}
	case 10:
		return []queue.Event{&queue.Used{GPU: int32(d.r.IntN(3)), Busy: d.r.Float64()}}
	case 25:
		return d.occupy(int32(d.r.IntN(3)))
	case 26:
		return d.shrink(int32(d.r.IntN(3)))
	case 27, 28:
		return d.measure()
	case 29:
		return d.startElsewhere(f, int32(d.r.IntN(3)))
	case 30:
		return []queue.Event{&queue.StartRequested{Function: f, GPU: int32(d.r.IntN(3))}}
	case 32:
		if ids := d.instanceIDs(); len(ids) > 0 {
			id, slice := ids[d.r.IntN(len(ids))], []float64{0.1, 0.3, 0.6}[d.r.IntN(3)]
			s := d.instances[id]
			if s.slice == 0 || slice < s.slice {
				s.slice = slice
			}
			return []queue.Event{&queue.Sliced{Function: s.function, Instance: id, Slice: slice}}
		}
	case 33:
		for _, id := range d.callIDs() {
			if c := d.calls[id]; c.state == "runs" && d.chance(30) {
				return []queue.Event{&queue.Sized{Function: c.function, Instance: c.instance, ID: id, Times: 3 * d.r.Float64()}}
			}
		}
	case 31:
		if ids := d.instanceIDs(); len(ids) > 0 {
			id := ids[d.r.IntN(len(ids))]
			d.instances[id].retired = true
			return []queue.Event{&queue.Retired{Function: d.instances[id].function, Instance: id}}
		}
	case 11:
		if d.chance(20) {
			d.restart()
		}
	case 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24:
		ev := &queue.Arrived{ID: d.ids, Function: f, At: d.now}
		if d.chance(20) {
			ev.Deadline = d.now + d.randomDuration(2*time.Second)
		}
		d.calls[d.ids] = &call{function: f, state: "waits", deadline: ev.Deadline, starting: d.startsOf(f).total(d.now), bound: residency.None}
		if ids := d.instanceIDs(); len(ids) > 0 && d.r.IntN(3) == 0 { // perhaps of another function, or stopping
			ev.Bound, ev.Instance = true, ids[d.r.IntN(len(ids))]
			if d.instances[ev.Instance].function == f {
				d.calls[d.ids].bound, d.calls[d.ids].wasBound = ev.Instance, true
			}
		}
		d.ids++
		return []queue.Event{ev}
	}
	return nil
}

// occupy draws the memory of instances that span a GPU, within its free memory.
func (d *driver) occupy(g int32) []queue.Event {
	if d.gpus[g] == nil {
		return nil
	}
	free := d.free(g) + d.occupied[g]
	if d.occupied[g] = 0; free > 0 {
		d.occupied[g] = d.r.Int64N(free + 1)
	}
	return []queue.Event{&queue.Occupied{GPU: g, Mem: d.occupied[g]}}
}

// free returns the unused memory of a GPU.
func (d *driver) free(g int32) int64 {
	free := d.gpus[g].Mem - d.occupied[g]
	for _, s := range d.instances {
		if s.gpu == g {
			free -= s.gpuMem()
		}
	}
	return free
}

// gpuMem returns the memory of an instance on its GPU.
func (s *instance) gpuMem() int64 {
	if s.resident {
		return s.mem + s.residual
	}
	return s.residual
}

// shrink reduces the memory of a GPU, within its free memory, as other programs do.
func (d *driver) shrink(g int32) []queue.Event {
	if d.gpus[g] == nil || d.closed[g] || d.gpus[g].Mem == 0 || d.free(g) <= 0 {
		return nil
	}
	smaller := *d.gpus[g]
	smaller.Mem = max(smaller.Mem-d.r.Int64N(d.free(g)+1), 1)
	d.gpus[g] = &smaller
	return []queue.Event{d.gpu(g)}
}

// measure changes the memory of an instance, within the free memory of its GPU.
func (d *driver) measure() []queue.Event {
	for _, id := range d.instanceIDs() {
		s := d.instances[id]
		if !s.started || !s.resident || d.gpus[s.gpu] == nil || d.chance(50) {
			continue
		}
		limit := int64(20)
		if d.gpus[s.gpu].Mem > 0 {
			limit = s.mem + s.residual + max(d.free(s.gpu), 0)
		}
		mem := d.r.Int64N(limit + 1)
		s.mem, s.residual = max(mem, s.promised), 0
		if limit > s.mem && !s.pinned && d.chance(50) {
			s.residual = d.r.Int64N(limit - s.mem + 1)
		}
		return []queue.Event{&queue.Measured{Instance: id, Function: s.function, Mem: mem + s.residual, Residual: s.residual}}
	}
	return nil
}

// startElsewhere makes another process start an instance. The start may fail.
func (d *driver) startElsewhere(f, g int32) []queue.Event {
	if d.functions[f] == nil || d.removed[f] || d.gpus[g] == nil || d.closed[g] {
		return nil
	}
	promised := int64(d.r.IntN(8))
	s := &instance{function: f, gpu: g, mem: max(d.functions[f].Mem, promised), resident: true, pinned: true, starting: true}
	if d.gpus[g].Mem > 0 && d.free(g) < s.mem {
		return nil
	}
	s.promised = s.mem
	d.adopted--
	id := d.adopted
	d.instances[id] = s
	d.startsOf(f).begin(d.now)
	d.after(d.randomDuration(3*time.Second), func() []queue.Event {
		switch {
		case d.instances[id] != s || s.stopping:
			return nil
		case d.chance(30):
			return d.kill(id)
		}
		s.started = true
		return []queue.Event{&queue.Ready{Instance: id, Function: f, Warm: d.randomDuration(time.Second)}}
	})
	return []queue.Event{&queue.Adopted{Instance: id, Function: f, GPU: g, To: residency.GPUWarm, Pinned: true, Starting: true, Mem: promised}}
}

func (d *driver) instanceIDs() []residency.ID {
	var ids []residency.ID
	for id := range d.instances {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// restart replaces the policy. All calls end; instances survive and are adopted by the new
// policy.
func (d *driver) restart() {
	d.replay()
	old := d.instances
	d.instances, d.dead = map[residency.ID]*instance{}, map[residency.ID]bool{}
	d.pending, d.steps, d.wake = nil, nil, queue.Never
	d.policy = d.newPolicy()
	d.starts = map[int32]*starts{}
	for _, c := range d.calls {
		c.state = "done"
	}
	var events []queue.Event
	for g := range int32(3) {
		if d.gpus[g] != nil {
			events = append(events, d.gpu(g), &queue.Occupied{GPU: g, Mem: d.occupied[g]})
		}
	}
	for f := range int32(5) {
		if spec := d.functions[f]; spec != nil {
			events = append(events, &queue.FunctionSet{Function: f, Spec: *spec})
		}
	}
	var ids []residency.ID
	for id := range old {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		s := old[id]
		if !s.started || s.stopping || d.functions[s.function] == nil || s.mem < d.functions[s.function].Mem {
			continue // the driver stops it
		}
		d.adopted--
		s.calls, s.version = 0, 0
		d.instances[d.adopted] = s
		s.pinned = s.resident && (s.pinned || d.chance(20))
		if s.resident {
			s.mem += s.residual
		}
		s.promised, s.residual = max(d.functions[s.function].Mem, s.mem), 0
		ev := &queue.Adopted{Instance: d.adopted, Function: s.function, GPU: s.gpu, To: residency.HostWarm, Pinned: s.pinned, Mem: s.mem}
		if s.pinned && d.chance(50) {
			ev.Warm = d.randomDuration(time.Second)
		}
		if s.resident {
			ev.To = residency.GPUWarm
		}
		events = append(events, ev)
	}
	d.report(events...)
}

func (d *driver) newPolicy() queue.Policy {
	p, err := queue.New(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	return p
}

// replay checks that another policy of the same kind makes the same decisions for the recorded
// events.
func (d *driver) replay() {
	p := d.newPolicy()
	for i, s := range d.steps {
		if got := p.Step(s.now, s.events, nil); !reflect.DeepEqual(got, s.actions) && len(got)+len(s.actions) > 0 {
			d.t.Fatalf("step %d, replayed: got %+v, want %+v", i, got, s.actions)
		}
	}
}

// next processes the next event that is due, and returns false if there is none.
func (d *driver) next() bool {
	switch {
	case len(d.pending) > 0 && d.pending[0].at <= d.wake:
		first := d.pending[0]
		d.pending = d.pending[1:]
		d.now = max(d.now, first.at)
		if events := first.do(); events != nil {
			d.report(events...)
		}
	case d.wake < queue.Never:
		if d.wake < d.now {
			d.t.Fatalf("wake at %v: the time is already %v, want a later time", d.wake, d.now)
		}
		d.now, d.wake = d.wake, queue.Never
		d.report(&queue.Woke{})
	default:
		return false
	}
	return true
}

// TestStorm drives every policy through all faults: no invocation is stuck or runs twice, slots
// and memory are never exceeded, and the recorded events replay to the same decisions.
func TestStorm(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { storm(t, policy) })
		})
	}
}

func storm(t *rapid.T, policy string) {
	d := &driver{t: t, r: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), wake: queue.Never, adopted: residency.None,
		gpus: map[int32]*queue.GPUSet{}, occupied: map[int32]int64{}, functions: map[int32]*queue.Function{}, tenants: map[int32]int32{}, removed: map[int32]bool{}, closed: map[int32]bool{}, calls: map[int64]*call{}, instances: map[residency.ID]*instance{}, dead: map[residency.ID]bool{},
		starts: map[int32]*starts{}, failingStarts: rapid.SampledFrom([]int{20, 70}).Draw(t, "unlucky"), outOfMemory: rapid.SampledFrom([]int{0, 50}).Draw(t, "short"),
		config: queue.Config{Policy: policy, Options: queue.Defaults(),
			Pool: rapid.SampledFrom([]int{residency.Unlimited, 2, 5}).Draw(t, "pool")}}
	d.config.T = time.Duration(rapid.IntRange(0, 3).Draw(t, "T")) * time.Second
	d.config.Prefetch, d.config.Patient = rapid.Bool().Draw(t, "prefetch"), rapid.Bool().Draw(t, "patient")
	d.config.Swap, d.config.FixedTTL = rapid.Bool().Draw(t, "swap"), rapid.Bool().Draw(t, "fixed TTL")
	d.config.TTL, d.config.Charge = time.Duration(rapid.IntRange(0, 3).Draw(t, "TTL"))*time.Second, time.Duration(rapid.IntRange(0, 1).Draw(t, "charge"))*time.Second
	d.config.Utilization = float64(rapid.IntRange(0, 1).Draw(t, "utilization")) * 0.8
	d.config.Limits.Slots = rapid.IntRange(0, 2).Draw(t, "tenant slots")
	d.config.Limits.Processes = rapid.IntRange(0, 3).Draw(t, "tenant processes")
	d.config.Limits.Mem = int64(rapid.IntRange(0, 1).Draw(t, "tenant mem")) * 20
	d.policy = d.newPolicy()
	d.report(d.gpu(0), d.function(0), d.function(1))
	pace := rapid.IntRange(1, 4).Draw(t, "pace")
	for range rapid.IntRange(1, 400).Draw(t, "steps") {
		if events := d.drawEvent(); events != nil {
			d.report(events...)
		}
		if d.r.IntN(pace) == 0 {
			d.next()
		}
	}
	for _, f := range d.policy.Snapshot().Functions {
		if f.WaitReason.IsZero() != (f.Waiting == 0) {
			t.Fatalf("function %d: got %d waiting and the reason %q, want a reason if and only if some wait", f.Function, f.Waiting, f.WaitReason)
		}
		if err := queue.Reasons.Check(f.WaitReason); err != nil && f.Waiting > 0 {
			t.Fatal(err)
		}
	}
	d.noFaults = true
	d.gpus[0] = &queue.GPUSet{Slots: d.slots(0)} // enough memory for all
	d.report(d.gpu(0))
	for g := range int32(3) { // otherwise, calls assigned to a GPU might wait for its occupied memory
		d.occupied[g] = 0
		d.report(&queue.Occupied{GPU: g})
	}
	for f := range int32(5) { // nothing places further instances
		if spec := d.functions[f]; spec != nil && spec.Placed && !d.removed[f] {
			spec.Placed = false
			d.report(&queue.FunctionSet{Function: f, Spec: *spec})
		}
	}
	for range 20000 {
		if !d.next() {
			break
		}
	}
	for _, id := range d.callIDs() {
		if c := d.calls[id]; c.state != "done" {
			t.Fatalf("invocation %d of function %d is still in state %q at the end, want it done: %+v", id, c.function, c.state, d.policy.Snapshot())
		}
	}
	for _, f := range d.policy.Snapshot().Functions {
		if f.Waiting > 0 || f.InFlight > 0 {
			t.Fatalf("function %d after all invocations are done: got %d waiting, %d in flight; want 0 of both", f.Function, f.Waiting, f.InFlight)
		}
	}
	d.replay()
}

// TestNoDeadline checks that an invocation which is dispatched at once leaves no deadline, for
// which a gateway would wake needlessly.
func TestNoDeadline(t *testing.T) {
	for _, policy := range queue.Names() {
		p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
		if err != nil {
			t.Fatal(err)
		}
		p.Step(0, []queue.Event{&queue.GPUSet{Slots: 1},
			&queue.FunctionSet{Spec: queue.Function{Warm: time.Second, Cold: 2 * time.Second, Weight: 1}}}, nil)
		wake := func(now time.Duration, e queue.Event) time.Duration {
			for _, a := range p.Step(now, []queue.Event{e}, nil) {
				if a.Kind == queue.Wake {
					return a.At
				}
			}
			return 0
		}
		if at := wake(0, &queue.Arrived{ID: 1, Deadline: time.Minute}); at != 0 {
			t.Errorf("%s: wake after an invocation was dispatched: got %v, want none", policy, at)
		}
		if at := wake(1, &queue.Arrived{ID: 2, At: 1, Deadline: time.Minute + 1}); at != time.Minute+1 {
			t.Errorf("%s: wake for a waiting invocation: got %v, want its deadline %v", policy, at, time.Minute+1)
		}
	}
}
