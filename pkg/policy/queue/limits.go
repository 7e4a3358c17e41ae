package queue

import (
	"cmp"
	"slices"
	"time"
)

// Limits bound what one tenant may have on the GPUs (LALB, section VI). What
// would exceed a limit waits before the policy sees it, oldest first.
type Limits struct {
	Slots int     // invocations admitted at once; 0 is no limit
	Mem   int64   // bytes of GPU memory of those; 0 is no limit
	Time  float64 // share of all slots' time in each period; 0 is no limit
}

// period is how long a tenant's GPU time is counted before it begins anew.
const period = 10 * time.Second

// limits admits invocations to a policy.
type limits struct {
	Limits
	engine  *engine
	tenants []tenant
	begin   time.Duration
	passed  []Event
	late    bool             // time is what keeps somebody waiting
	charges map[int64]charge // of what was admitted
}

type tenant struct {
	admitted int
	mem      int64
	spent    time.Duration // GPU time charged in this period
	waits    []arrival
}

// arrival is an invocation that waits for its tenant's turn.
type arrival struct {
	Event
	until deadline // at is 0 where there is none
}

// charge is what an invocation that was admitted counts as.
type charge struct {
	tenant int32
	mem    int64
	time   time.Duration
}

func newLimits(c Config, e *engine) *limits {
	l := &limits{Limits: c.Limits, engine: e, charges: map[int64]charge{}}
	e.outside = func(f int32) bool { return l.waiting(f) > 0 }
	return l
}

// Step hands on what may go. Time is charged at admission as it is expected to
// be with everything warm, and corrected when it is known.
func (l *limits) Step(now time.Duration, events []Event, actions []Action) []Action {
	if now-l.begin >= period {
		l.begin += (now - l.begin) / period * period
		for i := range l.tenants {
			l.tenants[i].spent = 0
		}
	}
	l.engine.now = now
	told := len(actions)
	for i := range events {
		switch ev := &events[i]; ev.Kind {
		case Arrived:
		case Cancelled:
			if !l.drop(ev.ID) {
				if l.engine.known(ev.Function) && l.engine.remove(ev.Function, ev.ID) {
					l.release(ev.ID, 0)
				}
				actions = l.engine.changed(actions, "")
			}
		default:
			switch {
			case ev.Kind == Completed || ev.Kind == Failed && !ev.Again:
				l.release(ev.ID, ev.Executed)
			case ev.Kind == FunctionSet:
				l.move(ev.Function, ev.Spec.Tenant)
			}
			actions = l.engine.apply(ev, actions)
		}
	}
	for i := range events {
		if ev := &events[i]; ev.Kind == Arrived {
			actions = l.arrived(ev, actions)
		}
	}
	actions = l.expire(l.engine.close(actions))
	l.late = false
	for again := true; again; {
		l.passed = l.passed[:0]
		for i := range l.tenants {
			l.late = l.admit(&l.tenants[i]) || l.late
		}
		actions = l.engine.step(now, l.passed, actions)
		again = l.rejected(actions[told:])
		told = len(actions)
	}
	if at := l.wake(); at != l.engine.woken || l.engine.paused {
		l.engine.woken = at
		rule := "something is due then"
		if l.late && at == l.begin+period {
			rule = "a tenant has had its share of GPU time"
		}
		actions = append(actions, wakeAt(at, rule))
	}
	return actions
}

// arrived has an invocation wait for its tenant's turn.
func (l *limits) arrived(ev *Event, actions []Action) []Action {
	f := ev.Function
	if !l.engine.known(f) {
		return append(actions, reject(f, member{ev.ID, ev.At}, NoFunction))
	}
	t, spec := l.of(f), &l.engine.functions[f]
	if waits := l.waiting(f); spec.Queue > 0 && int32(waits)+l.engine.queues.queues[f].len >= spec.Queue {
		return append(actions, reject(f, member{ev.ID, ev.At}, QueueFull))
	}
	w := arrival{Event: *ev}
	if ev.Deadline > 0 {
		w.until = l.engine.deadline(ev.Deadline, f, member{ev.ID, ev.At})
	}
	t.waits = append(t.waits, w)
	return actions
}

func (l *limits) of(function int32) *tenant {
	n := l.engine.functions[function].Tenant
	l.tenants = grown(l.tenants, int(n)+1)
	return &l.tenants[n]
}

