package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// engine is what all policies share: it keeps the functions, what waits and what
// runs, has an order say which function goes next, and a pool of instances where.
type engine struct {
	config    Config
	now       time.Duration
	functions []Function
	states    []state // by function
	queues    *waiting
	pool      *residency.Pool
	order     order
	runs      []run    // what runs, in no order; instances know theirs
	vacant    []int32  // places in runs
	slots     []int    // by GPU: how many invocations it runs at once; 0 when it is closed
	held      []Action // what begins when there is room for it
	kept      []int32  // functions with a least number of instances
	planned   []int32  // functions that plans have instances for
	shared    []int32  // functions whose instances run several invocations at once
	failing   []int32  // functions whose starts failed several times in a row
	closing   []int32  // functions that are gone, of which invocations wait for instances that they have
	ending    []int32  // functions that are gone, but not all that was theirs
	aside     []int32  // functions that had to let others go first, in this step
	deadlines deadlines
	fresh     []deadline // of what came in this step
	batches   *batches   // of the batch policy alone
	adaptive  *adaptive
	prefetch  bool
	changing  bool          // what waits may not fit any GPU any more
	paused    bool          // the rest of the decisions is left to the next step
	news      bool          // something happened, other than that instances stopped as they were told to
	opened    time.Duration // when the order was opened last
	chosen    choice        // by the order, for step
	rejects   []Action      // what turned out to have to be rejected
	woken     time.Duration // the Wake that was asked for last
	evicts    string        // why an instance goes to make room
	// outside, unless nil, reports whether invocations of a function wait that the
	// engine has not been told of.
	outside func(function int32) bool
}

// state is the engine's bookkeeping for one function.
type state struct {
	failures int           // starts that failed in a row
	barred   time.Duration // no instance is started before
	closing  bool          // it is in engine.closing
	starts   startTime
	plans    []planned // instances that plans have for it
	planned  int32     // invocations that run there
}

// run is an invocation that runs, or will when there is room.
type run struct {
	member
	function, gpu int32
	slot          int32
	next          int32         // what runs beside it on its instance
	held          bool          // it waits for room
	planned       bool          // on an instance of a plan
	begin, until  time.Duration // until is when it should end
	expires       time.Duration // the at of its deadline, if it got its place at once; 0 where there is none
	counted       time.Duration // the starting of its deadline
	warm          time.Duration // executing alone
	charge        float64       // what its order charged for it
}

func (r *run) deadline() deadline { return deadline{r.expires, r.counted, r.function, r.member} }

// expected is how long it should take, its start included.
func (r *run) expected() time.Duration { return r.until - r.begin }

func newEngine(c Config) *engine {
	e := &engine{config: c, queues: newWaiting(0), woken: Never, evicts: "first in eviction order"}
	e.order = kindOf(c.Policy).order(e)
	if c.Policy == "batch" {
		e.batches = &batches{}
	}
	shape := residency.Config{Pool: c.Pool, Starting: e.starting}
	e.order.shape(&shape)
	if shape.NoHost {
		e.evicts = "model used least recently"
	}
	e.prefetch = c.Prefetch && shape.Keep != nil
	if c.Utilization > 0 && !OneAtATime(c.Policy) && !shape.Clears {
		e.adaptive = &adaptive{threshold: c.Utilization}
	}
	e.pool = residency.New(shape)
	return e
}

// Step implements Policy.
func (e *engine) Step(now time.Duration, events []Event, actions []Action) []Action {
	actions = e.step(now, events, actions)
	if at := e.wake(); at != e.woken || e.paused {
		e.woken = at
		actions = append(actions, wakeAt(at, "something is due then"))
	}
	return actions
}

func wakeAt(at time.Duration, rule string) Action {
	return Action{Kind: Wake, GPU: none, Instance: residency.None, At: at, Reason: Reason{Rule: rule}}
}

