package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/kserve"
	"github.com/gfaas/gfaas/pkg/policy/batch"
)

// batcher passes the calls that may share a request to the policy pkg/policy/batch, and carries out its actions. The
// calls of a batch are its members.
type batcher struct {
	p *Proxy

	mu      sync.Mutex
	former  *batch.Former
	timer   *time.Timer
	last    int64             // number of the latest member
	members map[int64]*member // those that wait, by number
	groups  map[int64]*group  // queued batches, by number
}

// member is a call that waits for its batch, or whose batch was sent.
type member struct {
	call    *Call
	number  int64
	key     string
	max     int // largest batch
	batcher function.Batcher
	header  http.Header // of its request
	query   string
	request *kserve.Request
	joined  time.Duration // when it began to wait
	since   time.Duration // joined, plus the time that did not count against the limit on the wait
	group   *group        // its batch, once that was sent
	done    chan outcome  // has capacity 1
}

// outcome is the end of a member's wait. Without an answer and an error, the call is sent alone.
type outcome struct {
	answer   *http.Response
	err      error
	attempt  *dispatch.Attempt // if the call got the instance of its batch for itself
	turn     dispatch.Turn     // of the batch
	tries    int               // instances that may have received the batch
	repeated bool              // the call may have been executed
	size     int               // inferences of the batch that was answered
}

func (b *batcher) init(p *Proxy) {
	b.p, b.former, b.members, b.groups = p, batch.New(), map[int64]*member{}, map[int64]*group{}
	b.timer = inbound.StoppedTimer(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.step(batch.Woke{})
	})
}

// tryBatch lets the call share a request with others, if its function and its body allow that, and waits for the
// answer. If it returns neither an answer nor an error, the call must be sent alone; assigned reports whether it has
// its turn already.
func (c *Call) tryBatch(ctx context.Context, r *http.Request) (answer *http.Response, assigned bool, err error) {
	m, err := c.member(r)
	if m == nil || err != nil {
		return nil, false, err
	}
	c.p.batches.join(m)
	c.attempt.Accepted()
	o := m.wait(ctx)
	if o.turn.Record != nil || o.turn.Refusal != nil {
		c.turn = o.turn
	}
	c.tries += o.tries
	c.batch = o.size
	if o.attempt != nil {
		c.attempt = o.attempt
	}
	if o.repeated {
		c.repeats++
	}
	return o.answer, o.attempt != nil, o.err
}

// member returns the call as a member of a batch. It returns nil if the call must be sent alone, and an error if the
// queue is full.
func (c *Call) member(r *http.Request) (*member, error) {
	b := c.function.Calls().Batcher
	body, whole := c.body.Bytes()
	if b == nil || c.probe || !whole || r.Method != http.MethodPost || slices.ContainsFunc(aloneHeaders, func(name string) bool { return r.Header[name] != nil }) {
		return nil, nil
	}
	request := kserve.Parse(body)
	if request == nil {
		return nil, nil
	}
	most, e := c.function.Admit(request.Size())
	if e != nil {
		return nil, e
	}
	if most == 0 {
		return nil, nil
	}
	return &member{call: c, key: keyOf(c, r, request), max: most, batcher: *b, header: r.Header, query: r.URL.RawQuery, request: request, done: make(chan outcome, 1)}, nil
}

// aloneHeaders lists headers of requests that are sent alone: the body is not plain JSON, or the connection is to be
// upgraded.
var aloneHeaders = []string{"Content-Encoding", "Inference-Header-Content-Length", "Upgrade"}

// ownHeaders lists headers in which the requests of a batch may differ. The request of the batch has none of them.
var ownHeaders = []string{
	"Accept-Encoding", "B3", "Content-Length", "Date", "Forwarded", "Idempotency-Key", "Traceparent", "Tracestate", "User-Agent", "X-Call-Id",
	"X-B3-Flags", "X-B3-Parentspanid", "X-B3-Sampled", "X-B3-Spanid", "X-B3-Traceid", "X-Correlation-Id", "X-Forwarded-For", "X-Real-Ip", "X-Request-Id",
}

// shared returns the headers that all requests of a batch have in common.
func shared(h http.Header) http.Header {
	common := h.Clone()
	for _, name := range ownHeaders {
		delete(common, name)
	}
	return common
}

// keyOf joins everything that the calls of a batch must have in common.
func keyOf(c *Call, r *http.Request, request *kserve.Request) string {
	var key strings.Builder
	fmt.Fprintf(&key, "%p\x00%s\x00%s\x00", c.function, c.path, r.URL.RawQuery)
	_ = shared(r.Header).Write(&key) // sorted; a strings.Builder returns no error
	key.WriteString(request.Key())
	return key.String()
}

