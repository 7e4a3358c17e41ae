// Package model is the policy for the model weights on one GPU (FaST-GShare, section 3.5). It decides
// which copies are loaded, which are evicted to make room, and which requests wait. The model daemon
// performs its actions: it reads files, allocates memory and answers clients.
//
// A copy is one allocation with a model's weights. The rules:
//
//  1. The first request for a model that is not loaded starts a copy. Requests that arrive while it is
//     being loaded get the same copy, or the same error.
//  2. A copy is loaded only if all copies together stay within the capacity. To make room, the policy
//     evicts the least recently used copies that no request holds, and never one that is held.
//  3. Copies wait for room in the order of their requests; one that does not fit does not block the next.
//  4. The host memory for headers and manifests, which is large for a file with many tensors, has a bound
//     of its own (MaxHost), with the same rules.
//  5. A tenant may have a bound on its own copies, so that the copies it holds leave room for others.
package model

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/reason"
)

// MaxHost bounds the host memory of all copies' headers and manifests.
const MaxHost = 1 * gpu.GiB

// StorePause is the default of Policy.StorePause.
const StorePause = 60 * time.Second

// Key names a model. Each tenant has its own names.
type Key struct{ Tenant, Name string }

// RequestID and CopyID are never reused. The caller chooses request IDs, the policy copy IDs.
type (
	RequestID uint64
	CopyID    uint64
)

// Event is an input of the policy.
type Event interface {
	apply(p *Policy, now time.Duration)
}

// The events. Get, Put and Store are requests; each is answered by one Grant or one Refuse, unless it
// leaves first.
type (
	// Known reports the newest generation of a model from before the daemon's start.
	Known struct {
		Key        Key
		Generation int64
		Content    string
	}
	// Get requests a model. Source: the caller has a file to load it from. In that case the request does
	// not wait for a Put in progress, whose file may be invalid, while there is room for another copy.
	// Until is the time limit for waits for room and for another request's store.
	Get struct {
		Request RequestID
		Key     Key
		Source  bool
		Until   time.Duration
	}
	// Put requests that a model is loaded again, from the caller's file.
	Put struct {
		Request RequestID
		Key     Key
		Until   time.Duration
	}
	// Store requests memory into which the caller writes a model. Loaded then publishes it.
	Store struct {
		Request RequestID
		Key     Key
		Bytes   gpu.Bytes
		Host    gpu.Bytes
		Until   time.Duration
	}
	// Sized reports how much memory a begun copy needs, on the GPU and on the host.
	Sized struct {
		Copy  CopyID
		Bytes gpu.Bytes
		Host  gpu.Bytes
	}
	// Same reports that a begun copy would have the content of the newest generation.
	Same struct {
		Copy    CopyID
		Content string
	}
	// Full reports that the GPU has no memory for a copy that was to be filled.
	Full struct{ Copy CopyID }
	// Writable reports that a store's memory is allocated.
	Writable struct{ Copy CopyID }
	// Heartbeat reports a sign of life of a request's client.
	Heartbeat struct{ Request RequestID }
	// Loaded reports that a copy is complete. Content identifies its bytes.
	Loaded struct {
		Copy    CopyID
		Content string
	}
	// Failed reports that a copy cannot be completed, and that its resources are freed. It is also the
	// answer to Cancel.
	Failed struct {
		Copy CopyID
		Err  error
	}
	// Release ends a request: it no longer holds what it was granted, or no longer waits.
	Release struct{ Request RequestID }
	// Remove removes a model. Requests that hold it keep their copy.
	Remove struct{ Key Key }
	// Resize changes the capacity. Held and loading copies stay, so the copies may exceed a smaller
	// capacity until they are released.
	Resize struct{ Capacity gpu.Bytes }
	// Bound sets the bounds of tenants; a tenant that is not listed has none. As with Resize, held and
	// loading copies stay.
	Bound struct{ Tenants map[string]gpu.Bytes }
)