// step is Step without a Wake. Once an invocation has to wait for room it leaves the
// other decisions to the next step, at the same instant: a driver whose instances move
// and stop in no time has answered by then, so that these are made of what has moved.
func (e *engine) step(now time.Duration, events []Event, actions []Action) []Action {
	e.now, e.paused = now, false
	told := len(actions)
	for i := range events {
		actions = e.apply(&events[i], actions)
	}
	if len(e.closing) > 0 {
		actions = e.close(actions)
	}
	if len(e.deadlines) > 0 {
		actions = e.expire(actions)
	}
	if len(e.failing) > 0 {
		e.retry()
	}
	if e.news || now != e.opened {
		e.order.opened(now)
		e.news, e.opened = false, now
	}
	if e.batches != nil {
		actions = e.goOn(now, actions)
	}
	if len(e.planned) > 0 {
		actions = e.serve(actions)
	}
	for held := len(e.held); e.queues.total > 0 && (e.pool.AnyFree() || e.order.plans()); {
		if e.paused = len(e.held) > held; e.paused {
			break
		}
		c := &e.chosen
		if !e.order.next(now, c) {
			break // all that could go had better wait
		}
		if c.assigned {
			actions = append(actions, Action{Kind: Assign, Function: c.function, GPU: c.at.GPU, Instance: residency.None,
				ID: c.member.id, Arrived: c.member.at, Reason: c.reason})
			continue
		}
		at, ok := c.at, c.placed
		if !ok {
			at, ok = e.pool.Best(c.function, c.only, c.except)
		}
		if !c.taken && e.yields(c.function, at, ok) {
			continue
		}
		if !ok {
			break // it waits, and nothing overtakes it (R10)
		}
		actions = e.start(now, c, at, actions)
	}
	if !e.paused {
		actions = e.tend(actions)
	}
	if len(e.rejects) > 0 {
		actions = append(actions, e.rejects...)
		e.rejects = e.rejects[:0]
	}
	e.bound(actions[told:])
	return actions
}

// apply takes one event in.
func (e *engine) apply(ev *Event, actions []Action) []Action {
	if ev.Kind == Lost {
		if slot := e.pool.Slot(ev.Instance); slot >= 0 && e.pool.Stops(slot) {
			return e.stopped(slot, actions)
		}
	}
	e.news = true
	switch ev.Kind {
	case Completed, Failed:
		return e.ended(ev, actions)
	case Arrived:
		return e.arrived(ev, actions)
	case Cancelled:
		return e.withdraw(ev.Function, ev.ID, actions)
	case Started:
		if r := e.find(ev.Instance, ev.ID); r != nil && e.pool.Starts(r.slot) {
			e.pool.Started(r.slot, e.now)
			e.startSucceeded(r.function)
		}
	case Used:
		if e.adaptive != nil && e.open(ev.GPU) {
			e.pool.SetSlots(ev.GPU, e.adaptive.sample(ev.GPU, ev.Busy))
		}
	case FunctionSet:
		if int(ev.Function) < len(e.functions) {
			e.renew(ev.Function, ev.Renew)
		}
		return e.setFunction(ev.Function, *ev.Spec, actions)
	case Learned:
		if e.known(ev.Function) {
			f := e.functions[ev.Function]
			f.Warm, f.Cold, f.Load, f.Need = ev.Spec.Warm, ev.Spec.Cold, ev.Spec.Load, ev.Spec.Need
			return e.setFunction(ev.Function, f, actions)
		}
	case FunctionGone:
		if e.known(ev.Function) && !e.states[ev.Function].closing {
			return e.functionGone(ev.Function, actions)
		}
	case GPUSet:
		e.setGPU(ev.GPU, *ev.Machine)
		return e.changed(actions, "")
	case GPUGone:
		return e.gpuGone(ev.GPU, actions)
	case Ready, Adopted, Lost, Moved, Measured:
		return e.instance(ev, actions)
	case Occupied:
		if ev.GPU >= 0 && int(ev.GPU) < len(e.slots) {
			e.pool.Occupy(ev.GPU, ev.Mem)
			return e.changed(actions, "")
		}
	}
	return actions
}

// known says whether a function takes invocations.
func (e *engine) known(f int32) bool {
	return f >= 0 && int(f) < len(e.queues.queues) && e.queues.queues[f].known
}

func (e *engine) open(gpu int32) bool {
	return gpu >= 0 && int(gpu) < len(e.slots) && e.slots[gpu] > 0
}

