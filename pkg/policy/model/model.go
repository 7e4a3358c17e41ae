// Package model is the policy of a GPU's models (FaST-GShare, section 3.5): which
// weights are on it, for whom a copy is loaded, what goes to make room, and who has
// to wait. The model daemon does what it says: it reads files, takes memory and
// answers.
//
// A copy is one allocation with a model's weights. Whoever asks for a model that
// is not there has a copy loaded, and all who ask meanwhile get that one, or the
// same error. No copy is loaded that would have all together take more than the
// capacity; to make room the least recently used copies go that nobody holds,
// never one that somebody holds. Copies wait for room in the order they came in,
// and one that does not fit does not keep the next from going in. What is kept of
// them in host memory, which a header of many tensors makes large, has a bound of its
// own, with which it is the same. A tenant may have a bound too, on its own copies: what
// it holds can then not keep others from the rest.
package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy"
)

// MaxHost is how much host memory all copies together may have, for their headers and
// manifests.
const MaxHost = 1 * gpu.GiB

// StorePause is the default of Policy.StorePause.
const StorePause = 60 * time.Second

// Key names a model: tenants have names of their own.
type Key struct{ Tenant, Name string }

// RequestID and CopyID are numbers that are used once: the first are the caller's,
// the second the policy's.
type (
	RequestID uint64
	CopyID    uint64
)

// Event is something that happened.
type Event interface {
	apply(p *Policy, now time.Duration)
}

// What may happen. Requests are Get, Put and Store; each is answered by one Grant
// or one Refuse, unless it leaves before.
type (
	// Known tells of a model that there was before: its newest generation.
	Known struct {
		Key        Key
		Generation int64
		Content    string
	}
	// Get asks for a model. Source says that there is something to load it from:
	// then a put that is under way, whose file may be bad, is not waited for while
	// there is room beside it. Until is when to wait no longer for room, or for
	// another's store.
	Get struct {
		Request RequestID
		Key     Key
		Source  bool
		Until   time.Duration
	}
	// Put asks for a model to be loaded anew, from a source of its own.
	Put struct {
		Request RequestID
		Key     Key
		Until   time.Duration
	}
	// Store asks for memory to write a model into; Loaded then publishes it.
	Store struct {
		Request RequestID
		Key     Key
		Bytes   gpu.Bytes
		Host    gpu.Bytes
		Until   time.Duration
	}
	// Sized says how much memory a copy that was begun needs, on the GPU and off it.
	Sized struct {
		Copy  CopyID
		Bytes gpu.Bytes
		Host  gpu.Bytes
	}
	// Same says that a copy that was begun would have the content of the newest
	// generation, as it was told to be.
	Same struct {
		Copy    CopyID
		Content string
	}
	// Full says that the GPU has no memory for a copy that was to be filled.
	Full struct{ Copy CopyID }
	// Writable says that a store's memory is there.
	Writable struct{ Copy CopyID }
	// Heard says that the client of a request has given a sign of life.
	Heard struct{ Request RequestID }
	// Loaded says that a copy is whole. Content tells it from others.
	Loaded struct {
		Copy    CopyID
		Content string
	}
	// Failed says that a copy will not be, and that nothing of it is left. It
	// answers Cancel, too.
	Failed struct {
		Copy CopyID
		Err  error
	}
	// Leave says that a request is over: what it was granted is no longer held by
	// it, or it does not wait any more.
	Leave struct{ Request RequestID }
	// Remove forgets a model. Who holds it keeps it.
	Remove struct{ Key Key }
	// Resize gives all copies together another capacity. What is held, or is being
	// loaded, stays: they may have more than a smaller one until it has gone.
	Resize struct{ Capacity gpu.Bytes }
	// Bound bounds the copies of each tenant that is named, and of no other. As with
	// Resize what is held, or is being loaded, stays.
	Bound struct{ Tenants map[string]gpu.Bytes }
)

// Action is what to do.
type Action interface{ action() }

