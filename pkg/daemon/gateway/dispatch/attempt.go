package dispatch

import (
	"errors"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Attempt is the policy's view of a call. It waits in a queue and then runs on an instance.
// If the instance fails to answer, Retry puts the same Attempt back into the queue, so that
// one Attempt represents all tries of a call, one after another. The zero value is ready for
// Submit or Probe.
type Attempt struct {
	d        *Dispatcher
	function *Function
	turn     chan Turn // has capacity 1

	// Dispatcher.mu guards the rest.
	owner       Owner
	id          int64
	batch       int  // number of calls in its batch; 0 if it is not a batch
	sentBefore  bool // its batch was sent before, with that number of calls
	inferences  int  // number of inferences in its batch; 0 if it is not known
	state       attemptState
	on          *Instance       // the instance that it was dispatched to
	arrived     time.Duration   // when its current wait in the queue began
	deadline    time.Duration   // latest time of its dispatch
	sent        time.Duration   // when it was dispatched
	queued      time.Duration   // total time in the queue, earlier tries included
	starting    time.Duration   // how long the start or the unparking of its instance took
	began       time.Duration   // when it began to execute
	callsBefore time.Duration   // Instance.calls at that time
	loading     bool            // starting counts an unparking, whose time is charged to the function
	found       residency.Start // kind of start
	reason      queue.Reason    // the policy's reason for its dispatch
	abandoned   bool            // its caller left while its instance was starting
	accepted    bool            // its calls were accepted before it was submitted, so it runs even if the gateway drains
	affinity    string          // value of the cookie or header that selects its instance; empty: none
	session     *session        // the calls with this value, if a header selects the instance
}

type attemptState uint8

const (
	attemptNew attemptState = iota
	attemptWaits
	attemptStarts // its instance is starting, or is being unparked
	attemptRuns
	attemptProbes // it runs without the policy's knowledge
	attemptOver
)

// Owner is the call that an attempt belongs to.
type Owner interface {
	// Cut ends the call with the cause ErrDied, ErrDraining or ErrIdle.
	Cut(cause error)
	// Idle returns how long the call's upgraded connection has been idle. It returns false
	// if the call has none. The dispatcher's lock is held.
	Idle() (time.Duration, bool)
}

// The causes with which the dispatcher cuts a call.
var (
	ErrDied     = errors.New("the instance ended")
	ErrDraining = errors.New("the gateway is shutting down")
	ErrIdle     = errors.New("the upgraded connection was idle")
)

// Turn is the policy's decision on a call: an instance to run on, or a refusal.
type Turn struct {
	Refusal  *refusal.Error // nil if the call runs
	Instance *Instance
	Record   *instance.Record // of Instance; never modified
	Queued   time.Duration    // total time in the queue, earlier tries included
	Starting time.Duration    // how long the start or the unparking of the instance took
	Found    residency.Start  // kind of start
	Reason   queue.Reason     // the policy's reason for the dispatch
}

// Turn returns the channel that delivers the attempt's next turn.
func (a *Attempt) Turn() <-chan Turn { return a.turn }

// snapshot returns the attempt's current turn. Locked.
func (a *Attempt) snapshot() Turn {
	t := Turn{Instance: a.on, Queued: a.queued, Starting: a.starting, Found: a.found, Reason: a.reason}
	if a.on != nil {
		t.Record = a.on.record
	}
	return t
}

// refuse ends the attempt and sends the refusal as its turn. Locked.
func (a *Attempt) refuse(e *refusal.Error) {
	a.drop()
	t := a.snapshot()
	t.Refusal = e
	a.turn <- t
}

// sendTurn lets the attempt run on its instance: it sends the turn. Locked.
func (a *Attempt) sendTurn() {
	a.state = attemptRuns
	a.startExecuting()
	a.turn <- a.snapshot()
}

// Submit puts an attempt of f into the queue, or refuses it. Attempt.Turn delivers the
// result.
func (d *Dispatcher) Submit(a *Attempt, f *Function, owner Owner) {
	d.submit(a, f, owner, func(now time.Duration) *refusal.Error {
		if f.gathered > 0 && f.queueFull() {
			return f.refusal(queue.QueueFull)
		}
		a.deadline = now + d.cfg.QueueTimeout
		if f.scaling != nil {
			f.scaling.calls++
		}
		return nil
	})
}

// submit puts an attempt into the queue after prepare, which sets its deadline or refuses it. The lock is held during
// prepare.
func (d *Dispatcher) submit(a *Attempt, f *Function, owner Owner, prepare func(now time.Duration) *refusal.Error) {
	a.d, a.function, a.owner, a.turn = d, f, owner, make(chan Turn, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.policy.closed || d.Draining.IsSet() && !a.accepted {
		a.refuse(refusal.Ending())
		return
	}
	if d.functions[f.number] != f || f.removed { // the number may have been reused for another function
		a.refuse(refusal.UnknownFunction(f.name))
		return
	}
	if e := f.unserved(); e != nil {
		a.refuse(e)
		return
	}
	now := d.policy.now()
	if e := prepare(now); e != nil {
		a.refuse(e)
		return
	}
	a.id = d.lastAttempt
	d.lastAttempt++
	a.wait(now)
	d.attempts[a.id] = a
	switch bound, hold := a.selectInstance(); {
	case !hold:
		d.policy.step(a.arrival(bound))
	case f.alone+f.gathered > f.queue: // the policy does not count held attempts
		a.refuse(f.refusal(queue.QueueFull))
	}
	if a.state == attemptWaits && f.placing.byPlacer() && f.instances.countAlive() == 0 {
		f.placing.fill(true)
	}
}

// wait puts the attempt into the queue. Locked.
func (a *Attempt) wait(now time.Duration) {
	a.arrived, a.state = now, attemptWaits
	a.countWaiting(1)
}

// waited records the end of the attempt's wait in the queue. Locked.
func (a *Attempt) waited() {
	if a.state == attemptWaits {
		a.countWaiting(-1)
	}
}

// countWaiting adds the attempt to its function's waiting calls (1) or removes it (-1). The calls of a batch that was
// not sent yet are counted by Admit and Dismiss. Locked.
func (a *Attempt) countWaiting(sign int) {
	switch {
	case a.batch == 0:
		a.function.alone += sign
	case a.sentBefore:
		a.function.gathered += sign * a.batch
	}
}

// Probe assigns an attempt to a warm instance without telling the policy, or refuses it.
// The turn is available at once. It is meant for requests that need no GPU, such as health
// checks.
func (d *Dispatcher) Probe(a *Attempt, f *Function, owner Owner) {
	a.d, a.function, a.owner, a.turn = d, f, owner, make(chan Turn, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	i := f.instances.warm()
	switch {
	case d.policy.closed || d.Draining.IsSet():
		a.refuse(refusal.Ending())
	case i == nil:
		a.refuse(RefuseProbe(f))
	default:
		a.on, a.found, a.reason = i, residency.GPUWarm, queue.Reason{Code: refusal.Probe}
		i.probes = append(i.probes, a)
		a.turn <- a.snapshot()
		a.state = attemptProbes
	}
}

// run dispatches the attempt to an instance. If the instance is starting or parked, the
// attempt waits there. Locked.
func (a *Attempt) run(now time.Duration, i *Instance, found residency.Start, r queue.Reason) {
	a.waited()
	a.on, a.sent, a.found, a.reason = i, now, found, r
	a.queued += now - a.arrived
	a.starting, a.loading = 0, false
	if len(i.attempts) == 0 {
		i.busySince = now
	}
	i.countCalls()
	i.attempts = append(i.attempts, a)
	a.joinSession(i)
	a.function.found[a.found]++
	switch {
	case a.abandoned && i.state == instanceReady: // its caller left during an earlier start, which was cancelled
		a.leaveInstance()
		a.drop()
		a.d.policy.step(&queue.Completed{Execution: a.execution(0)})
	case i.state == instanceStarts:
		a.state = attemptStarts
	case i.parked:
		a.state = attemptStarts
		i.unpark()
	default:
		i.onHost = false // the preload library moves it for the call
		a.sendTurn()
	}
}

// reject refuses the attempt for the policy's reason. Locked.
func (a *Attempt) reject(now time.Duration, code reason.Code) {
	a.queued += now - a.arrived
	a.refuse(a.function.refusal(code))
}

// drop ends the attempt. Locked.
func (a *Attempt) drop() {
	a.waited()
	if a.state != attemptNew {
		delete(a.d.attempts, a.id)
	}
	a.leaveSession()
	a.state = attemptOver
}

// leaveInstance removes the attempt from its instance and returns its execution time there.
// Locked.
func (a *Attempt) leaveInstance() (executed time.Duration) {
	i, now := a.on, a.d.policy.now()
	executed = now - a.sent
	if !a.loading {
		executed -= a.starting
	}
	i.countCalls()
	i.attempts = slices.DeleteFunc(i.attempts, func(other *Attempt) bool { return other == a })
	if len(i.attempts) == 0 {
		a.function.served += now - i.busySince
		i.idleSince = now
	}
	return max(executed, 0)
}

// Abandon ends an attempt whose turn the caller will not receive. It returns the current
// turn.
func (a *Attempt) Abandon() Turn {
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	t := a.snapshot()
	switch {
	case a.state == attemptWaits:
		a.drop()
		a.d.policy.step(&queue.Cancelled{ID: a.id, Function: a.function.number})
	case a.state == attemptStarts && a.on.state == instanceStarts:
		a.abandoned = true // the start continues, for the next call
	case a.state == attemptStarts, a.state == attemptRuns:
		a.fail()
	}
	return t
}

// fail ends a dispatched attempt that got no answer. Locked.
func (a *Attempt) fail() {
	executed := a.leaveInstance()
	a.drop()
	a.d.policy.step(&queue.Failed{Execution: a.execution(executed)})
}

// Retry puts an attempt that got no answer back into the queue. Attempt.Turn delivers its
// next turn. Retry returns false if the attempt does not run or is a probe.
func (a *Attempt) Retry() bool {
	d := a.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.state != attemptRuns {
		return false
	}
	now := d.policy.now()
	executed := a.leaveInstance()
	a.wait(now)
	a.deadline = now + d.cfg.QueueTimeout
	d.policy.step(&queue.Failed{Execution: a.execution(executed), Requeue: true, Deadline: a.deadline})
	return true
}

// Finish ends an attempt that received a turn. answered reports whether the call was
// answered completely.
func (a *Attempt) Finish(answered bool) {
	if a.d == nil { // it was not submitted
		return
	}
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	switch {
	case a.state == attemptProbes:
		a.on.probes = slices.DeleteFunc(a.on.probes, func(other *Attempt) bool { return other == a })
		a.state = attemptOver
	case a.state != attemptRuns:
	case !answered:
		a.fail()
	default:
		others := a.others()
		executed := a.leaveInstance()
		a.drop()
		a.on.worked = true
		a.learn(executed, others)
		a.d.policy.step(&queue.Completed{Execution: a.execution(executed)})
	}
}

// Release ends an attempt that received a turn and runs nothing. Nothing is learned from it.
func (a *Attempt) Release() {
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	if a.state == attemptRuns {
		a.leaveInstance()
		a.drop()
		a.d.policy.step(&queue.Completed{Execution: a.execution(0)})
	}
}

// cutIfOn cuts the call if it still runs on i, an instance that has ended.
func (a *Attempt) cutIfOn(i *Instance) {
	a.d.mu.Lock()
	runs, owner := a.state == attemptRuns && a.on == i, a.owner
	a.d.mu.Unlock()
	if runs {
		owner.Cut(ErrDied)
	}
}

// cut cuts the call. The lock must not be held.
func (a *Attempt) cut(cause error) {
	a.d.mu.Lock()
	owner := a.owner // Transfer may replace it
	a.d.mu.Unlock()
	owner.Cut(cause)
}

// cutLater cuts, after lastWords, the calls that still run on an instance that has ended.
// Output that the instance sent before its end can arrive until then.
func cutLater(attempts []*Attempt, i *Instance) {
	if len(attempts) > 0 {
		time.AfterFunc(lastWords, func() {
			for _, a := range attempts {
				a.cutIfOn(i)
			}
		})
	}
}

// lastWords is how long output of an ended instance may still arrive.
const lastWords = 2 * time.Second

// learn adds the call's execution time, with the number of inferences that executed with it on average, to its
// function's costs. It ignores a call that ends while others run on the instance, unless the server batches
// concurrent calls. Locked.
func (a *Attempt) learn(executed time.Duration, others float64) {
	f := a.d.functions[a.function.number]
	if f == nil || a.on.outdated() || a.on.state != instanceReady ||
		len(a.on.attempts) > 0 && (!f.forecast().shares || a.found == residency.HostWarm) {
		return
	}
	if a.found == residency.HostWarm {
		f.measured(a.d.GPUs.classOf(a.on.gpu), loadDuration, max(executed-f.warmOn(a.on.gpu), 0))
	} else {
		f.measuredCall(a.d.GPUs.classOf(a.on.gpu), executed, others)
	}
	f.relearn()
}

// YieldAfter is how long an upgraded connection must be idle before Yield may close it.
const YieldAfter = 10 * time.Second

// Yield closes idle upgraded connections to make room for queued calls. It considers
// instances of a function with queued calls, and, if any call is queued, the gateway's own
// instances on which nothing else runs. Among these, it closes the connections of the
// instance with the longest idle connection.
func (d *Dispatcher) Yield() {
	d.mu.Lock()
	waited := map[*Function]bool{}
	for _, a := range d.attempts {
		if a.state == attemptWaits {
			waited[a.function] = true
		}
	}
	var cut []*Attempt
	longest := time.Duration(0)
	for _, i := range d.Instances.byID {
		idle, since := i.idleConnections()
		helps := waited[i.function] || i.own && len(waited) > 0 && len(idle) == len(i.attempts) // stopping a plan's instance is not possible, so it makes no room for other functions
		if len(idle) > 0 && helps && since > longest {
			cut, longest = idle, since
		}
	}
	d.mu.Unlock()
	for _, a := range cut {
		a.cut(ErrIdle)
	}
}
