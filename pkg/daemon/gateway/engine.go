package gateway

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// engine drives the policy: it turns what happens into events and does what the
// policy says. All of it is under one lock, which nobody keeps while waiting.
type engine struct {
	g      *Gateway
	policy queue.Policy
	epoch  time.Time // of the policy's time

	mu        sync.Mutex
	events    []queue.Event // of the step that is made
	pending   []queue.Event // of the next
	actions   []queue.Action
	stepping  bool
	numbers   queue.Numbers // of functions
	tenants   queue.Numbers
	functions map[int32]*target
	calls     map[int64]*call // that wait or run
	servers   map[residency.ID]*server
	lastCall  int64
	adopted   residency.ID // the last name given to what was found running
	wake      *time.Timer
	wakeAt    time.Duration // when the policy wants to be woken
	wakeSet   time.Duration // when the timer goes off, which may be earlier
	quiet     chan struct{} // closed when no call is left; nil while nobody asks
	closed    bool
	recorder  *recorder // nil where nothing is recorded
	memory    memory
	faults    map[string]standing // instances of others that have faulted and run on, by id
}

// server is an instance as the engine knows it.
type server struct {
	id         residency.ID
	gpu        int32
	further    []int32 // where it is too, if it spans several GPUs
	mem        int64   // bytes on each of those
	target     *target
	generation *generation
	record     instance.Record
	state      serverState

	function function.Function  // as it was when it was started, or found
	life     context.Context    // of its start; nil where it was found
	cancel   context.CancelFunc // ends that

	own   bool // started here, and stopped here
	parks bool // its memory waits on the host while it has no work
	away  bool // the policy wanted it back on the GPU: it comes with the next call
	moving
	memory instanceMemory
	calls  []*call // dispatched to it
	probes []*call // probes that it answers; the policy knows nothing of them
	since  time.Duration
	worked bool          // it has run a call
	busy   time.Duration // when it last began to run something
}

// moving is how the memory of an instance stands to the Parker.
type moving struct {
	sync.Mutex      // held while it is moved; taken before the engine's
	out        bool // it may be on the host: it is brought back before a call
	comes      bool // it is being brought back,
	fetched    bool // because the policy wants it to be
}

type serverState uint8

const (
	serverStarts serverState = iota
	serverReady
	serverStops
	serverGone
)

func (e *engine) init(g *Gateway, policy queue.Policy) {
	e.g, e.policy, e.epoch = g, policy, time.Now()
	e.functions, e.calls, e.servers = map[int32]*target{}, map[int64]*call{}, map[residency.ID]*server{}
	e.faults = map[string]standing{}
	e.adopted, e.wakeAt, e.wakeSet = residency.None, queue.Never, queue.Never
	e.memory.init(g.cfg.GPUs)
	e.wake = time.AfterFunc(time.Hour, e.woke)
	e.wake.Stop()
}

// begin makes the GPUs known.
func (e *engine) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, gpu := range e.g.cfg.GPUs {
		e.step(queue.Event{Kind: queue.GPUSet, GPU: int32(i), Machine: &queue.GPU{Slots: e.g.cfg.Concurrency, Mem: gpu.Mem}})
	}
}

// close ends the engine: nothing is decided any more.
func (e *engine) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.wake.Stop()
}

// step gives the policy events, and does what it says until nothing follows from
// that. What deeds tell at once is for the next step.
func (e *engine) step(events ...queue.Event) {
	e.pending = append(e.pending, events...)
	if e.stepping || e.closed {
		return
	}
	e.stepping = true
	for len(e.pending) > 0 {
		e.events, e.pending = e.pending, e.events[:0]
		now := e.now()
		e.actions = e.policy.Step(now, e.events, e.actions[:0])
		if e.recorder != nil {
			e.recorder.step(now, e.events, e.actions, e.numbers.Name)
		}
		for i := range e.actions {
			e.do(now, &e.actions[i])
		}
		clear(e.events)
	}
	e.stepping = false
}