// setFunction makes a function known or changes it.
func (e *engine) setFunction(f int32, spec Function, actions []Action) []Action {
	if int(f) >= len(e.functions) {
		e.functions = grown(e.functions, int(f)+1)
		e.states = grown(e.states, int(f)+1)
		e.queues.grow(int(f) + 1)
		e.order.grow(int(f)+1, len(e.slots), e.allSlots())
	}
	if e.batches != nil {
		spec.Inflight = 1 // a batch runs one after another (R12)
	}
	old := e.functions[f]
	e.functions[f] = spec
	e.queues.queues[f].known, e.queues.queues[f].most = true, spec.Queue
	e.ending = without(e.ending, f)
	e.pool.SetFunction(f, spec.resident())
	e.kept, e.shared = holding(e.kept, f, spec.Min > 0), holding(e.shared, f, spec.Inflight > 1)
	e.changing = e.changing || spec.Mem > old.Mem && e.queues.queues[f].len > 0
	e.order.changed(f)
	actions = e.changed(actions, "")
	e.review(f)
	return actions
}

// holding is a list, in order, that holds a value or not.
func holding(list []int32, f int32, in bool) []int32 {
	if i, found := slices.BinarySearch(list, f); found != in {
		if in {
			return slices.Insert(list, i, f)
		}
		return slices.Delete(list, i, i+1)
	}
	return list
}

func without(list []int32, f int32) []int32 {
	return slices.DeleteFunc(list, func(g int32) bool { return g == f })
}

// renew drops what the engine knows of starts of a function that has been set anew, or
// is set again after it was gone; with instances, it stops those that it has as well.
func (e *engine) renew(f int32, instances bool) {
	s := &e.states[f]
	if instances || s.closing || !e.known(f) {
		s.failures, s.barred, s.closing = 0, 0, false
		e.failing, e.closing = holding(e.failing, f, false), without(e.closing, f)
		e.pool.Bar(f, false)
	}
	if instances {
		e.pool.Renew(f)
	}
}

// functionGone cancels the starts of a function. What waits for it goes to the instances
// that it has, or is rejected.
func (e *engine) functionGone(f int32, actions []Action) []Action {
	e.states[f].closing = true
	e.closing = append(e.closing, f)
	e.pool.Bar(f, true)
	e.pool.CancelStarts(f)
	return e.close(e.changed(actions, NoFunction))
}

// close has functions that are gone end of which nothing waits any more, or has an
// instance to go to: it rejects what waits, and stops instances when they have nothing
// to do.
func (e *engine) close(actions []Action) []Action {
	for i := 0; i < len(e.closing); i++ {
		f := e.closing[i]
		if e.pool.Usable(f) && e.waits(f) {
			continue
		}
		e.closing = slices.Delete(e.closing, i, i+1)
		i--
		e.states[f].closing = false
		e.queues.queues[f].known = false
		e.kept, e.shared = holding(e.kept, f, false), holding(e.shared, f, false)
		e.failing = holding(e.failing, f, false)
		e.ending = append(e.ending, f)
		actions = e.rejectAll(f, NoFunction, actions)
		e.pool.Retire(f)
		e.pool.Bar(f, false)
		actions = e.changed(actions, NoFunction)
	}
	return actions
}

// waits reports whether an invocation of a function does.
func (e *engine) waits(f int32) bool {
	return e.queues.queues[f].len > 0 || len(e.waitingFor(f)) > 0 || e.outside != nil && e.outside(f)
}

// rejectAll rejects all that waits for a function.
func (e *engine) rejectAll(f int32, rule string, actions []Action) []Action {
	for _, m := range e.waitingFor(f) {
		if e.remove(f, m.id) {
			actions = append(actions, reject(f, m, rule))
		}
	}
	return actions
}

// waitingFor is what waits for a function, oldest first, then what waits for
// room or for the rest of its batch.
func (e *engine) waitingFor(f int32) []member {
	out := e.order.list(f)
	for _, a := range e.held {
		if a.Function == f {
			out = append(out, member{a.ID, a.Arrived})
		}
	}
	if e.batches != nil {
		out = append(out, e.batches.of(f)...)
	}
	return out
}