// move has what waits of a function wait for the turn of the tenant that it is to
// have, where it came in between.
func (l *limits) move(function, to int32) {
	if int(function) >= len(l.engine.functions) || l.engine.functions[function].Tenant == to {
		return
	}
	l.tenants = grown(l.tenants, int(to)+1)
	from := l.of(function)
	into := &l.tenants[to]
	its := func(w arrival) bool { return w.Function == function }
	for _, w := range from.waits {
		if its(w) {
			into.waits = append(into.waits, w)
		}
	}
	from.waits = slices.DeleteFunc(from.waits, its)
	slices.SortFunc(into.waits, func(a, b arrival) int { return cmp.Compare(a.ID, b.ID) })
}

// waiting is how many invocations of a function wait for their tenant's turn.
func (l *limits) waiting(function int32) (n int) {
	for i := range l.tenants {
		for j := range l.tenants[i].waits {
			if l.tenants[i].waits[j].Function == function {
				n++
			}
		}
	}
	return n
}

// drop takes out an invocation that waits for its tenant's turn; false if it
// does not.
func (l *limits) drop(id int64) bool {
	for i := range l.tenants {
		t := &l.tenants[i]
		if at := slices.IndexFunc(t.waits, func(w arrival) bool { return w.ID == id }); at >= 0 {
			t.waits = slices.Delete(t.waits, at, at+1)
			return true
		}
	}
	return false
}

// expire rejects what has waited for as long as it may, or whose function is
// gone.
func (l *limits) expire(actions []Action) []Action {
	for i := range l.tenants {
		t := &l.tenants[i]
		t.waits = slices.DeleteFunc(t.waits, func(w arrival) bool {
			switch {
			case !l.engine.known(w.Function):
				actions = append(actions, reject(w.Function, member{w.ID, w.At}, NoFunction))
			case l.expires(&w) <= l.engine.now:
				actions = append(actions, reject(w.Function, member{w.ID, w.At}, TooLate))
			default:
				return false
			}
			return true
		})
	}
	return actions
}

// expires returns until when an invocation waits for its tenant's turn; Never while
// nothing says so, or an instance of its function starts.
func (l *limits) expires(w *arrival) time.Duration {
	s := &l.engine.states[w.Function].starts
	if w.until.at == 0 || s.inProgress {
		return Never
	}
	w.until.extend(s, l.engine.now)
	return w.until.at
}

// admit lets a tenant's invocations go on, oldest first; late says that time is
// what keeps the next one. One that needs more memory than the limit goes alone.
func (l *limits) admit(t *tenant) (late bool) {
	for len(t.waits) > 0 {
		ev := t.waits[0].Event
		if until := t.waits[0].until; until.at > 0 {
			until.extend(&l.engine.states[ev.Function].starts, l.engine.now)
			ev.Deadline = until.at
		}
		f := &l.engine.functions[ev.Function]
		switch {
		case l.Slots > 0 && t.admitted >= l.Slots:
			return false
		case l.Mem > 0 && t.mem+f.Mem > l.Mem && t.admitted > 0:
			return false
		case l.Time > 0 && float64(t.spent) >= l.Time*float64(l.engine.allSlots())*float64(period):
			return true
		}
		t.admitted++
		t.mem += f.Mem
		t.spent += f.Warm
		l.charges[ev.ID] = charge{tenant: f.Tenant, mem: f.Mem, time: f.Warm}
		l.passed = append(l.passed, ev)
		t.waits = t.waits[1:]
	}
	return false
}

// release gives a tenant back what an invocation was admitted with, once.
func (l *limits) release(id int64, executed time.Duration) (known bool) {
	c, known := l.charges[id]
	if !known {
		return false
	}
	delete(l.charges, id)
	t := &l.tenants[c.tenant]
	t.admitted--
	t.mem -= c.mem
	if !l.engine.config.Uncorrected {
		t.spent += executed - c.time
	}
	return true
}

// rejected gives tenants back what rejected invocations were admitted with.
func (l *limits) rejected(actions []Action) (some bool) {
	for i := range actions {
		if a := &actions[i]; a.Kind == Reject {
			if c, admitted := l.charges[a.ID]; admitted && l.release(a.ID, c.time) {
				l.tenants[c.tenant].spent -= c.time
				some = true
			}
		}
	}
	return some
}

// wake is when to decide again although nothing happens.
func (l *limits) wake() time.Duration {
	at := l.engine.wake()
	for i := range l.tenants {
		for j := range l.tenants[i].waits {
			at = min(at, l.expires(&l.tenants[i].waits[j]))
		}
	}
	if l.late {
		at = min(at, l.begin+period)
	}
	return at
}