func (e *engine) now() time.Duration { return time.Since(e.epoch) }

// do does what the policy says. What takes time is begun.
func (e *engine) do(now time.Duration, a *queue.Action) {
	switch a.Kind {
	case queue.Run:
		e.run(now, a)
	case queue.Reject:
		e.reject(now, a)
	case queue.Start:
		s := e.server(now, a)
		e.g.deed(func() { e.g.start(s) })
	case queue.Remove:
		e.remove(now, a)
	case queue.Offload, queue.Prefetch:
		e.move(a)
	case queue.Wake:
		if e.wakeAt = a.At; a.At <= now {
			e.wakeAt = queue.Never
			e.step(queue.Event{Kind: queue.Woke})
		}
		e.setWake(now)
	case queue.Forget:
		e.forget(a.Function)
	case queue.Assign: // it waits where it is
	}
}

// setWake has the timer go off when the policy wants to be woken, or earlier: each
// call puts that off, and a timer is left as it is then.
func (e *engine) setWake(now time.Duration) {
	if e.wakeAt < e.wakeSet {
		e.wakeSet = e.wakeAt
		e.wake.Reset(max(e.wakeAt-now, 0))
	}
}

// woke is called when the time of the last Wake has come, or earlier.
func (e *engine) woke() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wakeSet = queue.Never
	if now := e.now(); e.wakeAt > now {
		e.setWake(now)
		return
	}
	e.wakeAt = queue.Never
	e.step(queue.Event{Kind: queue.Woke})
}

// server makes an instance known that the policy named.
func (e *engine) server(now time.Duration, a *queue.Action) *server {
	t := e.functions[a.Function]
	s := &server{id: a.Instance, gpu: a.GPU, target: t, generation: t.generation, function: t.function, own: true, since: now, memory: newInstanceMemory()}
	s.life, s.cancel = context.WithCancel(e.g.life)
	e.servers[s.id] = s
	s.target.instances++
	e.intend(s)
	return s
}

// run sends a call to its instance, or has it wait there until that has started.
func (e *engine) run(now time.Duration, a *queue.Action) {
	c, s := e.calls[a.ID], e.servers[a.Instance]
	if s == nil {
		s = e.server(now, a)
		e.g.deed(func() { e.g.start(s) })
	}
	c.on, c.sent, c.found, c.rule = s, now, a.Start, a.Reason.Rule
	if s.away {
		s.away, c.found = false, residency.HostWarm
	}
	c.queued += now - c.arrived
	c.starting, c.loading = 0, 0
	if len(s.calls) == 0 {
		s.busy = now
	}
	s.calls = append(s.calls, c)
	c.target.started(c.found)
	if c.left && s.state == serverReady { // its caller left during a start that was cancelled
		ev := e.failed(c, queue.Event{Kind: queue.Completed})
		ev.Executed = 0
		e.drop(c)
		e.step(ev)
		return
	}
	if s.state == serverStarts || s.out {
		c.state = callStarts
		if s.state == serverReady {
			e.bring(s)
		}
		return
	}
	c.state = callRuns
	c.turn <- nil
}

// reject tells a call that it will not run.
func (e *engine) reject(now time.Duration, a *queue.Action) {
	c := e.calls[a.ID]
	if c == nil {
		return
	}
	c.queued += now - c.arrived
	e.drop(c)
	c.turn <- e.refusal(c.target, a.Reason.Rule)
}

// drop takes a call out of what is there.
func (e *engine) drop(c *call) {
	c.state = callOver
	delete(e.calls, c.id)
	if e.quiet != nil && len(e.calls) == 0 {
		close(e.quiet)
		e.quiet = nil
	}
}

