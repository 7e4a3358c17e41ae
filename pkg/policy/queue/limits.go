package queue

import (
	"cmp"
	"slices"
	"time"
)

// Limits bounds the GPU use of each tenant (LALB, section VI). Invocations that would exceed a
// limit wait outside the policy, oldest first. The pool holds the limits on instances: idle instances
// of a tenant make room for its next start.
type Limits struct {
	Slots     int     // admitted invocations; 0 means no limit
	Processes int     // instances, including idle ones (residency.TenantLimits); 0 means no limit
	Mem       int64   // bytes of GPU memory of the admitted invocations, and of the instances; 0 means no limit
	Time      float64 // share of the time of all slots in each period; 0 means no limit
}

// period is the length of the accounting period of GPU time.
const period = 10 * time.Second

// limits implements Policy: it admits invocations to an engine within the limits.
type limits struct {
	Limits
	engine      *engine
	tenants     []tenant
	periodStart time.Duration
	admitted    []Event          // Arrived events of the invocations to admit
	timeLimited bool             // an invocation waits because of the limit on time
	charges     map[int64]charge // by ID of the admitted invocation
}

type tenant struct {
	admitted int
	mem      int64
	gpuTime  time.Duration // GPU time charged in this period
	waiting  []arrival
}

// arrival is an invocation that waits for admission.
type arrival struct {
	Arrived
	deadline deadline // at is 0 if there is no deadline
}

// charge holds the resources charged for an admitted invocation.
type charge struct {
	tenant int32
	mem    int64
	time   time.Duration
}

func newLimits(c Config, e *engine) *limits {
	l := &limits{Limits: c.Limits, engine: e, charges: map[int64]charge{}}
	e.waitsOutside = func(f int32) bool { return l.countWaiting(f) > 0 }
	return l
}

// Step implements Policy. At admission it charges the expected warm duration; unless Uncorrected
// is set, it replaces that by the measured duration at the end.
func (l *limits) Step(now time.Duration, events []Event, actions []Action) []Action {
	if now-l.periodStart >= period {
		l.periodStart += (now - l.periodStart) / period * period
		for i := range l.tenants {
			l.tenants[i].gpuTime = 0
		}
	}
	l.engine.now = now
	firstNew := len(actions)
	for i := range events {
		switch ev := events[i].(type) {
		case *Arrived:
			continue
		case *Cancelled:
			if !l.dropWaiting(ev.ID) {
				if l.engine.known(ev.Function) && l.engine.remove(ev.Function, ev.ID) {
					l.release(ev.ID, 0)
				}
				actions = l.engine.appendChanges(actions, "")
			}
			continue
		case *Completed:
			actions = l.engine.apply(events[i:], actions)
			l.release(ev.ID, l.engine.charged)
			continue
		case *Failed:
			actions = l.engine.apply(events[i:], actions)
			if !ev.Requeue {
				l.release(ev.ID, l.engine.charged)
			}
			continue
		case *FunctionSet:
			l.moveWaiting(ev.Function, ev.Spec.Tenant)
		}
		actions = l.engine.apply(events[i:], actions)
	}
	for i := range events {
		if ev, ok := events[i].(*Arrived); ok {
			actions = l.arrived(ev, actions)
		}
	}
	actions = l.expire(l.engine.closeFunctions(actions))
	l.timeLimited = false
	for repeat := true; repeat; {
		l.admitted = l.admitted[:0]
		for i := range l.tenants {
			l.timeLimited = l.admit(&l.tenants[i]) || l.timeLimited
		}
		actions = l.engine.step(now, l.admitted, actions)
		repeat = l.rejected(actions[firstNew:])
		firstNew = len(actions)
	}
	at, code := l.wake(), timer
	if l.timeLimited && at == l.periodStart+period {
		code = tenantPeriodEnd
	}
	return l.engine.appendWake(at, code, actions)
}

// arrived queues an invocation for admission, or rejects it.
func (l *limits) arrived(ev *Arrived, actions []Action) []Action {
	f := ev.Function
	if !l.engine.known(f) {
		return append(actions, reject(f, member{ev.ID, ev.At}, NoFunction))
	}
	t, spec := l.tenantOf(f), &l.engine.functions[f]
	if waits := l.countWaiting(f); spec.Queue > 0 && int32(waits)+l.engine.queues.queues[f].len >= spec.Queue {
		return append(actions, reject(f, member{ev.ID, ev.At}, QueueFull))
	}
	w := arrival{Arrived: *ev}
	if ev.Deadline > 0 {
		w.deadline = l.engine.timeouts.deadline(ev.Deadline, f, member{ev.ID, ev.At})
	}
	t.waiting = append(t.waiting, w)
	return actions
}