// What is to be done, in order.
type (
	// Begin finds out how large a copy is, by the request's source. Sized, Same or
	// Failed follows. How large a store's is was said; Fill or Free follows.
	Begin struct {
		Copy    CopyID
		Key     Key
		Request RequestID
	}
	// Fill takes memory for a copy and loads it. Loaded, Full or Failed follows;
	// for a store first Writable.
	Fill struct{ Copy CopyID }
	// Cancel stops what Begin or Fill began. Failed follows, or what would have
	// without it.
	Cancel struct{ Copy CopyID }
	// Free gives up a copy with all that belongs to it.
	Free struct {
		Copy    CopyID
		Evicted bool // to make room: the model can be loaded again
		Reason  string
	}
	// Publish says that a copy is the model's newest from now on.
	Publish struct {
		Copy       CopyID
		Generation int64
	}
	// Grant answers a request with a copy, which it then holds.
	Grant struct {
		Request    RequestID
		Copy       CopyID
		Generation int64
		Hit        bool // it was there
	}
	// Refuse answers a request with an error, which is a *Refusal if it is the
	// policy's own.
	Refuse struct {
		Request RequestID
		Err     error
	}
	// WakeAt asks for a Step at a time, in place of what was asked before; 0 for
	// none.
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

// Why the policy itself refuses.
const (
	Absent    = "absent"
	Capacity  = "capacity"   // larger than the capacity
	Busy      = "busy"       // no room, because of copies that are held
	GPUMemory = "gpu-memory" // no memory, because of others on the GPU
)

// Refusal is the policy's own error.
type Refusal struct{ Code, Reason string }

func (e *Refusal) Error() string { return e.Reason }

// state is how far a copy is.
type state int

const (
	beginning state = iota // how large it is is not known
	waiting                // for room
	filling                // takes memory
	ready
	doomed // was cancelled, and has not ended
)

var stateNames = [...]string{"beginning", "waiting", "filling", "ready", "cancelled"}

// held is a copy of a model.
type held struct {
	id         CopyID
	key        Key
	state      state
	bytes      gpu.Bytes
	host       gpu.Bytes
	store      RequestID // whose weights it is to have; 0: a file's
	generation int64
	retired    bool // it is not the model's newest any more
	refs       int
	used       time.Duration // when it was last granted or given back
	waiters    []RequestID   // in order
	put        bool          // the first of them has a source of its own
	seen       *held         // the model's newest when its size was last asked for
}

// takesRoom says whether it counts against the capacity.
func (c *held) takesRoom() bool {
	return c.bytes > 0 && (c.state == filling || c.state == ready || c.state == doomed)
}

// known is a model.
type known struct {
	generation int64
	content    string
	current    *held // on the GPU; nil: not there
}

// request is one that waits, or holds a copy.
type request struct {
	copy    *held
	until   time.Duration
	granted bool
}

// Policy is the policy of one GPU.
type Policy struct {
	// StorePause is how long a store that is not committed may go without a sign of life
	// (Heard). Then it ends. New sets it; a change counts before the first Step.
	StorePause time.Duration

	capacity gpu.Bytes
	bounds   map[string]gpu.Bytes // of tenants
	used     gpu.Bytes            // by copies that take room
	host     gpu.Bytes            // by the same
	models   map[Key]*known
	requests map[RequestID]*request
	copies   []*held // that there are, in the order they came
	last     CopyID
	wake     time.Duration
	actions  []Action
}

var _ policy.Stepper[Event, Action, Snapshot] = (*Policy)(nil)

// New is the policy of a GPU on which models may have so much memory.
func New(capacity gpu.Bytes) *Policy {
	return &Policy{StorePause: StorePause, capacity: capacity, models: map[Key]*known{}, requests: map[RequestID]*request{}}
}

// Step applies what happened and says what to do. Several at an instant count as
// one after the other.
func (p *Policy) Step(now time.Duration, events []Event, actions []Action) []Action {
	p.actions = actions
	for _, e := range events {
		e.apply(p, now)
		p.makeRoom()
	}
	p.expire(now)
	p.makeRoom() // what was given up may have stood before others
	p.wakeAtNext()
	return p.actions
}

func (p *Policy) act(a Action) { p.actions = append(p.actions, a) }

// find is a copy that there is, or nil.
func (p *Policy) find(id CopyID) *held {
	at := slices.IndexFunc(p.copies, func(c *held) bool { return c.id == id })
	if at < 0 {
		return nil
	}
	return p.copies[at]
}

// begin makes a copy for a request.
func (p *Policy) begin(key Key, first RequestID, until time.Duration) *held {
	p.last++
	c := &held{id: p.last, key: key, waiters: []RequestID{first}}
	p.copies = append(p.copies, c)
	p.requests[first] = &request{copy: c, until: until}
	return c
}

// look has it found out how large a copy is, and whether it would be the same as the
// model's newest.
func (p *Policy) look(c *held) {
	if m := p.models[c.key]; m != nil {
		c.seen = m.current
	}
	p.act(Begin{c.id, c.key, c.waiters[0]})
}

// overtaken says that another copy of the model was there before this one went in, and
// deals with it: who asked for the model gets that one, and what was put is compared
// with it.
func (p *Policy) overtaken(c *held, now time.Duration) bool {
	m := p.models[c.key]
	switch {
	case m == nil || m.current == nil || m.current == c.seen || c.store != 0:
		return false
	case c.put:
		p.settle(c, beginning)
		c.bytes, c.host = 0, 0
		p.look(c)
	default:
		p.hand(c, m.current, now)
	}
	return true
}

// count adds what a copy takes, or takes it away.
func (p *Policy) count(c *held, sign gpu.Bytes) {
	if c.takesRoom() {
		p.used += sign * c.bytes
		p.host += sign * c.host
	}
}

// settle gives a copy another state.
func (p *Policy) settle(c *held, to state) {
	p.count(c, -1)
	c.state = to
	p.count(c, 1)
}

// drop forgets a copy.
func (p *Policy) drop(c *held) {
	p.count(c, -1)
	p.copies = slices.DeleteFunc(p.copies, func(other *held) bool { return other == c })
	if m := p.models[c.key]; m != nil && m.current == c {
		m.current = nil
		if c.store != 0 {
			delete(p.models, c.key) // nothing to load it from
		}
	}
}

func (p *Policy) free(c *held, evicted bool, format string, args ...any) {
	p.drop(c)
	p.act(Free{c.id, evicted, fmt.Sprintf(format, args...)})
}

// refuseAll answers all who wait for a copy.
func (p *Policy) refuseAll(c *held, err error) {
	for _, r := range c.waiters {
		delete(p.requests, r)
		p.act(Refuse{r, err})
	}
	c.waiters = nil
}

func (p *Policy) grant(id RequestID, c *held, hit bool, now time.Duration) {
	r := p.requests[id]
	if r == nil {
		r = &request{}
		p.requests[id] = r
	}
	r.copy, r.granted = c, true
	c.refs++
	c.used = now
	p.act(Grant{id, c.id, c.generation, hit})
}

// end stops a copy that nobody waits for any more.
func (p *Policy) end(c *held, reason string) {
	switch {
	case c.state == beginning, c.state == filling && c.store == 0:
		p.settle(c, doomed)
		p.act(Cancel{c.id})
	case c.state == waiting, c.state == filling:
		p.free(c, false, "%s", reason)
	}
}

func (e Known) apply(p *Policy, _ time.Duration) {
	p.models[e.Key] = &known{generation: e.Generation, content: e.Content}
}

func (e Get) apply(p *Policy, now time.Duration) {
	if m := p.models[e.Key]; m != nil && m.current != nil {
		p.grant(e.Request, m.current, true, now)
		return
	}
	for _, c := range p.copies {
		if c.key == e.Key && !c.retired && c.state < ready && !(c.put && e.Source) {
			c.waiters = append(c.waiters, e.Request)
			p.requests[e.Request] = &request{copy: c, until: e.Until}
			return
		}
	}
	if !e.Source {
		p.act(Refuse{e.Request, &Refusal{Absent, fmt.Sprintf("there is no model %s", e.Key.Name)}})
		return
	}
	c := p.begin(e.Key, e.Request, e.Until)
	p.look(c)
}

func (e Put) apply(p *Policy, _ time.Duration) {
	c := p.begin(e.Key, e.Request, e.Until)
	c.put = true
	p.look(c)
}

func (e Store) apply(p *Policy, _ time.Duration) {
	c := p.begin(e.Key, e.Request, e.Until)
	c.store = e.Request
	p.act(Begin{c.id, c.key, e.Request})
	p.size(c, e.Bytes, e.Host)
}

func (e Sized) apply(p *Policy, now time.Duration) {
	if c := p.find(e.Copy); c != nil && !p.wasDoomed(c) && c.state == beginning && !p.overtaken(c, now) {
		p.size(c, e.Bytes, e.Host)
	}
}

// wasDoomed frees a copy that was cancelled and got ahead of that.
func (p *Policy) wasDoomed(c *held) bool {
	if c.state != doomed {
		return false
	}
	p.free(c, false, "nobody waits for it any more")
	return true
}

// size has a copy wait for room.
func (p *Policy) size(c *held, bytes, host gpu.Bytes) {
	why := ""
	switch {
	case bytes > p.capacity:
		why = fmt.Sprintf("model %s takes %v, and all models together may have %v", c.key.Name, bytes, p.capacity)
	case bytes > p.boundOf(c).bytes:
		why = fmt.Sprintf("model %s takes %v, and the models of tenant %s may have %v", c.key.Name, bytes, c.key.Tenant, p.boundOf(c).bytes)
	case host > p.boundOf(c).host:
		why = fmt.Sprintf("header and manifest of model %s take %v, and those of tenant %s may have %v", c.key.Name, host, c.key.Tenant, p.boundOf(c).host)
	case host > MaxHost:
		why = fmt.Sprintf("header and manifest of model %s take %v, and those of all models together may have %v", c.key.Name, host, MaxHost)
	}
	if why != "" {
		p.refuseAll(c, &Refusal{Capacity, why})
		p.free(c, false, "larger than the capacity")
		return
	}
	c.bytes, c.host = bytes, host
	p.settle(c, waiting)
}

func (e Same) apply(p *Policy, now time.Duration) {
	c := p.find(e.Copy)
	if c == nil || p.wasDoomed(c) || c.state != beginning {
		return
	}
	if m := p.models[c.key]; m != nil && m.current != nil && m.content == e.Content {
		p.hand(c, m.current, now)
		return
	}
	p.look(c) // it was replaced or evicted meanwhile
}

// hand gives all who wait for a copy another one that is the same.
func (p *Policy) hand(c, same *held, now time.Duration) {
	waiters := c.waiters
	c.waiters = nil
	p.free(c, false, "the content is there already")
	for _, r := range waiters {
		p.grant(r, same, true, now)
	}
}

func (e Full) apply(p *Policy, _ time.Duration) {
	c := p.find(e.Copy)
	switch {
	case c == nil || p.wasDoomed(c):
	case c.state == filling:
		if victim := p.oldest(""); victim != nil {
			p.free(victim, true, "the GPU is full, and model %s is to be loaded", c.key.Name)
			p.act(Fill{c.id})
			return
		}
		p.refuseAll(c, &Refusal{GPUMemory, fmt.Sprintf("the GPU has no %v left for model %s: others have it", c.bytes, c.key.Name)})
		p.free(c, false, "the GPU is full")
	}
}

func (e Writable) apply(p *Policy, now time.Duration) {
	if c := p.find(e.Copy); c != nil && c.state == filling && c.store != 0 && c.refs == 0 {
		c.waiters = slices.DeleteFunc(c.waiters, func(r RequestID) bool { return r == c.store })
		p.grant(c.store, c, false, now)
	}
}

func (e Loaded) apply(p *Policy, now time.Duration) {
	c := p.find(e.Copy)
	if c == nil || p.wasDoomed(c) {
		return
	}
	m := p.models[c.key]
	if m == nil {
		m = &known{}
		p.models[c.key] = m
	}
	if m.current != nil && m.content == e.Content && c.store == 0 {
		p.hand(c, m.current, now)
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
	c.used = now
	p.settle(c, ready)
	p.act(Publish{c.id, c.generation})
	waiters := c.waiters
	c.waiters = nil
	for _, r := range waiters {
		p.grant(r, c, false, now)
	}
	for _, other := range slices.Clone(p.copies) {
		if other.key == c.key && other.state == waiting {
			p.overtaken(other, now)
		}
	}
}

// retire takes a copy away from those who ask from now on.
func (p *Policy) retire(c *held) {
	if c.retired = true; c.refs == 0 {
		p.free(c, false, "its model has another generation, or is no more")
	}
}

func (e Failed) apply(p *Policy, _ time.Duration) {
	if c := p.find(e.Copy); c != nil && c.state != ready {
		p.refuseAll(c, e.Err)
		p.drop(c)
	}
}

func (e Leave) apply(p *Policy, now time.Duration) {
	r := p.requests[e.Request]
	if r == nil {
		return
	}
	delete(p.requests, e.Request)
	c := r.copy
	if !r.granted {
		c.waiters = slices.DeleteFunc(c.waiters, func(id RequestID) bool { return id == e.Request })
		if len(c.waiters) == 0 || c.store == e.Request {
			p.undo(c, e.Request)
		}
		return
	}
	c.refs--
	c.used = now
	switch {
	case c.state == filling: // a store that is not published
		p.undo(c, e.Request)
	case c.retired && c.refs == 0:
		p.free(c, false, "its last holder is gone")
	}
}

// undo gives up a copy whose last waiter, or whose storer, is gone.
func (p *Policy) undo(c *held, by RequestID) {
	if c.store == by {
		p.refuseAll(c, &Refusal{Absent, fmt.Sprintf("model %s was not stored: who stored it is gone", c.key.Name)})
	}
	if c.store == 0 || c.store == by {
		p.end(c, "nobody waits for it any more")
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
			p.end(c, "its model was removed")
		}
	}
}

func (e Heard) apply(p *Policy, now time.Duration) {
	if r := p.requests[e.Request]; r != nil && r.granted {
		r.copy.used = now
	}
}

func (e Resize) apply(p *Policy, _ time.Duration) {
	p.capacity = e.Capacity
	p.sizeAgain()
}

func (e Bound) apply(p *Policy, _ time.Duration) {
	p.bounds = maps.Clone(e.Tenants)
	p.sizeAgain()
}

// sizeAgain refuses copies that wait for room and are larger than may be now.
func (p *Policy) sizeAgain() {
	for _, c := range slices.Clone(p.copies) {
		if c.state == waiting {
			p.size(c, c.bytes, c.host)
		}
	}
}

// makeRoom lets copies in that wait for room, as far as there is some or can be
// made. Of a capacity or a bound that was made smaller what was held goes when it is free.
func (p *Policy) makeRoom() {
	for p.used > p.capacity {
		victim := p.oldest("")
		if victim == nil {
			break
		}
		p.free(victim, true, "all models together may have %v", p.capacity)
	}
	for _, tenant := range slices.Sorted(maps.Keys(p.bounds)) {
		for p.usedBy(tenant).bytes > p.bounds[tenant] {
			victim := p.oldest(tenant)
			if victim == nil {
				break
			}
			p.free(victim, true, "the models of tenant %s may have %v", tenant, p.bounds[tenant])
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
			p.free(p.oldest(among), true, "the least recently used, to make room for model %s", c.key.Name)
		}
		p.settle(c, filling)
		p.act(Fill{c.id})
	}
}

// room is memory on the GPU and off it.
type room struct{ bytes, host gpu.Bytes }

// sum is the room of the copies that are counted.
func (p *Policy) sum(counts func(c *held) bool) (sum room) {
	for _, c := range p.copies {
		if counts(c) {
			sum.bytes += c.bytes
			sum.host += c.host
		}
	}
	return sum
}

// evictable reports whether a copy can go to make room.
func (c *held) evictable() bool { return c.state == ready && c.refs == 0 }

// evictable is how much of the memory can be had for the asking.
func (p *Policy) evictable() room { return p.sum((*held).evictable) }

// usedBy is what the copies of a tenant take.
func (p *Policy) usedBy(tenant string) room {
	return p.sum(func(c *held) bool { return c.takesRoom() && c.key.Tenant == tenant })
}

// heldBy is usedBy less what can be had for the asking.
func (p *Policy) heldBy(tenant string) room {
	return p.sum(func(c *held) bool { return c.takesRoom() && !c.evictable() && c.key.Tenant == tenant })
}

// boundOf is what the copies of a copy's tenant may take together: of host memory the same
// part as of the GPU's.
func (p *Policy) boundOf(c *held) room {
	bytes, bounded := p.bounds[c.key.Tenant]
	if !bounded || bytes >= p.capacity {
		return room{p.capacity, MaxHost}
	}
	return room{bytes, gpu.Bytes(float64(MaxHost) * (float64(bytes) / float64(p.capacity)))}
}

// fits reports whether there is room for a copy, or would be if all that can go went.
func (p *Policy) fits(c *held, evicting bool) bool {
	var given room
	if evicting {
		given = p.evictable()
	}
	return p.used-given.bytes+c.bytes <= p.capacity && p.host-given.host+c.host <= MaxHost && p.fitsBound(c, evicting)
}

// fitsBound reports the same of the bound of the copy's tenant.
func (p *Policy) fitsBound(c *held, evicting bool) bool {
	if _, bounded := p.bounds[c.key.Tenant]; !bounded {
		return true
	}
	used, may := p.usedBy(c.key.Tenant), p.boundOf(c)
	if evicting {
		used = p.heldBy(c.key.Tenant)
	}
	return used.bytes+c.bytes <= may.bytes && used.host+c.host <= may.host
}

// oldest is the least recently used copy of a tenant that nobody holds, or nil; of all
// tenants for "".
func (p *Policy) oldest(tenant string) (oldest *held) {
	for _, c := range p.copies {
		if c.evictable() && (tenant == "" || c.key.Tenant == tenant) && (oldest == nil || c.used < oldest.used) {
			oldest = c
		}
	}
	return oldest
}

// loading are the models of which a copy is being loaded. Nobody holds it, and it may
// be what others ask for that have no room beside it: they wait until it is there.
func (p *Policy) loading() map[Key]bool {
	keys := map[Key]bool{}
	for _, c := range p.copies {
		if c.takesRoom() && c.state != ready && c.store == 0 {
			keys[c.key] = true
		}
	}
	return keys
}

// deadline says whether a request waits for something that it waits for until a
// time only.
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

// pauseEnds returns when a store that was granted, and is not committed, ends unless there
// is a sign of life before; false for any other copy.
func (p *Policy) pauseEnds(c *held) (at time.Duration, ends bool) {
	return c.used + p.StorePause, c.store != 0 && c.state == filling && c.refs > 0
}

// expire refuses those whose time is up, and ends stores that pause for too long.
func (p *Policy) expire(now time.Duration) {
	loading := p.loading()
	for _, c := range slices.Clone(p.copies) {
		if at, ends := p.pauseEnds(c); ends && now >= at {
			delete(p.requests, c.store)
			p.refuseAll(c, &Refusal{Absent, fmt.Sprintf("model %s was not stored: nothing was heard of its store for %v", c.key.Name, p.StorePause)})
			p.free(c, false, "nothing was heard of its store for %v", p.StorePause)
			continue
		}
		for _, id := range slices.Clone(c.waiters) {
			r := p.requests[id]
			if r == nil || !r.deadline(id, loading) || now < r.until {
				continue
			}
			c.waiters = slices.DeleteFunc(c.waiters, func(other RequestID) bool { return other == id })
			delete(p.requests, id)
			p.act(Refuse{id, &Refusal{Busy, p.why(c)}})
			if c.state == waiting && c.store == id {
				p.refuseAll(c, &Refusal{Absent, fmt.Sprintf("model %s was not stored: there was no room", c.key.Name)})
			}
		}
		if len(c.waiters) == 0 && c.state == waiting {
			p.free(c, false, "nobody waits for it any more")
		}
	}
}

// wakeAtNext asks to be called when the next request's time is up.
func (p *Policy) wakeAtNext() {
	next, loading := time.Duration(0), p.loading()
	for id, r := range p.requests {
		if r.deadline(id, loading) && (next == 0 || r.until < next) {
			next = r.until
		}
	}
	for _, c := range p.copies {
		if at, ends := p.pauseEnds(c); ends && (next == 0 || at < next) {
			next = at
		}
	}
	if next != p.wake {
		p.wake = next
		p.act(WakeAt{next})
	}
}

// why says what a copy waits for.
func (p *Policy) why(c *held) string {
	switch c.state {
	case waiting:
		refs, loading := 0, 0
		for _, other := range p.copies {
			switch {
			case other.state == ready && other.refs > 0:
				refs++
			case other.takesRoom() && other.state != ready:
				loading++
			}
		}
		if !p.fitsBound(c, true) {
			taken := p.heldBy(c.key.Tenant)
			return fmt.Sprintf("no room for model %s: of the %v that the models of tenant %s may have, %v are held or being loaded, it needs %v",
				c.key.Name, p.boundOf(c).bytes, c.key.Tenant, taken.bytes, c.bytes)
		}
		what, may, taken, needs := "models", p.capacity, p.used-p.evictable().bytes, c.bytes
		if taken+needs <= may {
			what, may, taken, needs = "headers and manifests", MaxHost, p.host-p.evictable().host, c.host
		}
		return fmt.Sprintf("no room for model %s: of the %v that %s may have, %v are held or being loaded (%d models held, %d loading), it needs %v",
			c.key.Name, may, what, taken, refs, loading, needs)
	case filling:
		if c.store != 0 {
			return fmt.Sprintf("model %s is being stored by another", c.key.Name)
		}
		return "it is being loaded"
	case beginning:
		return "its file is looked at"
	case doomed:
		return "nobody waits for it any more: its loading ends"
	}
	return ""
}

// Held says whether somebody holds a copy.
func (p *Policy) Held() bool {
	return slices.ContainsFunc(p.copies, func(c *held) bool { return c.refs > 0 })
}

// Snapshot is how everything stands.
type Snapshot struct {
	Capacity, Used gpu.Bytes
	Host           gpu.Bytes // in use, of MaxHost
	Copies         []Copy    // in the order they came
}

// Copy is one in a Snapshot.
type Copy struct {
	ID         CopyID
	Key        Key
	State      string // beginning, waiting, filling, ready or cancelled
	Bytes      gpu.Bytes
	Host       gpu.Bytes
	Generation int64 // 0 until it is ready
	Newest     bool  // those who ask get this one
	Refs       int   // who holds it
	Waiting    int   // who waits for it
	LastUsed   time.Duration
	Why        string // what it waits for
}

// Snapshot says how everything stands, and of what waits why.
func (p *Policy) Snapshot() Snapshot {
	s := Snapshot{Capacity: p.capacity, Used: p.used, Host: p.host}
	for _, c := range p.copies {
		m := p.models[c.key]
		s.Copies = append(s.Copies, Copy{
			ID: c.id, Key: c.key, State: stateNames[c.state], Bytes: c.bytes, Host: c.host, Generation: c.generation,
			Newest: m != nil && m.current == c, Refs: c.refs, Waiting: len(c.waiters), LastUsed: c.used, Why: p.why(c),
		})
	}
	slices.SortFunc(s.Copies, func(a, b Copy) int { return cmp.Compare(a.ID, b.ID) })
	return s
}