// Action is an output of the policy.
type Action interface{ action() }

// The actions, to be performed in order.
type (
	// Begin determines the size of a copy from the request's file. Sized, Same or Failed follows. A store
	// has given its size; for it, Fill or Free follows.
	Begin struct {
		Copy    CopyID
		Key     Key
		Request RequestID
	}
	// Fill allocates memory for a copy and loads it. Loaded, Full or Failed follows; for a store, Writable
	// comes first.
	Fill struct{ Copy CopyID }
	// Cancel stops the work of Begin or Fill. Failed follows, or the event that was about to come.
	Cancel struct{ Copy CopyID }
	// Free frees a copy and all its resources.
	Free struct {
		Copy    CopyID
		Evicted bool // to make room, so the model can be loaded again
		Reason  reason.Reason
	}
	// Publish makes a copy the model's newest one.
	Publish struct {
		Copy       CopyID
		Generation int64
	}
	// Grant answers a request with a copy, which the request then holds.
	Grant struct {
		Request    RequestID
		Copy       CopyID
		Generation int64
		Hit        bool // it was loaded already
	}
	// Refuse answers a request with an error: a *Refusal if the policy refuses it, otherwise the error of
	// Failed.
	Refuse struct {
		Request RequestID
		Err     error
	}
	// WakeAt requests a Step at a time and replaces an earlier WakeAt; 0 cancels it.
	WakeAt struct{ At time.Duration }
)

func (Begin) action()   {}
func (Fill) action()    {}
func (Cancel) action()  {}
func (Free) action()    {}
func (Publish) action() {}
func (Grant) action()   {}
func (Refuse) action()  {}
func (WakeAt) action()  {}

// The codes of a Refusal.
const (
	Absent    = "absent"
	Capacity  = "capacity"   // larger than the capacity
	Busy      = "busy"       // no room, because of copies that are held
	GPUMemory = "gpu-memory" // no memory, because of others on the GPU
)

// Refusal is an error of the policy itself.
type Refusal struct{ Code, Message string }

func (e *Refusal) Error() string { return e.Message }

// state is the state of a copy.
type state int

const (
	beginning state = iota // its size is unknown
	waiting                // for room
	filling                // allocated and being loaded
	ready
	cancelled // the daemon's answer is pending
)

var stateNames = [...]string{"beginning", "waiting", "filling", "ready", "cancelled"}

// modelState is the state of a model.
type modelState struct {
	generation int64
	content    string
	current    *modelCopy // its newest copy; nil: not loaded
}

// request is a request that waits or holds a copy.
type request struct {
	copy    *modelCopy
	until   time.Duration
	granted bool
}

// Policy is the policy of one GPU.
type Policy struct {
	// StorePause is the longest time that an uncommitted store may go without a sign of life (Heartbeat);
	// then the policy ends it. New sets it; set another value before the first Step.
	StorePause time.Duration

	memory
	models   map[Key]*modelState
	requests map[RequestID]*request
	lastCopy CopyID
	wakeAt   time.Duration
	actions  []Action
}

var _ policy.Stepper[Event, Action, Snapshot] = (*Policy)(nil)

// New returns the policy of a GPU with that capacity for models.
func New(capacity gpu.Bytes) *Policy {
	return &Policy{StorePause: StorePause, memory: memory{capacity: capacity}, models: map[Key]*modelState{}, requests: map[RequestID]*request{}}
}

// Step applies the events one after another and returns the actions.
func (p *Policy) Step(now time.Duration, events []Event, actions []Action) []Action {
	p.actions = actions
	for _, e := range events {
		e.apply(p, now)
		p.makeRoom()
	}
	p.expire(now)
	p.makeRoom() // expired copies may have blocked others
	p.wakeAtNext()
	return p.actions
}

func (p *Policy) emit(a Action) { p.actions = append(p.actions, a) }

