package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/policy/scale"
)

// Instance is an instance that the policy knows: starting, running or stopping.
type Instance struct {
	d          *Dispatcher
	id         residency.ID
	gpu        int32
	further    []int32 // its further GPUs that this gateway serves, if it spans several
	mem        int64   // bytes on each further GPU
	function   *Function
	version    *version          // version of the function when the instance was started or adopted
	definition function.Function // of that version
	config     scale.Instance    // its row of the profile; without rows, zero
	own        bool              // the gateway (or its predecessor) started it, and the gateway stops it
	parks      bool              // its memory can move to the host while it is idle

	// Moving is held by the shell while it parks or unparks the instance. Lock it before
	// Dispatcher.mu.
	Moving sync.Mutex

	// Dispatcher.mu guards the rest.
	record     *instance.Record // replaced as a whole, never modified
	state      instanceState
	cancel     context.CancelFunc // cancels its start; nil if it was adopted
	moves      int                // moves to the host that the policy requested and that have not ended
	parked     bool               // its memory may be on the host, so Shell.Unpark precedes a call
	onHost     bool               // its memory is on the host
	unparking  bool
	parksNext  bool // the shell parks it at the end of the unparking
	prefetched bool // the policy requested the current unparking
	memory     instanceMemory
	attempts   []*Attempt    // attempts dispatched to it
	calls      time.Duration // sum of the times of its attempts until counted
	counted    time.Duration
	probes     []*Attempt
	hadWeights bool          // its GPU had the weights when its start began
	idleSince  time.Duration // when its start or its latest work ended; during its start, when the start began
	busySince  time.Duration // when its current work began
	worked     bool          // it has completed a call
	retired    bool          // the autoscaler or Unload has asked to stop it
}

type instanceState uint8

const (
	instanceStarts instanceState = iota
	instanceReady
	instanceStops
	instanceGone
)

// Record returns a copy of the instance's record.
func (i *Instance) Record() instance.Record {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	return *i.record
}

// outdated reports whether the instance is the gateway's own and belongs to a version of
// its function that has ended. Locked.
func (i *Instance) outdated() bool { return i.own && i.version != i.function.version }

// SetContext records the context length that the instance reports, in tokens.
func (i *Instance) SetContext(tokens int64) {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	i.version.context = tokens
}

// unneeded reports whether the instance is outdated or retired. Locked.
func (i *Instance) unneeded() bool { return i.retired || i.outdated() }

// alive reports whether the instance is starting or ready, and still needed. Locked.
func (i *Instance) alive() bool {
	return (i.state == instanceStarts || i.state == instanceReady) && !i.unneeded()
}

// start starts an instance of a function on a GPU, under the policy's ID. Locked.
func (s *Instances) start(now time.Duration, number, on int32, id residency.ID) *Instance {
	d := s.d
	f := d.functions[number]
	i := &Instance{d: d, id: id, gpu: on, function: f, version: f.version, definition: f.definition, own: true, idleSince: now, memory: newInstanceMemory()}
	var sharing Sharing
	if i.parks = d.cfg.Park != "" && !f.definition.Spans(); i.parks && d.cfg.Park == ParkSwap {
		sharing.Oversubscribe = gpu.SwapOrdered
	}
	p := d.placements.claim(f, on)
	ofPlacer := p != nil
	if !ofPlacer {
		s.lastNumber++
		p = &placedStart{id: instanceID(f.name, s.lastNumber), gpus: []int{int(on)}, config: f.nextConfig(int(on))}
	}
	i.hadWeights = d.weights[weightsKey(&f.definition, on)]
	if i.config = f.unit; p.config != nil {
		i.config = *p.config
	}
	for _, g := range p.gpus[1:] {
		i.further, i.mem = append(i.further, int32(g)), p.mem
	}
	slice := f.chooser().sliceOf(p.config)
	if d.cfg.runsSideBySide() && p.config == nil && !f.chooser().statesSlice() {
		slice.SMPct, slice.QuotaRequest, sharing.AllSMs = equalShare(d.cfg.Concurrency), 1, true
	}
	r := launch.Intended(f.definition, instance.Placement{ID: p.id, GPUs: d.GPUs.names(p.gpus), Slice: slice, Batch: batchOf(p.config)})
	r.Registered, r.Owner = []string{r.ID}, instance.Gateway
	i.record = &r
	var life context.Context
	life, i.cancel = context.WithCancel(d.life)
	if !ofPlacer {
		i.reportPlaced()
	}
	s.put(i)
	i.reportSlice()
	d.shell.Start(life, i, f.definition, sharing)
	return i
}