func (e *engine) allSlots() int {
	n := 0
	for _, s := range e.slots {
		n += s
	}
	return n
}

func (e *engine) setGPU(gpu int32, m GPU) {
	if OneAtATime(e.config.Policy) {
		m.Slots = 1
	}
	e.changing = true
	if e.open(gpu) && e.slots[gpu] == max(m.Slots, 1) {
		e.pool.SetMem(gpu, m.Mem)
		return
	}
	e.slots = grown(e.slots, int(gpu)+1)
	e.slots[gpu] = max(m.Slots, 1)
	e.pool.SetGPU(gpu, e.slots[gpu], m.Mem)
	if e.adaptive != nil {
		e.adaptive.set(gpu, e.slots[gpu])
	}
	e.order.grow(len(e.functions), len(e.slots), e.allSlots())
}

func (e *engine) gpuGone(gpu int32, actions []Action) []Action {
	if !e.open(gpu) {
		return actions
	}
	e.slots[gpu] = 0
	e.pool.CloseGPU(gpu)
	e.changing = true
	e.order.closed(gpu)
	e.order.grow(len(e.functions), len(e.slots), e.allSlots())
	return e.changed(actions, "its GPU is gone")
}

// arrived takes an invocation that came.
func (e *engine) arrived(ev *Event, actions []Action) []Action {
	f, m := ev.Function, member{ev.ID, ev.At}
	if rule := e.refuses(f); rule != "" {
		return append(actions, reject(f, m, rule))
	}
	switch {
	case ev.Deadline > e.now:
		e.fresh = append(e.fresh, e.deadline(ev.Deadline, f, m))
	case ev.Deadline > 0:
		e.deadlines.add(e.deadline(ev.Deadline, f, m))
	}
	e.order.push(e.now, f, m)
	if q := &e.queues.queues[f]; q.len == 1 || q.out {
		e.begin(f)
		if e.prefetch && q.len == 1 {
			actions = e.anticipate(f, actions)
		}
	}
	return actions
}

// refuses is by which rule an invocation of a function is rejected when it
// comes; empty if it may wait.
func (e *engine) refuses(f int32) string {
	if !e.known(f) {
		return NoFunction
	}
	switch q := &e.queues.queues[f]; {
	case !e.pool.Fits(f):
		return TooLarge
	case q.most > 0 && q.len >= q.most:
		return QueueFull
	case e.barred(f):
		return StartFailed
	}
	return ""
}

// begin puts a function that waits into the order, unless it is blocked.
func (e *engine) begin(f int32) {
	q := &e.queues.queues[f]
	if q.out = e.blocked(f); !q.out {
		e.order.began(e.now, f, true)
	}
}

// review has a function that waits be in the order just when it could go: not
// while it has as many instances as it may have, all of them busy, or while
// enough are starting. It holds up nobody then.
func (e *engine) review(f int32) {
	q := &e.queues.queues[f]
	switch blocked := q.len > 0 && e.blocked(f); {
	case q.len == 0:
	case blocked && !q.out:
		q.out = true
		e.order.ceased(f)
	case !blocked && q.out:
		q.out = false
		e.order.began(e.now, f, true)
	}
}

// anticipate brings back the memory of an instance that an invocation will
// want, where there is room or what is there is not wanted (section 4.3).
func (e *engine) anticipate(f int32, actions []Action) []Action {
	slot, ok := e.pool.Prefetch(f, e.now+e.functions[f].Load)
	actions = e.changed(actions, "")
	if ok {
		gpu := e.pool.GPU(slot)
		e.order.moved(f, gpu)
		actions = append(actions, Action{Kind: Prefetch, Function: f, GPU: gpu, Instance: e.pool.Instance(slot),
			Reason: Reason{Rule: "its queue became active"}})
	}
	return actions
}

func reject(f int32, m member, rule string) Action {
	return Action{Kind: Reject, Function: f, ID: m.id, Arrived: m.at, GPU: none, Instance: residency.None, Reason: Reason{Rule: rule}}
}