// newCopy creates a copy for a request.
func (p *Policy) newCopy(key Key, first RequestID, until time.Duration) *modelCopy {
	p.lastCopy++
	c := &modelCopy{id: p.lastCopy, key: key, waiters: []RequestID{first}}
	p.copies = append(p.copies, c)
	p.requests[first] = &request{copy: c, until: until}
	return c
}

// requestSize requests the size of a copy, and whether its content equals the model's newest copy.
func (p *Policy) requestSize(c *modelCopy) {
	if m := p.models[c.key]; m != nil {
		c.comparedWith = m.current
	}
	p.emit(Begin{c.id, c.key, c.waiters[0]})
}

// resolveSuperseded handles the case that another copy of the model became ready before this one was
// filled, and reports whether it did: waiting Gets get that copy, and a Put's file is compared with it.
func (p *Policy) resolveSuperseded(c *modelCopy, now time.Duration) bool {
	m := p.models[c.key]
	switch {
	case m == nil || m.current == nil || m.current == c.comparedWith || c.store != 0:
		return false
	case c.firstIsPut:
		c.state = beginning
		c.bytes, c.host = 0, 0
		p.requestSize(c)
	default:
		p.substitute(c, m.current, now)
	}
	return true
}

// removeCopy removes a copy.
func (p *Policy) removeCopy(c *modelCopy) {
	p.copies = slices.DeleteFunc(p.copies, func(other *modelCopy) bool { return other == c })
	if m := p.models[c.key]; m != nil && m.current == c {
		m.current = nil
		if c.store != 0 {
			delete(p.models, c.key) // there is no file to load it from again
		}
	}
}

// free frees a copy that is no longer needed.
func (p *Policy) free(c *modelCopy, r reason.Reason) {
	p.removeCopy(c)
	p.emit(Free{Copy: c.id, Reason: r})
}

// evict frees a copy to make room.
func (p *Policy) evict(c *modelCopy, r reason.Reason) {
	p.removeCopy(c)
	p.emit(Free{Copy: c.id, Evicted: true, Reason: r})
}

// refuseAll refuses all requests that wait for a copy.
func (p *Policy) refuseAll(c *modelCopy, err error) {
	for _, r := range c.waiters {
		delete(p.requests, r)
		p.emit(Refuse{r, err})
	}
	c.waiters = nil
}

// Values of grant's argument hit.
const (
	hit  = true // the copy was ready before the request
	miss = false
)

// grant grants a request with a copy.
func (p *Policy) grant(id RequestID, c *modelCopy, hit bool, now time.Duration) {
	r := p.requests[id]
	if r == nil {
		r = &request{}
		p.requests[id] = r
	}
	r.copy, r.granted = c, true
	c.refs++
	c.lastUsed = now
	p.emit(Grant{id, c.id, c.generation, hit})
}

// stopCopy stops a copy without waiters.
func (p *Policy) stopCopy(c *modelCopy, code reason.Code) {
	switch {
	case c.state == beginning, c.state == filling && c.store == 0:
		c.state = cancelled
		p.emit(Cancel{c.id})
	case c.state == waiting, c.state == filling:
		p.free(c, reason.New(code))
	}
}

func (e Known) apply(p *Policy, _ time.Duration) {
	p.models[e.Key] = &modelState{generation: e.Generation, content: e.Content}
}

func (e Get) apply(p *Policy, now time.Duration) {
	if m := p.models[e.Key]; m != nil && m.current != nil {
		p.grant(e.Request, m.current, hit, now)
		return
	}
	for _, c := range p.copies {
		if c.key == e.Key && !c.retired && c.state < ready && !(c.firstIsPut && e.Source) {
			c.waiters = append(c.waiters, e.Request)
			p.requests[e.Request] = &request{copy: c, until: e.Until}
			return
		}
	}
	if !e.Source {
		p.emit(Refuse{e.Request, &Refusal{Absent, fmt.Sprintf("there is no model %s", e.Key.Name)}})
		return
	}
	c := p.newCopy(e.Key, e.Request, e.Until)
	p.requestSize(c)
}

