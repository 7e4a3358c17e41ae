package inbound

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// bodyMemory limits the memory that the bodies of all functions use. A body reserves all the
// memory that it may need before the gateway reads it, so that a body that was begun can be
// read to its end. Other bodies wait unread. Memory goes first to the body whose host and
// function hold the least.
type bodyMemory struct {
	limit   int64         // limit in bytes; 0 means no limit
	callers *callers      // hosts whose bodies may be interrupted
	stall   time.Duration // how long a body may pause while others wait

	used    atomic.Int64
	waiting atomic.Int64 // len(queue), readable without mu

	mu    sync.Mutex
	queue []*waiter // in order of arrival
}

// waiter is an upload that waits for memory for its body.
type waiter struct {
	upload  *Upload
	bytes   int64
	granted chan struct{} // closed when the memory is granted
}

const (
	// smallBody is the largest amount for one body that may use the last 1/smallPart of the memory, so
	// that large bodies do not hold up small ones.
	smallBody = 16 << 10
	smallPart = 16 // 1/smallPart of the memory is reserved for small bodies

	stallTime = 2 * time.Second
	stallTick = 250 * time.Millisecond // interval of checks for bodies that pause
)

// reserve reserves bytes. It returns false if they are not available.
func (m *bodyMemory) reserve(bytes int64) bool {
	limit := m.limit
	if bytes > smallBody {
		limit = max(limit-limit/smallPart, bytes)
	}
	for {
		used := m.used.Load()
		if used+bytes > limit {
			return false
		}
		if m.used.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

// release releases bytes and grants them to waiting uploads.
func (m *bodyMemory) release(bytes int64) {
	m.used.Add(-bytes)
	if m.waiting.Load() > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.grant()
	}
}

// grant gives the available memory to waiting uploads. Locked.
func (m *bodyMemory) grant() {
	for len(m.queue) > 0 {
		w := slices.MinFunc(m.queue, func(a, b *waiter) int {
			return cmp.Or(cmp.Compare(a.upload.share(), b.upload.share()), cmp.Compare(a.bytes, b.bytes))
		})
		if !m.reserve(w.bytes) {
			return
		}
		w.upload.addReserved(w.bytes)
		m.remove(w)
		close(w.granted)
	}
}

// remove removes an upload from the queue. Locked.
func (m *bodyMemory) remove(w *waiter) {
	if i := slices.Index(m.queue, w); i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
		m.waiting.Add(-1)
	}
}

// acquire reserves memory for the body of an upload. It waits until the memory is granted,
// for at most patience, and gives up if ctx ends or giveUp is closed.
func (m *bodyMemory) acquire(ctx context.Context, u *Upload, bytes int64, patience time.Duration, giveUp <-chan struct{}) *refusal.Error {
	if m.limit <= 0 {
		return nil
	}
	bytes = min(bytes, m.limit)
	if m.waiting.Load() == 0 && m.reserve(bytes) {
		u.addReserved(bytes)
		return nil
	}
	return m.wait(ctx, u, bytes, patience, giveUp)
}

func (m *bodyMemory) wait(ctx context.Context, u *Upload, bytes int64, patience time.Duration, giveUp <-chan struct{}) *refusal.Error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go WatchCaller(ctx, cancel)
	w := &waiter{u, bytes, make(chan struct{})}
	m.mu.Lock()
	m.queue = append(m.queue, w)
	if m.waiting.Add(1) == 1 {
		time.AfterFunc(stallTick, m.tick)
	}
	m.grant()
	m.mu.Unlock()
	m.callers.interrupt(bytes, u.host)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var fault *refusal.Error
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done(): // or its connection was closed to make room
		fault = &refusal.Error{Code: refusal.Cancelled, Message: "the caller closed its connection"}
	case <-giveUp:
		fault = refusal.Ending()
	case <-timer.C:
		fault = NoMemory()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-w.granted: // granted meanwhile
		return nil
	default:
	}
	m.remove(w)
	return fault
}

// tick interrupts bodies that pause, as long as other bodies wait for memory.
func (m *bodyMemory) tick() {
	m.mu.Lock()
	var wanted int64
	for _, w := range m.queue {
		wanted += w.bytes
	}
	if wanted > 0 {
		time.AfterFunc(stallTick, m.tick)
	}
	m.mu.Unlock()
	if wanted > 0 {
		m.callers.stalled(wanted, m.stall)
	}
}

// NoMemory returns the refusal of a request for whose body there is no memory.
func NoMemory() *refusal.Error {
	return &refusal.Error{Code: refusal.Busy, Message: "other calls use all memory for request bodies", Retry: time.Second,
		Hint: "raise the limit with gfaas serve --buffer-memory"}
}

// interrupt frees memory for a body of the host h, which waits for the given bytes. It ends bodies
// that are being received from hosts that hold more memory than h would hold then, until enough
// bytes are about to be freed.
func (c *callers) interrupt(bytes int64, h *callerHost) {
	held := h.held.Load() + bytes
	c.cut(bytes, func(conn *Conn, _ *Upload) bool { return conn.host != h && conn.host.held.Load() > held })
}

// stalled ends bodies that have received nothing for the given time, until enough bytes are
// about to be freed.
func (c *callers) stalled(bytes int64, pause time.Duration) {
	now := c.now()
	c.cut(bytes, func(_ *Conn, u *Upload) bool {
		began := time.Duration(u.readFrom.Load())
		return began > 0 && now-began >= pause
	})
}

// cut ends bodies being received for which may returns true, until enough bytes are about
// to be freed. It begins with the bodies of the hosts that hold the most memory.
func (c *callers) cut(bytes int64, may func(*Conn, *Upload) bool) {
	type victim struct {
		upload      *Upload
		held, since int64
	}
	var victims []victim
	c.mu.Lock()
	for _, p := range c.hosts {
		for conn := range p.conns {
			if u := conn.incoming.Load(); u != nil && u.reserved.Load() > 0 && may(conn, u) {
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
		bytes -= v.upload.interrupt(NoMemory())
	}
}