// start dispatches the function's next invocation to a place.
func (e *engine) start(now time.Duration, c *choice, at residency.Place, actions []Action) []Action {
	q := &e.queues.queues[c.function]
	if c.reason.Waiting == 0 {
		c.reason.Waiting, c.reason.InFlight = q.len, q.inFlight
	}
	slot, room := e.pool.Begin(c.function, at)
	actions = append(e.changed(actions, ""), Action{})
	a := &actions[len(actions)-1]
	a.Kind, a.Start, a.Elsewhere, a.Function, a.GPU = Run, at.Start, c.elsewhere, c.function, at.GPU
	a.Expected, a.Reason = e.pool.Duration(c.function, at.Start), c.reason
	if e.prefetch && at.Start == residency.GPUWarm {
		a.Expected += max(e.pool.Ready(slot)-now, 0)
	}
	return e.dispatch(slot, room, actions)
}

// dispatch takes an invocation from its queue for the last action, and runs it
// on the instance in a slot or, without room there, has it wait for that.
func (e *engine) dispatch(slot int32, room bool, actions []Action) []Action {
	a := &actions[len(actions)-1]
	f := a.Function
	m := e.order.take(f)
	a.Instance, a.ID, a.Arrived = e.pool.Instance(slot), m.id, m.at
	e.queues.queues[f].inFlight++
	r := e.add(run{member: m, function: f, gpu: a.GPU, slot: slot, held: !room,
		begin: e.now, until: e.now + a.Expected, warm: e.pool.Duration(f, residency.GPUWarm)})
	if !room || e.pool.Starts(slot) {
		d := e.freshDeadline(m.id)
		r.expires, r.counted = d.at, d.starting
		if e.states[f].failures >= mostFailures && e.pool.Starting(f) {
			e.pool.Bar(f, true) // until this start has ended
		}
	}
	if e.batches != nil {
		e.take(slot, f, a.GPU)
	}
	if !room {
		e.held = append(e.held, *a)
		actions = actions[:len(actions)-1]
	}
	e.order.left(e.now, f, r)
	e.review(f)
	return actions
}

// add puts an invocation on its instance.
func (e *engine) add(r run) *run {
	r.next = e.pool.Run(r.slot)
	n := int32(len(e.runs))
	if last := len(e.vacant) - 1; last >= 0 {
		n, e.vacant = e.vacant[last], e.vacant[:last]
		e.runs[n] = r
	} else {
		e.runs = append(e.runs, r)
	}
	e.pool.SetRun(r.slot, n)
	return &e.runs[n]
}

// find is an invocation that runs on an instance; nil if it does not.
func (e *engine) find(id residency.ID, invocation int64) *run {
	slot := e.pool.Slot(id)
	if slot < 0 {
		return nil
	}
	for n := e.pool.Run(slot); n != none; n = e.runs[n].next {
		if e.runs[n].id == invocation {
			return &e.runs[n]
		}
	}
	return nil
}

// beside is how many run on an instance.
func (e *engine) beside(slot int32) (many int) {
	for n := e.pool.Run(slot); n != none; n = e.runs[n].next {
		many++
	}
	return many
}

// ended takes an invocation that completed or failed.
func (e *engine) ended(ev *Event, actions []Action) []Action {
	r := e.find(ev.Instance, ev.ID)
	if r == nil || r.held {
		return actions
	}
	executed := ev.Executed
	if n := e.beside(r.slot); n > 1 {
		executed /= time.Duration(n) // they share the slot's time
	}
	e.over(r, executed)
	if r.planned && ev.Kind == Completed {
		e.measured(r, executed)
	}
	switch starts := e.pool.Starts(r.slot); {
	case ev.Starting:
		if starts && !(ev.Short && e.pool.Starved(r.slot)) {
			e.startFailed(r.function) // before others get its room
		}
		e.pool.Lost(r.slot)
	case starts && ev.Kind == Completed:
		e.startSucceeded(r.function)
	}
	if e.batches != nil && e.batches.goesOn(r.slot, e.pool.Dead(r.slot) || e.pool.Obsolete(r.slot)) {
		e.pool.Trim(r.gpu)
	} else {
		e.pool.End(r.slot, e.now)
		if !r.planned {
			e.order.freed(r.function, r.gpu)
		}
		e.unbatch(r.slot)
	}
	f := r.function
	if ev.Again {
		until := r.deadline()
		if ev.Deadline > 0 {
			e.forgetDeadline(r.id)
			until = e.deadline(ev.Deadline, f, r.member)
		}
		e.again(f, r.member, until)
	}
	actions = e.changed(actions, "")
	e.review(f)
	return actions
}