func (e Put) apply(p *Policy, _ time.Duration) {
	c := p.newCopy(e.Key, e.Request, e.Until)
	c.firstIsPut = true
	p.requestSize(c)
}

func (e Store) apply(p *Policy, _ time.Duration) {
	c := p.newCopy(e.Key, e.Request, e.Until)
	c.store = e.Request
	p.emit(Begin{c.id, c.key, e.Request})
	p.size(c, e.Bytes, e.Host)
}

func (e Sized) apply(p *Policy, now time.Duration) {
	if c := p.uncancelled(e.Copy); c != nil && c.state == beginning && !p.resolveSuperseded(c, now) {
		p.size(c, e.Bytes, e.Host)
	}
}

// uncancelled returns the copy with that ID, or nil. It frees a copy that was completed after its
// cancellation, and returns nil for it.
func (p *Policy) uncancelled(id CopyID) *modelCopy {
	c := p.find(id)
	if c != nil && c.state == cancelled {
		p.free(c, reason.New(noRequest))
		return nil
	}
	return c
}

// size sets the size of a copy, which then waits for room. It refuses the copy if it exceeds a bound.
func (p *Policy) size(c *modelCopy, bytes, host gpu.Bytes) {
	message, limit := "", p.limit(c.key.Tenant)
	switch {
	case bytes > p.capacity:
		message = fmt.Sprintf("model %s needs %v, more than the limit of %v for all models", c.key.Name, bytes, p.capacity)
	case bytes > limit.bytes:
		message = fmt.Sprintf("model %s takes %v, and the models of tenant %s may have %v", c.key.Name, bytes, c.key.Tenant, limit.bytes)
	case host > limit.host:
		message = fmt.Sprintf("header and manifest of model %s take %v, and those of tenant %s may have %v", c.key.Name, host, c.key.Tenant, limit.host)
	}
	if message != "" {
		p.refuseAll(c, &Refusal{Capacity, message})
		p.free(c, reason.New(tooLarge))
		return
	}
	c.bytes, c.host = bytes, host
	c.state = waiting
}

func (e Same) apply(p *Policy, now time.Duration) {
	c := p.uncancelled(e.Copy)
	if c == nil || c.state != beginning {
		return
	}
	if m := p.models[c.key]; m != nil && m.current != nil && m.content == e.Content {
		p.substitute(c, m.current, now)
		return
	}
	p.requestSize(c) // the newest copy was replaced or evicted meanwhile
}

// substitute frees a copy and grants its waiters another copy with the same content.
func (p *Policy) substitute(c, same *modelCopy, now time.Duration) {
	p.free(c, reason.New(sameContent))
	for _, r := range c.waiters {
		p.grant(r, same, hit, now)
	}
}

func (e Full) apply(p *Policy, _ time.Duration) {
	c := p.uncancelled(e.Copy)
	if c == nil || c.state != filling {
		return
	}
	if victim := p.leastRecentlyUsed(""); victim != nil {
		p.evict(victim, reason.New(gpuFull, reason.Text("for", c.key.Name)))
		p.emit(Fill{c.id})
		return
	}
	p.refuseAll(c, &Refusal{GPUMemory, fmt.Sprintf("the GPU does not have %v free for model %s: other programs use its memory", c.bytes, c.key.Name)})
	p.free(c, reason.New(gpuFull))
}

func (e Writable) apply(p *Policy, now time.Duration) {
	if c := p.find(e.Copy); c != nil && c.state == filling && c.store != 0 && c.refs == 0 {
		c.removeWaiter(c.store)
		p.grant(c.store, c, miss, now)
	}
}