// submit has a call wait for its turn, which its turn tells.
func (e *engine) submit(c *call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.g.draining.Load() {
		c.state = callOver
		c.turn <- draining()
		return
	}
	if e.functions[c.target.number] != c.target || c.target.gone {
		c.state = callOver
		c.turn <- noFunction(c.target.name) // it was removed meanwhile, and its number may be another's
		return
	}
	if fault := e.unserved(c.target); fault != nil {
		c.state = callOver
		c.turn <- fault
		return
	}
	c.id = e.lastCall
	e.lastCall++
	c.arrived = e.now()
	c.deadline = c.arrived + e.g.cfg.QueueTimeout
	c.state = callWaits
	e.calls[c.id] = c
	if c.target.scaling != nil {
		c.target.scaling.came++
	}
	e.step(queue.Event{Kind: queue.Arrived, ID: c.id, Function: c.target.number, At: c.arrived, Deadline: c.deadline})
}

// leave takes out a call whose caller left, or which was cut, before it was sent.
func (e *engine) leave(c *call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch c.state {
	case callWaits:
		e.drop(c)
		e.step(queue.Event{Kind: queue.Cancelled, ID: c.id, Function: c.target.number})
	case callStarts:
		if c.on.state == serverStarts {
			c.left = true // its instance starts, and is there for the next
			return
		}
		e.finished(c, queue.Event{Kind: queue.Failed})
	case callRuns: // its turn came meanwhile
		e.finished(c, queue.Event{Kind: queue.Failed})
	}
}

// again has a call that got no answer wait where it was; false if it may not.
func (e *engine) again(c *call) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.state != callRuns {
		return false
	}
	now := e.now()
	ev := e.failed(c, queue.Event{Kind: queue.Failed, Again: true, Deadline: now + e.g.cfg.QueueTimeout})
	c.arrived, c.deadline, c.state = now, ev.Deadline, callWaits
	e.step(ev)
	return true
}

// finish says how a call that was sent ended: with its answer, or not.
func (e *engine) finish(c *call, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.state != callRuns {
		return
	}
	kind := queue.Completed
	if err != nil {
		kind = queue.Failed
	}
	e.finished(c, queue.Event{Kind: kind})
}

func (e *engine) finished(c *call, ev queue.Event) {
	ev = e.failed(c, ev)
	e.drop(c)
	if ev.Kind == queue.Completed {
		c.on.worked = true
		e.learn(c, ev.Executed)
	}
	e.step(ev)
}

// failed takes a call off its instance and completes the event that says so.
func (e *engine) failed(c *call, ev queue.Event) queue.Event {
	s, now := c.on, e.now()
	ev.ID, ev.Function, ev.Instance = c.id, c.target.number, s.id
	ev.Executed = max(now-c.sent-c.starting, 0)
	s.calls = slices.DeleteFunc(s.calls, func(other *call) bool { return other == c })
	if len(s.calls) == 0 {
		c.target.ran(now - s.busy)
		s.since = now
	}
	return ev
}

// started says that an instance is ready: what waits on it runs. It returns false if its
// start was cancelled before.
func (e *engine) started(s *server, r instance.Record) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.state != serverStarts {
		return false
	}
	now := e.now()
	took := now - s.since
	s.state, s.record, s.since = serverReady, r, now
	s.generation.fails, s.generation.failure, s.generation.contract = 0, nil, r.Contract
	s.generation.costs.start.add(took)
	if len(s.calls) == 0 {
		e.step(queue.Event{Kind: queue.Ready, Instance: s.id, Function: s.target.number})
		return true
	}
	var left []*call
	for _, c := range s.calls {
		e.pending = append(e.pending, queue.Event{Kind: queue.Started, Instance: s.id, ID: c.id, Function: c.target.number})
		if c.left { // who called may be at what it says
			left = append(left, c)
			continue
		}
		c.starting, c.state = now-c.sent, callRuns
		c.turn <- nil
	}
	for _, c := range left {
		ev := e.failed(c, queue.Event{Kind: queue.Completed})
		ev.Executed = 0
		e.drop(c)
		e.pending = append(e.pending, ev)
	}
	e.step()
	return true
}