// over takes a run off its instance and tells the order. What it says holds until
// the next begins.
func (e *engine) over(r *run, executed time.Duration) {
	before, n := none, e.pool.Run(r.slot)
	for &e.runs[n] != r {
		before, n = n, e.runs[n].next
	}
	if before == none {
		e.pool.SetRun(r.slot, r.next)
	} else {
		e.runs[before].next = r.next
	}
	e.vacant = append(e.vacant, n)
	if r.planned {
		e.states[r.function].planned--
		return
	}
	e.queues.queues[r.function].inFlight--
	e.order.ended(e.now, r.function, r, executed)
}

// again has an invocation wait where it was before it ran, until its deadline, unless
// that is none or noted already.
func (e *engine) again(f int32, m member, until deadline) {
	switch {
	case !e.known(f):
		e.rejects = append(e.rejects, reject(f, m, NoFunction))
	case !e.pool.Fits(f):
		e.rejects = append(e.rejects, reject(f, m, TooLarge))
	case e.barred(f):
		e.rejects = append(e.rejects, reject(f, m, StartFailed))
	default:
		if until.at > 0 {
			e.deadlines.add(until)
		}
		e.order.putBack(f, m)
		switch q := &e.queues.queues[f]; {
		case q.len == 1:
			e.begin(f)
		case !q.out:
			e.order.grew(f)
		}
		e.review(f)
	}
}

// withdraw takes out an invocation whose caller left.
func (e *engine) withdraw(f int32, id int64, actions []Action) []Action {
	if e.known(f) {
		e.remove(f, id)
	}
	return e.changed(actions, "")
}

// remove takes out an invocation that waits, for its turn, for room, or for the
// rest of its batch; false if it does not.
func (e *engine) remove(f int32, id int64) bool {
	if e.order.drop(f, id) {
		e.took(f)
		return true
	}
	for i, a := range e.held {
		if a.ID == id {
			e.unhold(i)
			return true
		}
	}
	return e.batches != nil && e.batches.drop(f, id)
}

// recall takes out the first invocation of a function that waits for room, if any does.
func (e *engine) recall(f int32) (m member, found bool) {
	for i, a := range e.held {
		if a.Function == f {
			e.unhold(i)
			return member{a.ID, a.Arrived}, true
		}
	}
	return m, false
}

// unhold takes out what waits for room.
func (e *engine) unhold(i int) {
	a := e.held[i]
	r := e.find(a.Instance, a.ID)
	e.held = slices.Delete(e.held, i, i+1)
	e.over(r, 0)
	e.pool.Withdraw(r.slot)
	e.order.freed(a.Function, r.gpu)
	e.unbatch(r.slot)
	e.review(a.Function)
}

// took tells the order that one that waited does so no more, and does not run by
// its word either.
func (e *engine) took(f int32) {
	q := &e.queues.queues[f]
	switch {
	case q.len > 0 && !q.out:
		e.order.grew(f)
	case q.len == 0 && !q.out:
		e.order.ceased(f)
	}
	if q.len == 0 {
		q.out = false
	}
}