func (e Loaded) apply(p *Policy, now time.Duration) {
	c := p.uncancelled(e.Copy)
	if c == nil {
		return
	}
	m := p.models[c.key]
	if m == nil {
		m = &modelState{}
		p.models[c.key] = m
	}
	if m.current != nil && m.content == e.Content && c.store == 0 {
		p.substitute(c, m.current, now)
		return
	}
	if m.generation == 0 || m.content != e.Content || c.store != 0 {
		m.generation++
		m.content = e.Content
	}
	if old := m.current; old != nil {
		m.current = nil
		p.retire(old)
	}
	c.generation = m.generation
	m.current = c
	c.lastUsed = now
	c.state = ready
	p.emit(Publish{c.id, c.generation})
	for _, r := range c.waiters {
		p.grant(r, c, miss, now)
	}
	c.waiters = nil
	for _, other := range slices.Clone(p.copies) {
		if other.key == c.key && other.state == waiting {
			p.resolveSuperseded(other, now)
		}
	}
}

// retire makes a copy unavailable to later requests.
func (p *Policy) retire(c *modelCopy) {
	if c.retired = true; c.refs == 0 {
		p.free(c, reason.New(replaced))
	}
}

func (e Failed) apply(p *Policy, _ time.Duration) {
	if c := p.find(e.Copy); c != nil && c.state != ready {
		p.refuseAll(c, e.Err)
		p.removeCopy(c)
	}
}

func (e Release) apply(p *Policy, now time.Duration) {
	r := p.requests[e.Request]
	if r == nil {
		return
	}
	delete(p.requests, e.Request)
	c := r.copy
	if !r.granted {
		c.removeWaiter(e.Request)
		if len(c.waiters) == 0 || c.store == e.Request {
			p.abandon(c, e.Request)
		}
		return
	}
	c.refs--
	c.lastUsed = now
	switch {
	case c.state == filling: // an uncommitted store
		p.abandon(c, e.Request)
	case c.retired && c.refs == 0:
		p.free(c, reason.New(notHeld))
	}
}

// abandon ends a copy after its last waiter, or the request that stores it, has left.
func (p *Policy) abandon(c *modelCopy, by RequestID) {
	if c.store == by {
		p.refuseAll(c, &Refusal{Absent, fmt.Sprintf("model %s was not stored: the client that stored it has disconnected", c.key.Name)})
	}
	if c.store == 0 || c.store == by {
		p.stopCopy(c, noRequest)
	}
}

func (e Remove) apply(p *Policy, _ time.Duration) {
	m := p.models[e.Key]
	delete(p.models, e.Key)
	if m != nil && m.current != nil {
		p.retire(m.current)
	}
	for _, c := range slices.Clone(p.copies) {
		if c.key == e.Key && c.state < ready && c.store == 0 {
			p.refuseAll(c, &Refusal{Absent, fmt.Sprintf("model %s was removed", e.Key.Name)})
			p.stopCopy(c, removed)
		}
	}
}

func (e Heartbeat) apply(p *Policy, now time.Duration) {
	if r := p.requests[e.Request]; r != nil && r.granted {
		r.copy.lastUsed = now
	}
}

func (e Resize) apply(p *Policy, _ time.Duration) {
	p.capacity = e.Capacity
	p.recheckSizes()
}

func (e Bound) apply(p *Policy, _ time.Duration) {
	p.bounds = maps.Clone(e.Tenants)
	p.recheckSizes()
}

// recheckSizes refuses waiting copies that exceed a changed bound.
func (p *Policy) recheckSizes() {
	for _, c := range slices.Clone(p.copies) {
		if c.state == waiting {
			p.size(c, c.bytes, c.host)
		}
	}
}