func (l *limits) tenantOf(function int32) *tenant {
	n := l.engine.functions[function].Tenant
	l.tenants = grown(l.tenants, int(n)+1)
	return &l.tenants[n]
}

// moveWaiting moves the invocations of a function that wait for admission to another tenant, in
// order of arrival.
func (l *limits) moveWaiting(function, to int32) {
	if int(function) >= len(l.engine.functions) || l.engine.functions[function].Tenant == to {
		return
	}
	l.tenants = grown(l.tenants, int(to)+1)
	from := l.tenantOf(function)
	into := &l.tenants[to]
	its := func(w arrival) bool { return w.Function == function }
	for _, w := range from.waiting {
		if its(w) {
			into.waiting = append(into.waiting, w)
		}
	}
	from.waiting = slices.DeleteFunc(from.waiting, its)
	slices.SortFunc(into.waiting, func(a, b arrival) int { return cmp.Compare(a.ID, b.ID) })
}

// countWaiting returns the number of invocations of a function that wait for admission.
func (l *limits) countWaiting(function int32) (n int) {
	for i := range l.tenants {
		for j := range l.tenants[i].waiting {
			if l.tenants[i].waiting[j].Function == function {
				n++
			}
		}
	}
	return n
}

// dropWaiting removes an invocation that waits for admission, and reports whether it did.
func (l *limits) dropWaiting(id int64) bool {
	for i := range l.tenants {
		t := &l.tenants[i]
		if at := slices.IndexFunc(t.waiting, func(w arrival) bool { return w.ID == id }); at >= 0 {
			t.waiting = slices.Delete(t.waiting, at, at+1)
			return true
		}
	}
	return false
}

// expire rejects invocations whose deadline has passed or whose function was removed.
func (l *limits) expire(actions []Action) []Action {
	for i := range l.tenants {
		t := &l.tenants[i]
		t.waiting = slices.DeleteFunc(t.waiting, func(w arrival) bool {
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

// expires returns the time until which an invocation may wait for admission. It returns Never if
// there is no deadline, or while an instance of its function starts.
func (l *limits) expires(w *arrival) time.Duration {
	s := &l.engine.timeouts.starts[w.Function]
	if w.deadline.at == 0 || s.inProgress {
		return Never
	}
	w.deadline.extend(s, l.engine.now)
	return w.deadline.at
}

// admit admits a tenant's invocations, oldest first. It returns true if the limit on time stops
// it. An invocation that needs more memory than the limit is admitted alone.
func (l *limits) admit(t *tenant) (timeLimited bool) {
	for len(t.waiting) > 0 {
		ev := &t.waiting[0].Arrived // no longer written to in this step
		if until := t.waiting[0].deadline; until.at > 0 {
			until.extend(&l.engine.timeouts.starts[ev.Function], l.engine.now)
			ev.Deadline = until.at
		}
		f := &l.engine.functions[ev.Function]
		switch {
		case l.Slots > 0 && t.admitted >= l.Slots:
			return false
		case l.Mem > 0 && t.mem+f.Mem > l.Mem && t.admitted > 0:
			return false
		case l.Time > 0 && float64(t.gpuTime) >= l.Time*float64(l.engine.totalSlots)*float64(period):
			return true
		}
		t.admitted++
		t.mem += f.Mem
		t.gpuTime += f.Warm
		l.charges[ev.ID] = charge{tenant: f.Tenant, mem: f.Mem, time: f.Warm}
		l.admitted = append(l.admitted, ev)
		t.waiting = t.waiting[1:]
	}
	return false
}

// release returns the resources of an invocation to its tenant, once. It reports whether the
// invocation was admitted.
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
		t.gpuTime += executed - c.time
	}
	return true
}

// rejected returns the resources of rejected invocations to their tenants, with the charged time.
// It reports whether there were any.
func (l *limits) rejected(actions []Action) (found bool) {
	for i := range actions {
		if a := &actions[i]; a.Kind == Reject {
			if c, admitted := l.charges[a.ID]; admitted && l.release(a.ID, c.time) {
				l.tenants[c.tenant].gpuTime -= c.time
				found = true
			}
		}
	}
	return found
}

// wake returns the time at which to decide again even without an event.
func (l *limits) wake() time.Duration {
	at := l.engine.wake()
	for i := range l.tenants {
		for j := range l.tenants[i].waiting {
			at = min(at, l.expires(&l.tenants[i].waiting[j]))
		}
	}
	if l.timeLimited {
		at = min(at, l.periodStart+period)
	}
	return at
}