// runsSideBySide reports whether several instances without a profile run on a GPU at the same time.
func (c *Config) runsSideBySide() bool {
	return c.SideBySide && c.Concurrency > 1 && !queue.OneAtATime(c.Policy.Policy)
}

// equalShare returns the SM share, in percent, of each of n instances that may hold leases at the same
// time. It is rounded down, so that n of them fit.
func equalShare(n int) float64 { return math.Floor(1e5/float64(n)) / 1e3 }

// instanceID returns the ID NAME.N of an instance or job of a function. N counts all instances and jobs of
// the gateway.
func instanceID(function string, n int64) string {
	return fmt.Sprintf("%s.%d", function[:min(len(function), maxName)], n)
}

// maxName is the most bytes of a function's name that an instance's ID contains. IDs have at
// most 63 bytes, and the rest is for the number.
const maxName = 48

// numberIn returns N of an ID of the form NAME.N, or 0.
func numberIn(id string) int64 {
	n, err := strconv.ParseInt(id[strings.LastIndexByte(id, '.')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Started records that the instance is ready and runs the attempts that wait for it. It
// returns false if the start was cancelled.
func (i *Instance) Started(r instance.Record) bool {
	d := i.d
	d.mu.Lock()
	defer d.mu.Unlock()
	i.cancel()
	if i.state != instanceStarts {
		return false
	}
	now := d.policy.now()
	took := now - i.idleSince
	i.state, i.record, i.idleSince = instanceReady, &r, now
	v := i.version
	v.fails, v.failure, v.contract = 0, nil, r.Contract
	kind := startDuration
	if i.hadWeights {
		kind = sharedStart
	}
	v.measured(d.GPUs.classOf(i.gpu), kind, took)
	if len(i.attempts) == 0 {
		d.policy.step(&queue.Ready{Instance: i.id, Function: i.function.number})
		return true
	}
	var abandoned []*Attempt
	for _, a := range i.attempts {
		d.policy.add(&queue.Started{Instance: i.id, ID: a.id, Function: a.function.number})
		if a.abandoned { // no goroutine reads its turn
			abandoned = append(abandoned, a)
			continue
		}
		a.starting = now - a.sent
		a.sendTurn()
	}
	for _, a := range abandoned {
		a.leaveInstance()
		a.drop()
		d.policy.add(&queue.Completed{Execution: a.execution(0)})
	}
	d.policy.step()
	return true
}

// NotStarted records that the instance could not be started. The attempts that wait for it
// return to the queue, unless the policy rejects them. NotStarted returns false if the
// start was cancelled.
func (i *Instance) NotStarted(cause error) bool {
	d := i.d
	d.mu.Lock()
	defer d.mu.Unlock()
	i.cancel()
	if i.state != instanceStarts {
		return false
	}
	now := d.policy.now()
	i.busySince = now // a failed start does not count as use of the GPU
	var starved *shortError
	short := errors.As(cause, &starved)
	if !short && !d.GPUs.closed[i.gpu] {
		i.version.fails++
	}
	i.version.failure = cause
	if len(i.attempts) == 0 {
		d.policy.add(lost(i, short))
	}
	for n, a := range slices.Clone(i.attempts) {
		a.leaveInstance()
		// If several attempts waited, the first event also reports the loss of the instance.
		d.policy.add(&queue.Failed{
			Execution: a.execution(0), Starting: n == 0, OutOfMemory: n == 0 && short, Requeue: !a.abandoned,
		})
		if a.abandoned {
			a.refuse(startFailed(i.function, cause))
		} else {
			a.wait(now)
		}
	}
	i.forget()
	d.policy.step()
	return true
}

// forget removes the instance from the state. The loss must be among the events that the policy gets next (driver.add):
// otherwise, the policy could still dispatch to the instance. Locked.
func (i *Instance) forget() {
	i.state = instanceGone
	i.function.sessions.forget(i)
	i.d.placements.placer.Remove(i.record.ID)
	i.d.Instances.delete(i)
}

// lose forgets the instance and reports the loss to the policy. Locked.
func (i *Instance) lose() {
	i.d.policy.add(lost(i, memorySufficed))
	i.forget()
	i.d.policy.step()
}

// sendFurtherMemory sends the policy the memory that instances occupy on this instance's further
// GPUs. Locked.
func (i *Instance) sendFurtherMemory() {
	for _, gpu := range i.further {
		i.d.memory.setOccupied(gpu, i.d.memory.occupied(gpu))
	}
}

// remove stops an instance, or cancels its start, at the policy's request. An instance of a
// plan is only forgotten. Locked.
func (i *Instance) remove(now time.Duration) {
	if i.own && i.state == instanceStarts { // the policy has put its attempts back into the queue
		for _, a := range i.attempts {
			a.wait(now)
			a.on = nil
		}
		i.state, i.attempts = instanceStops, nil
		i.cancel()
		return
	}
	if i.state != instanceReady && (i.own || i.state != instanceStarts) {
		return // it is stopping: the policy knows or will learn that it is lost
	}
	i.function.Counts.Evicted("stopped")
	if !i.own {
		i.lose()
		return
	}
	i.state = instanceStops
	i.d.shell.Stop(i)
}

// Stopped records that the instance was stopped or that its cancelled start has ended.
func (i *Instance) Stopped() {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	if i.state != instanceGone {
		i.lose()
	}
}

// Died records that the instance exited on its own. It returns false if the instance was
// not ready. The instance's calls are cut a little later (cutLater), so that output already
// sent can arrive.
func (i *Instance) Died() bool {
	d := i.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if i.state != instanceReady {
		return false
	}
	d.memory.dying(i)
	d.policy.add(lost(i, memorySufficed))
	i.forget()
	cutLater(slices.Clone(i.attempts), i)
	i.function.delayReplacement(i)
	d.policy.step()
	return true
}

// Restartable reports whether the gateway restarts an instance of fn that ended in the
// given state. Docker restarts containers itself.
func Restartable(fn function.Function, runtime string, how instance.State) bool {
	return runtime != instance.Docker && (fn.Restart == "always" || fn.Restart == "on-failure" && how.ExitCode != 0)
}

// Replace starts another instance in place of one of the gateway's own that ended. It waits
// for a backoff first, and starts none if the function has enough instances by then. It
// returns the pause. It returns false if the instance belongs to an earlier version of its
// function, or was to be stopped.
func (i *Instance) Replace() (wait time.Duration, ok bool) {
	d := i.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if i.unneeded() {
		return 0, false
	}
	wanted := i.function.instances.countAlive() + 1
	wait = i.version.restarts.Next(time.Since(i.record.Handle.Started))
	time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !i.unneeded() {
			i.function.replace(wanted)
		}
	})
	return wait, true
}

// RestartsAfter reports whether the gateway replaces this instance, one of its own, if it
// ended in the given state.
func (i *Instance) RestartsAfter(how instance.State) bool {
	return Restartable(i.definition, i.Record().Runtime, how)
}

// offload parks the instance's memory at the policy's request. Locked.
func (i *Instance) offload() {
	if !i.parks {
		i.d.policy.step(moved(i, residency.HostWarm, true))
		return
	}
	i.function.Counts.Evicted("parked")
	i.moves++
	if i.parked = i.d.cfg.Park == ParkCheckpoint; i.parked {
		for _, a := range i.probes { // its processes are about to be paused
			go a.owner.Cut(ErrDied)
		}
	}
	if i.unparking { // for a caller who has left
		i.postponePark()
	} else {
		i.d.shell.Park(i)
	}
}

// postponePark makes Unparked begin the move to the host that the policy has requested. Locked.
func (i *Instance) postponePark() {
	if i.parksNext {
		i.moves-- // both requests become one
	}
	i.parksNext = true
}

// loaded reports whether the instance's memory is on its GPU. Locked.
func (i *Instance) loaded() bool { return i.state == instanceReady && !i.onHost }

// prefetch moves the instance's memory to the GPU at the policy's request. Locked.
func (i *Instance) prefetch() {
	switch {
	case i.parked:
		i.prefetched = true
		i.unpark()
	case i.d.cfg.Park == ParkSwap:
		i.d.shell.Prefetch(i)
	default: // nothing has moved it
		i.d.policy.step(moved(i, residency.GPUWarm, false))
	}
}

// Prefetched records the end of a move of the instance's memory to the GPU by the preload library;
// ok reports success. After a failure, the memory moves with the next call.
func (i *Instance) Prefetched(ok bool) {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	if i.state == instanceReady {
		i.onHost = i.onHost && !ok
		i.d.policy.step(moved(i, residency.GPUWarm, !ok))
	}
}

// unpark starts moving the instance's memory to the GPU, once. It cancels a postponed move to the host. Locked.
func (i *Instance) unpark() {
	if i.parksNext {
		i.parksNext = false
		i.moves--
	}
	if !i.unparking {
		i.unparking = true
		i.d.shell.Unpark(i)
	}
}

// BeginPark reports whether the shell should now park the instance, as the policy requested. If the policy has requested
// the memory on the GPU since, for a call or ahead of one, BeginPark ends the request, or postpones it if the caller has
// left, and returns false.
func (i *Instance) BeginPark() bool {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	switch {
	case i.state == instanceReady && i.parked && !i.unparking:
		return true
	case i.unparking && !i.prefetched && len(i.attempts) == 0:
		i.postponePark()
	default:
		i.endPark(false)
	}
	return false
}

// Parked records the end of an attempt to move the instance's memory to the host; ok
// reports success. If the policy has requested another move since, that one's end counts.
func (i *Instance) Parked(ok bool) {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	i.endPark(ok)
}

// endPark is Parked. Locked.
func (i *Instance) endPark(ok bool) {
	if i.moves--; i.moves == 0 && i.state == instanceReady {
		i.onHost = i.onHost || ok
		i.d.policy.step(moved(i, residency.HostWarm, !ok))
	}
}

// Unparked records that the instance's memory is on the GPU, and runs the attempts that
// wait for it. After an error the instance is unusable: it is stopped, and those attempts
// return to the queue.
func (i *Instance) Unparked(err error) {
	d := i.d
	d.mu.Lock()
	defer d.mu.Unlock()
	i.unparking = false
	waiting := slices.DeleteFunc(slices.Clone(i.attempts), func(a *Attempt) bool { return a.state != attemptStarts })
	now := d.policy.now()
	if err == nil && i.state != instanceGone {
		parks := i.parksNext
		i.parksNext, i.onHost = false, false
		for _, a := range waiting {
			a.starting, a.loading = now-a.sent, true
			a.sendTurn()
		}
		switch i.parked = parks && len(waiting) == 0; {
		case i.parked:
			d.shell.Park(i)
		case parks:
			i.endPark(false)
		}
		if i.prefetched {
			i.prefetched = false
			d.policy.step(moved(i, residency.GPUWarm, false))
		}
		return
	}
	i.busySince = now // a failed move does not count as use of the GPU
	if err == nil {
		err = ErrDied
	}
	for _, a := range waiting {
		a.leaveInstance()
		if now < a.deadline {
			d.policy.add(&queue.Failed{Execution: a.execution(0), Requeue: true, Deadline: a.deadline})
			a.wait(now)
		} else {
			d.policy.add(&queue.Failed{Execution: a.execution(0)})
			a.refuse(startFailed(i.function, err))
		}
	}
	if i.state == instanceReady {
		d.log.Error("instance lost: its GPU memory could not be restored", "instance", i.record.ID, "function", i.record.Function, "err", err)
		d.policy.add(lost(i, memorySufficed))
		i.forget()
		d.shell.Stop(i)
	}
	d.policy.step()
}

// idleConnections returns the attempts on the instance whose upgraded connections have been
// idle for at least YieldAfter, and the longest idle time. Locked.
func (i *Instance) idleConnections() (idle []*Attempt, longest time.Duration) {
	if i.function.definition.KeepUpgraded {
		return nil, 0
	}
	for _, a := range i.attempts {
		if since, upgraded := a.owner.Idle(); upgraded && since >= YieldAfter {
			idle, longest = append(idle, a), max(longest, since)
		}
	}
	return idle, longest
}

func compareByID(a, b instance.Record) int { return cmp.Compare(a.ID, b.ID) }