// makeRoom evicts what exceeds a capacity or bound that became smaller, as far as it is not held. It then
// fills waiting copies for which there is room, or for which eviction makes room.
func (p *Policy) makeRoom() {
	for p.used("").bytes > p.capacity {
		victim := p.leastRecentlyUsed("")
		if victim == nil {
			break
		}
		p.evict(victim, reason.New(beyondCapacity, reason.Number("limit_mib", p.capacity.MiB())))
	}
	for _, tenant := range slices.Sorted(maps.Keys(p.bounds)) {
		for p.used(tenant).bytes > p.bounds[tenant] {
			victim := p.leastRecentlyUsed(tenant)
			if victim == nil {
				break
			}
			p.evict(victim, reason.New(beyondTenantBound, reason.Text("tenant", tenant), reason.Number("limit_mib", p.bounds[tenant].MiB())))
		}
	}
	for _, c := range slices.Clone(p.copies) {
		if c.state != waiting || !p.fits(c, true) {
			continue
		}
		for !p.fits(c, false) {
			among := ""
			if !p.fitsBound(c, false) {
				among = c.key.Tenant
			}
			p.evict(p.leastRecentlyUsed(among), reason.New(leastRecentlyUsed, reason.Text("for", c.key.Name)))
		}
		c.state = filling
		p.emit(Fill{c.id})
	}
}

// deadline reports whether the time limit of a request applies to its present wait.
func (r *request) deadline(id RequestID, loading map[Key]bool) bool {
	c := r.copy
	switch {
	case r.granted:
		return false
	case c.store != 0:
		return c.state == waiting || c.state == filling && c.store != id
	}
	return c.state == waiting && !loading[c.key]
}

// storeDeadline returns when a granted, uncommitted store ends unless there is a sign of life; false for
// any other copy.
func (p *Policy) storeDeadline(c *modelCopy) (at time.Duration, ends bool) {
	return c.lastUsed + p.StorePause, c.store != 0 && c.state == filling && c.refs > 0
}

// expire refuses requests whose time limit has passed, and ends stores without a sign of life.
func (p *Policy) expire(now time.Duration) {
	loading := p.loading()
	for _, c := range slices.Clone(p.copies) {
		if at, ends := p.storeDeadline(c); ends && now >= at {
			delete(p.requests, c.store)
			p.refuseAll(c, &Refusal{Absent, fmt.Sprintf("model %s was not stored: its client sent nothing for %v", c.key.Name, p.StorePause)})
			p.free(c, reason.New(storeWithoutAnswer, reason.Millis("pause_ms", p.StorePause)))
			continue
		}
		for _, id := range slices.Clone(c.waiters) {
			r := p.requests[id]
			if r == nil || !r.deadline(id, loading) || now < r.until {
				continue
			}
			c.removeWaiter(id)
			delete(p.requests, id)
			p.emit(Refuse{id, p.busy(c)})
			if c.state == waiting && c.store == id {
				p.refuseAll(c, &Refusal{Absent, fmt.Sprintf("model %s was not stored: there was no room", c.key.Name)})
			}
		}
		if len(c.waiters) == 0 && c.state == waiting {
			p.free(c, reason.New(noRequest))
		}
	}
}

// wakeAtNext requests a Step at the next time limit.
func (p *Policy) wakeAtNext() {
	next, loading := time.Duration(0), p.loading()
	for id, r := range p.requests {
		if r.deadline(id, loading) && (next == 0 || r.until < next) {
			next = r.until
		}
	}
	for _, c := range p.copies {
		if at, ends := p.storeDeadline(c); ends && (next == 0 || at < next) {
			next = at
		}
	}
	if next != p.wakeAt {
		p.wakeAt = next
		p.emit(WakeAt{next})
	}
}

// shortage describes the memory that a waiting copy lacks.
type shortage struct {
	code                reason.Code
	limit, used, needed gpu.Bytes
	held, loading       int // models; 0 for noTenantRoom
}