func (b *batcher) join(m *member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	m.number, m.joined = b.last, b.p.cfg.Dispatcher.Now()
	m.since = m.joined
	b.members[m.number] = m
	b.step(m.arrived())
}

// arrived returns the event of the member's arrival.
func (m *member) arrived() batch.Event {
	return batch.Arrived{Call: m.number, Key: m.key, Size: m.request.Size(), Since: m.since, Max: m.max, Latency: m.batcher.Latency}
}

// wait waits until the member's batch ends, or its caller disconnects.
func (m *member) wait(ctx context.Context) outcome {
	select {
	case o := <-m.done:
		return o
	case <-ctx.Done():
	}
	cancelled := outcome{err: context.Cause(ctx)}
	if m.call.p.batches.cancel(m) {
		return cancelled
	}
	o := <-m.done // until then, the batch uses the call's body, whose memory must remain reserved
	if o.answer != nil {
		_ = o.answer.Body.Close()
	}
	cancelled.turn, cancelled.tries, cancelled.attempt = o.turn, o.tries, o.attempt
	return cancelled
}

// cancel removes a member whose caller has disconnected. It returns false if its batch was already sent, or had ended.
func (b *batcher) cancel(m *member) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.members[m.number] != m {
		if m.group != nil && m.group.live.Add(-1) == 0 {
			m.group.cancel(errAborted) // no caller waits for an answer
		}
		return false
	}
	delete(b.members, m.number)
	m.call.function.Dismiss(1)
	b.step(batch.Cancelled{Call: m.number})
	return true
}

// assigned records that a batch got an instance, and returns the members to send.
func (b *batcher) assigned(g *group) []*member {
	b.mu.Lock()
	defer b.mu.Unlock()
	members := b.step(batch.Assigned{Batch: g.number, Max: g.lead.function.Calls().MaxBatch(g.lead.turn.Record)})
	g.live.Store(int64(len(members)))
	for _, m := range members {
		m.group = g
	}
	return members
}

// refused ends a batch that got no instance. Members that arrived later than the first one may wait on, if the batch
// waited too long for an instance.
func (b *batcher) refused(g *group, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, _ := errors.AsType[*refusal.Error](cause)
	late := e != nil && e.Code == refusal.QueueTimeout
	members := b.step(batch.Refused{Batch: g.number}) // none if all members were cancelled
	var remaining []batch.Event
	for _, m := range members {
		if late && m.since > g.since {
			m.since += b.p.cfg.Dispatcher.Overdue(g.since)
			b.members[m.number] = m
			remaining = append(remaining, m.arrived())
			continue
		}
		m.done <- outcome{err: cause, turn: g.lead.turn}
	}
	g.lead.function.Readmit(len(remaining))
	b.step(remaining...)
}

// step passes events to the policy and carries out its actions. It returns the members that wait no longer, because
// their batch is sent or refused. Locked.
func (b *batcher) step(events ...batch.Event) (ended []*member) {
	now := b.p.cfg.Dispatcher.Now()
	take := func(calls []int64) {
		for _, number := range calls {
			m := b.members[number]
			delete(b.members, number)
			m.call.function.Dismiss(1)
			ended = append(ended, m)
		}
	}
	for _, a := range b.former.Step(now, events, nil) {
		switch a := a.(type) {
		case batch.Queue:
			g := newGroup(b, a, b.members[a.Call].call)
			b.groups[a.Batch] = g
			go g.run()
		case batch.Send:
			delete(b.groups, a.Batch)
			take(a.Calls)
		case batch.Refuse:
			delete(b.groups, a.Batch)
			take(a.Calls)
		case batch.Withdraw:
			b.groups[a.Batch].cancel(errAborted)
			delete(b.groups, a.Batch)
		case batch.Wake:
			b.wake(now, a.At)
		}
	}
	return ended
}

func (b *batcher) wake(now, at time.Duration) {
	if at == batch.Never {
		b.timer.Stop()
		return
	}
	b.timer.Reset(max(at-now, 0))
}

// repeatedAlone reports whether a member of a batch that may have been executed is sent again.
func (m *member) repeatedAlone() bool {
	return m.batcher.Repeat || idempotent(m.header)
}

// withoutShared removes the headers of an answer that are about its body, or that must not be given to several callers.
func withoutShared(h http.Header, length int) http.Header {
	h = h.Clone()
	for _, name := range []string{"Accept-Ranges", "Content-Digest", "Content-Md5", "Content-Range", "Digest", "Etag", "Repr-Digest", "Set-Cookie", "Trailer", "Transfer-Encoding"} {
		delete(h, name)
	}
	h["Content-Length"] = []string{strconv.Itoa(length)}
	return h
}