// notStarted says that an instance could not be started. What waits on it waits for
// another, unless the policy rejects it. It returns false if the start was cancelled
// before.
func (e *engine) notStarted(s *server, cause error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.state != serverStarts {
		return false
	}
	now := e.now()
	s.busy = now // what failed is no use of the GPU
	e.gone(s)
	var starved *shortError
	short := errors.As(cause, &starved)
	if !short {
		s.generation.fails++
	}
	s.generation.failure = cause
	if len(s.calls) == 0 {
		e.step(queue.Event{Kind: queue.Lost, Instance: s.id, Function: s.target.number, Short: short})
		return true
	}
	first := true
	for _, c := range slices.Clone(s.calls) {
		ev := e.failed(c, queue.Event{Kind: queue.Failed, Starting: first, Short: first && short, Again: !c.left})
		ev.Executed = 0
		first = false
		if ev.Again {
			c.arrived, c.state = now, callWaits
		} else {
			e.drop(c)
			c.turn <- startFailed(s.target, cause)
		}
		e.pending = append(e.pending, ev)
	}
	e.step()
	return true
}

// gone takes an instance out of what is there.
func (e *engine) gone(s *server) {
	s.state = serverGone
	delete(e.servers, s.id)
	s.target.instances--
	e.occupy(s)
	e.respan(s.target)
}

// remove stops an instance that the policy has no more use for, or cancels its start.
// One that is not the gateway's is let go.
func (e *engine) remove(now time.Duration, a *queue.Action) {
	s := e.servers[a.Instance]
	if s != nil && s.own && s.state == serverStarts {
		e.cancelStart(now, s)
		return
	}
	if s == nil || s.state != serverReady && (s.own || s.state != serverStarts) {
		return // it died; the policy was told, or will be
	}
	e.g.metrics.evicted(s.target, "stopped")
	if !s.own {
		e.gone(s)
		e.step(queue.Event{Kind: queue.Lost, Instance: s.id, Function: s.target.number})
		return
	}
	s.state = serverStops
	e.g.deed(func() {
		e.g.discard(s.record)
		e.stopped(s)
	})
}

// cancelStart cancels the start of an instance. To the policy the calls that it was for
// wait again.
func (e *engine) cancelStart(now time.Duration, s *server) {
	for _, c := range s.calls {
		c.arrived, c.state, c.on = now, callWaits, nil
	}
	s.state, s.calls = serverStops, nil
	s.cancel()
}

// stopped says that an instance is no more.
func (e *engine) stopped(s *server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.state == serverGone {
		return
	}
	e.gone(s)
	e.step(queue.Event{Kind: queue.Lost, Instance: s.id, Function: s.target.number})
}

// died says that an instance has ended by itself, and whether this is news. What
// it has answered already may still come; the rest is cut.
func (e *engine) died(s *server) (news bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.state != serverReady {
		return false
	}
	e.dying(s)
	e.gone(s)
	calls := slices.Clone(s.calls)
	if len(calls) > 0 {
		time.AfterFunc(lastWords, func() {
			for _, c := range calls {
				e.cutIf(c, s)
			}
		})
	}
	e.hold(s)
	e.step(queue.Event{Kind: queue.Lost, Instance: s.id, Function: s.target.number})
	return true
}

// lastWords is for how long what an instance sent before it ended may take to come.
const lastWords = 2 * time.Second

// cutIf cuts a call that still runs on an instance that is gone.
func (e *engine) cutIf(c *call, s *server) {
	e.mu.Lock()
	runs := c.state == callRuns && c.on == s
	e.mu.Unlock()
	if runs {
		c.cut(errDied)
	}
}

// unreachable says that nobody answers at an instance's address.
func (e *engine) unreachable(s *server) {
	if e.died(s) {
		e.g.log.Warn("instance does not answer", "instance", s.record.ID, "function", s.record.Function)
		e.g.deed(func() { e.g.bury(s) })
	}
}