func (p *Policy) shortage(c *modelCopy) shortage {
	if !p.fitsBound(c, true) {
		return shortage{code: noTenantRoom, limit: p.limit(c.key.Tenant).bytes, used: p.held(c.key.Tenant).bytes, needed: c.bytes}
	}
	held := p.held("")
	s := shortage{code: noRoom, limit: p.capacity, used: held.bytes, needed: c.bytes}
	if s.used+s.needed <= s.limit {
		s = shortage{code: noHostRoom, limit: MaxHost, used: held.host, needed: c.host}
	}
	for _, other := range p.copies {
		switch {
		case other.state == ready && other.refs > 0:
			s.held++
		case other.usesCapacity() && other.state != ready:
			s.loading++
		}
	}
	return s
}

// waitReason returns the reason for a copy's wait.
func (p *Policy) waitReason(c *modelCopy) reason.Reason {
	switch c.state {
	case waiting:
		s := p.shortage(c)
		r := reason.New(s.code, reason.Number("limit_mib", s.limit.MiB()), reason.Number("used_mib", s.used.MiB()), reason.Number("needed_mib", s.needed.MiB()))
		if s.code == noTenantRoom {
			return r
		}
		return r.With(reason.Number("held", s.held), reason.Number("loading", s.loading))
	case filling:
		if c.store != 0 {
			return reason.New(storedByOther)
		}
		return reason.New(loading)
	case beginning:
		return reason.New(openingFile)
	case cancelled:
		return reason.New(ending)
	}
	return reason.Reason{}
}

// busy refuses a request that has waited for as long as it may.
func (p *Policy) busy(c *modelCopy) *Refusal {
	if c.state != waiting {
		return &Refusal{Busy, fmt.Sprintf("model %s is being stored by another", c.key.Name)}
	}
	s := p.shortage(c)
	if s.code == noTenantRoom {
		return &Refusal{Busy, fmt.Sprintf("no room for model %s: of the %v that the models of tenant %s may have, %v are held or being loaded, it needs %v",
			c.key.Name, s.limit, c.key.Tenant, s.used, s.needed)}
	}
	subject := "models"
	if s.code == noHostRoom {
		subject = "headers and manifests"
	}
	return &Refusal{Busy, fmt.Sprintf("no room for model %s: of the %v that %s may have, %v are held or being loaded (%d models held, %d loading), it needs %v",
		c.key.Name, s.limit, subject, s.used, s.held, s.loading, s.needed)}
}

// InUse reports whether a request holds a copy.
func (p *Policy) InUse() bool {
	return slices.ContainsFunc(p.copies, func(c *modelCopy) bool { return c.refs > 0 })
}

// Snapshot describes the state of the policy.
type Snapshot struct {
	Capacity, Used gpu.Bytes
	Host           gpu.Bytes // of MaxHost
	Copies         []Copy    // in the order of creation
}

// Copy describes a copy in a Snapshot.
type Copy struct {
	ID         CopyID
	Key        Key
	State      string // beginning, waiting, filling, ready or cancelled
	Bytes      gpu.Bytes
	Host       gpu.Bytes
	Generation int64 // 0 until it is ready
	Newest     bool  // later requests get this one
	Refs       int   // requests that hold it
	Waiting    int   // requests that wait for it
	LastUsed   time.Duration
	Reason     reason.Reason // the reason for the wait; zero if there is none
}

// Snapshot returns the state of the policy, with the reason for each wait.
func (p *Policy) Snapshot() Snapshot {
	used := p.used("")
	s := Snapshot{Capacity: p.capacity, Used: used.bytes, Host: used.host}
	for _, c := range p.copies {
		m := p.models[c.key]
		s.Copies = append(s.Copies, Copy{
			ID: c.id, Key: c.key, State: stateNames[c.state], Bytes: c.bytes, Host: c.host, Generation: c.generation,
			Newest: m != nil && m.current == c, Refs: c.refs, Waiting: len(c.waiters), LastUsed: c.lastUsed, Reason: p.waitReason(c),
		})
	}
	return s
}
