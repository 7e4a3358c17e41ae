package gateway

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// bodyMemory bounds the memory of the bodies of all functions. A body claims all that it
// may need before the gateway reads it, so that each one that is read can be read to its
// end; the others wait unread, those first whose caller and function have least.
type bodyMemory struct {
	most    int64         // bytes; 0 is no bound
	callers *callers      // whose bodies give way
	stall   time.Duration // for how long a body may pause while others wait

	used    atomic.Int64
	waiting atomic.Int64 // len(queue), for those that do not hold mu

	mu    sync.Mutex
	queue []*claim // in the order in which they came
}

// claim is a body that waits for memory.
type claim struct {
	upload  *upload
	bytes   int64
	granted chan struct{} // closed then
}

const (
	// smallBody is the size of a claim up to which it may take the last part of the memory,
	// so that large bodies do not hold up small ones.
	smallBody = 16 << 10
	smallPart = 16 // one part in so many is for small bodies alone

	stallTime = 2 * time.Second
	stallTick = 250 * time.Millisecond // interval between looks for bodies that pause
)

// take counts bytes as used if there are so many.
func (m *bodyMemory) take(bytes int64) bool {
	most := m.most
	if bytes > smallBody {
		most = max(most-most/smallPart, bytes)
	}
	for {
		used := m.used.Load()
		if used+bytes > most {
			return false
		}
		if m.used.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

// give counts bytes as free.
func (m *bodyMemory) give(bytes int64) {
	m.used.Add(-bytes)
	if m.waiting.Load() > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.grant()
	}
}

// grant gives memory to the claims that wait, as far as there is any. Locked.
func (m *bodyMemory) grant() {
	for len(m.queue) > 0 {
		c := slices.MinFunc(m.queue, func(a, b *claim) int {
			return cmp.Or(cmp.Compare(a.upload.share(), b.upload.share()), cmp.Compare(a.bytes, b.bytes))
		})
		if !m.take(c.bytes) {
			return
		}
		c.upload.holds(c.bytes)
		m.remove(c)
		close(c.granted)
	}
}

// remove takes a claim out of the queue. Locked.
func (m *bodyMemory) remove(c *claim) {
	if i := slices.Index(m.queue, c); i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
		m.waiting.Add(-1)
	}
}

// claim gives an upload memory for its body. It waits for as long as a call may wait for
// its place, until the context ends, or until giveUp is closed.
func (m *bodyMemory) claim(ctx context.Context, u *upload, bytes int64, patience time.Duration, giveUp <-chan struct{}) *Error {
	if m.most <= 0 {
		return nil
	}
	bytes = min(bytes, m.most)
	if m.waiting.Load() == 0 && m.take(bytes) {
		u.holds(bytes)
		return nil
	}
	return m.wait(ctx, u, bytes, patience, giveUp)
}

func (m *bodyMemory) wait(ctx context.Context, u *upload, bytes int64, patience time.Duration, giveUp <-chan struct{}) *Error {
	ctx, left := context.WithCancel(ctx)
	defer left()
	go watchCaller(ctx, left)
	c := &claim{u, bytes, make(chan struct{})}
	m.mu.Lock()
	m.queue = append(m.queue, c)
	if m.waiting.Add(1) == 1 {
		time.AfterFunc(stallTick, m.tick)
	}
	m.grant()
	m.mu.Unlock()
	m.callers.interrupt(bytes, u.host)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var fault *Error
	select {
	case <-c.granted:
		return nil
	case <-ctx.Done(): // or its connection gave way
		fault = &Error{Status: statusCancelled, Code: codeCancelled, Message: "the caller left"}
	case <-giveUp:
		fault = draining()
	case <-timer.C:
		fault = noMemory()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-c.granted: // meanwhile
		return nil
	default:
	}
	m.remove(c)
	return fault
}

// tick ends bodies that pause, for as long as others wait for their memory.
func (m *bodyMemory) tick() {
	m.mu.Lock()
	var wanted int64
	for _, c := range m.queue {
		wanted += c.bytes
	}
	if wanted > 0 {
		time.AfterFunc(stallTick, m.tick)
	}
	m.mu.Unlock()
	if wanted > 0 {
		m.callers.stalled(wanted, m.stall)
	}
}

func noMemory() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Code: codeBusy, Message: "the bodies of other calls take all memory that is for them", Retry: time.Second,
		Hint: "gfaas serve --buffer-memory allows more"}
}

// interrupt ends bodies that are being received, of hosts that hold more memory than this
// one, until so much is about to be free.
func (c *callers) interrupt(bytes int64, p *callerHost) {
	held := p.held.Load() + bytes
	c.cut(bytes, func(conn *callerConn, _ *upload) bool { return conn.host != p && conn.host.held.Load() > held })
}

// stalled ends bodies of which nothing has come for so long, until so much memory is
// about to be free.
func (c *callers) stalled(bytes int64, pause time.Duration) {
	now := c.all.now()
	c.cut(bytes, func(_ *callerConn, u *upload) bool {
		began := time.Duration(u.readFrom.Load())
		return began > 0 && now-began >= pause
	})
}

// cut ends bodies that are being received and may give way, those of the hosts that hold
// most memory first, until so much is about to be free.
func (c *callers) cut(bytes int64, may func(*callerConn, *upload) bool) {
	type victim struct {
		upload      *upload
		held, since int64
	}
	var victims []victim
	c.mu.Lock()
	for _, p := range c.hosts {
		for conn := range p.conns {
			if u := conn.incoming.Load(); u != nil && u.claimed.Load() > 0 && may(conn, u) {
				victims = append(victims, victim{u, p.held.Load(), conn.since.Load()})
			}
		}
	}
	c.mu.Unlock()
	slices.SortFunc(victims, func(a, b victim) int {
		return cmp.Or(cmp.Compare(b.held, a.held), cmp.Compare(a.since, b.since))
	})
	for _, v := range victims {
		if bytes <= 0 {
			return
		}
		bytes -= v.upload.interrupt(noMemory())
	}
}