// move has the memory of an instance go to the host or come back. It comes back
// with the next work alone, and goes by itself when there is none: what is waited
// for is that it has.
func (e *engine) move(a *queue.Action) {
	s := e.servers[a.Instance]
	if s == nil || s.state != serverReady {
		return
	}
	if a.Kind == queue.Offload && s.parks {
		e.g.metrics.evicted(s.target, "parked")
		if s.out = e.g.cfg.Park == ParkCheckpoint; s.out {
			e.cutProbes(s) // its processes are about to stand still
		}
		e.g.deed(func() { e.moved(s, residency.HostWarm, !e.g.park(s)) })
		return
	}
	if a.Kind == queue.Prefetch && s.out {
		s.fetched = true
		e.bring(s)
		return
	}
	to := residency.HostWarm
	if a.Kind == queue.Prefetch {
		to, s.away = residency.GPUWarm, true
	}
	e.step(queue.Event{Kind: queue.Moved, Instance: s.id, Function: s.target.number, To: to, Fault: true})
}

// moved says where the memory of an instance went, or that it did not.
func (e *engine) moved(s *server, to residency.Start, fault bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.state == serverReady {
		e.step(queue.Event{Kind: queue.Moved, Instance: s.id, Function: s.target.number, To: to, Fault: fault})
	}
}

// adopt makes an instance known that was found running, with its memory there, or that
// another process was starting and is ready. It returns nil if the instance is of no use:
// its function is gone, or it is the gateway's own and of another version of its function.
func (e *engine) adopt(t *target, gpu int32, r instance.Record, own bool, to residency.Start) *server {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.functions[t.number] != t || t.gone || own && !isOf(r, t.function) {
		return nil
	}
	var each *queue.Function
	if r.RPS > 0 { // a first guess: from then on it is measured
		each = &queue.Function{Warm: time.Duration(min(float64(time.Second)/r.RPS, float64(time.Hour)))}
	}
	if s := e.announcedAs(r.ID); s != nil && !own && s.target == t && s.gpu == gpu {
		s.record, s.state, s.since = r, serverReady, e.now()
		t.contract = r.Contract
		e.step(queue.Event{Kind: queue.Ready, Instance: s.id, Function: t.number, Spec: each})
		return s
	} else if s != nil {
		e.forsake(s)
	}
	s := e.other(t, gpu, r, serverReady)
	s.own, s.worked = own, true
	s.out = own && e.g.cfg.Parker != nil
	t.contract = r.Contract
	ev := queue.Event{Kind: queue.Adopted, Instance: s.id, Function: t.number, GPU: gpu, To: to, Pinned: !own, Spec: each}
	if !own {
		ev.Mem = int64(r.Slice.Mem)
	}
	e.step(ev)
	return s
}

// other makes an instance known that another process started, as the engine has it.
// Locked.
func (e *engine) other(t *target, gpu int32, r instance.Record, state serverState) *server {
	e.adopted--
	s := &server{id: e.adopted, gpu: gpu, further: e.g.further(r), mem: max(t.spec.Mem, int64(r.Slice.Mem)), target: t, generation: t.generation, function: t.function,
		record: r, state: state, since: e.now(), memory: newInstanceMemory()}
	e.servers[s.id] = s
	t.instances++
	e.occupy(s)
	e.respan(t)
	return s
}

// idle waits until no call is left, for so long; false if some are.
func (e *engine) idle(patience time.Duration) bool {
	e.mu.Lock()
	if len(e.calls) == 0 {
		e.mu.Unlock()
		return true
	}
	quiet := make(chan struct{})
	e.quiet = quiet
	e.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-quiet:
		return true
	case <-timer.C:
		return false
	}
}

// cutAll cuts what has not ended.
func (e *engine) cutAll() {
	e.mu.Lock()
	var all []*call
	for _, c := range e.calls {
		all = append(all, c)
	}
	for _, s := range e.servers {
		all = append(all, s.probes...)
	}
	e.mu.Unlock()
	slices.SortFunc(all, func(a, b *call) int { return cmp.Compare(a.id, b.id) })
	for _, c := range all {
		c.cut(errDraining)
	}
}