// instance takes what happened to an instance.
func (e *engine) instance(ev *Event, actions []Action) []Action {
	if ev.Kind == Adopted {
		if e.known(ev.Function) && ev.GPU >= 0 && int(ev.GPU) < len(e.slots) {
			found := residency.Found{Resident: ev.To == residency.GPUWarm, Pinned: ev.Pinned, Starting: ev.Pinned && ev.Starting, Mem: ev.Mem}
			slot, ok := e.pool.Adopt(ev.Instance, ev.Function, ev.GPU, found, e.now)
			switch {
			case ok && found.Starting:
				actions = e.changed(actions, "")
				e.await(ev.Function)
			case ok && ev.Pinned:
				e.plan(ev.Function, slot, ev.Spec)
			}
			e.order.moved(ev.Function, ev.GPU)
			actions = e.changed(actions, "")
			e.review(ev.Function)
		}
		return actions
	}
	slot := e.pool.Slot(ev.Instance)
	if slot < 0 {
		return actions
	}
	f, gpu := e.pool.Function(slot), e.pool.GPU(slot)
	switch ev.Kind {
	case Ready:
		if e.pool.Starts(slot) {
			e.pool.Started(slot, e.now)
			e.startSucceeded(f)
			if e.pool.Pinned(slot) {
				e.plan(f, slot, ev.Spec)
			}
		}
	case Measured:
		e.pool.Measured(slot, ev.Mem, ev.Stays)
	case Moved:
		e.pool.Moved(slot, ev.To, !ev.Fault)
	case Lost:
		if e.pool.Starts(slot) && !e.pool.Pinned(slot) && !(ev.Short && e.pool.Starved(slot)) {
			e.startFailed(f)
		}
		if e.pool.Waits(slot) {
			e.bump(slot)
		}
		e.unplan(f, slot)
		e.pool.Lost(slot)
		e.changing = e.changing || e.states[f].failures >= mostFailures
	}
	e.order.moved(f, gpu)
	actions = e.changed(actions, "")
	e.review(f)
	return actions
}

// stopped frees what an instance had that was told to stop, and is gone. Orders were told
// of that when it was told to.
func (e *engine) stopped(slot int32, actions []Action) []Action {
	f := e.pool.Function(slot)
	e.changing = e.changing || e.states[f].failures >= mostFailures
	e.pool.Lost(slot)
	actions = e.changed(actions, "")
	e.review(f)
	return actions
}

// await puts the invocations of a function that wait for room to start an instance back
// into its queue: another process has begun to start one.
func (e *engine) await(f int32) { e.pool.BumpStarts(f) }

// bump has what waits on an instance for room, or for its start, wait for its turn again.
func (e *engine) bump(slot int32) {
	for n := e.pool.Run(slot); n != none; n = e.pool.Run(slot) {
		r := e.runs[n]
		e.over(&e.runs[n], 0)
		e.held = slices.DeleteFunc(e.held, func(a Action) bool { return a.ID == r.id })
		e.order.freed(r.function, r.gpu)
		e.again(r.function, r.member, r.deadline())
	}
	e.unbatch(slot)
}

// changed turns what happened to instances into actions.
func (e *engine) changed(actions []Action, rule string) []Action {
	if !e.pool.Changed() {
		return actions
	}
	return e.changes(actions, rule)
}

// changes is changed where there are some.
func (e *engine) changes(actions []Action, rule string) []Action {
	if rule == "" {
		rule = e.evicts
	}
	for changes := e.pool.Changes(); len(changes) > 0; changes = e.pool.Changes() {
		for _, c := range changes {
			e.order.moved(c.Function, c.GPU)
			a := Action{Function: c.Function, GPU: c.GPU, Instance: c.Instance, Reason: Reason{Rule: rule}}
			switch c.Verb {
			case residency.Removed:
				e.unplan(c.Function, c.Slot)
				a.Kind = Remove
			case residency.Cancelled:
				e.bump(c.Slot)
				if a.Kind = Remove; rule == e.evicts {
					a.Reason.Rule = "its function has changed before it was ready"
				}
			case residency.Offloaded:
				a.Kind = Offload
			case residency.Started:
				a.Kind, a.Reason.Rule = Start, "fewer than its least number are there"
			case residency.Bumped:
				e.bump(c.Slot)
				continue
			case residency.Placed:
				i := slices.IndexFunc(e.held, func(a Action) bool { return a.Instance == c.Instance })
				a = e.held[i]
				e.held = slices.Delete(e.held, i, i+1)
				r := e.find(a.Instance, a.ID)
				r.held, r.begin, r.until = false, e.now, e.now+r.expected()
			}
			actions = append(actions, a)
		}
	}
	return actions
}
