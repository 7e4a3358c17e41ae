package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/kserve"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/policy/batch"
)

// group is a batch from its place in the queue to the end of its answer. Its goroutine owns it.
type group struct {
	b      *batcher
	number int64
	since  time.Duration // when its oldest member began to wait, for the limit on the wait
	lead   *Call         // the call to the instance, which no caller made
	ctx    context.Context
	cancel context.CancelCauseFunc
	live   atomic.Int64  // members of the sent batch whose callers still wait
	queued time.Duration // when it was queued
}

// newGroup returns a group for a batch of calls like first.
func newGroup(b *batcher, q batch.Queue, first *Call) *group {
	g := &group{b: b, number: q.Batch, since: q.Since, queued: b.p.cfg.Dispatcher.Now()}
	g.lead = b.p.newCall(first.function, rand.Text(), first.path)
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	g.lead.cancel = g.cancel
	return g
}

// run queues the batch and sends it once it has an instance.
func (g *group) run() {
	defer g.cancel(nil)
	lead := g.lead
	g.b.p.cfg.Dispatcher.SubmitBatch(lead.attempt, lead.function, lead, g.since)
	if err := lead.wait(g.ctx); err != nil {
		g.b.refused(g, err)
		return
	}
	members := g.b.assigned(g)
	if len(members) == 0 {
		lead.end(errAborted)
		return
	}
	size := 0
	for _, m := range members {
		size += m.request.Size()
	}
	lead.attempt.Inferences(size)
	lead.function.Counts.Batched(size, g.dispatched()-members[0].joined)
	hold := g.b.p.cfg.Intake.Hold()
	if len(members) == 1 || hold == nil { // without memory, answers can only be passed on as they arrive
		if hold != nil {
			hold.Release()
		}
		g.giveTo(members[0])
		for _, m := range members[1:] {
			m.done <- outcome{}
		}
		return
	}
	g.send(members, size, hold)
}

// dispatched returns when the batch got its instance.
func (g *group) dispatched() time.Duration { return g.queued + g.lead.turn.Queued }

// giveTo lets a member use the instance of the batch alone.
func (g *group) giveTo(m *member) {
	attempt := g.lead.attempt
	attempt.Transfer(m.call)
	if g.ctx.Err() != nil { // the dispatcher has cut the call before
		m.call.cancel(context.Cause(g.ctx))
	}
	o := g.outcome(m)
	o.attempt = attempt
	m.done <- o
}

// outcome returns the outcome for a member of a batch that had an instance.
func (g *group) outcome(m *member) outcome {
	o := outcome{turn: g.lead.turn, tries: g.lead.tries}
	o.turn.Queued = max(g.dispatched()-m.joined, 0)
	return o
}

// send sends the members as one request and passes the parts of the answer on. It releases hold when all members have
// read theirs.
func (g *group) send(members []*member, size int, hold *inbound.Hold) {
	lead, first := g.lead, members[0]
	lead.attempt.Sent(len(members))
	requests := make([]*kserve.Request, len(members))
	for i, m := range members {
		requests[i] = m.request
	}
	lead.body = inbound.Joined(kserve.Merge(requests))
	header := shared(first.header)
	header["X-Call-Id"] = []string{lead.id}
	header["Content-Length"] = []string{fmt.Sprint(lead.body.Size())}
	r := &http.Request{Method: http.MethodPost, Header: header, URL: &url.URL{RawQuery: first.query}}
	answer, err := lead.run(g.ctx, r, ports.Call{Method: r.Method, Path: lead.path, Query: first.query, Header: header})
	var text []byte
	if err == nil {
		text, err = g.read(answer, hold)
	}
	lead.limit.Stop()
	lead.end(err)
	if err == nil {
		err = g.pass(members, requests, answer, text, size, hold)
	}
	if err != nil {
		hold.Release()
		g.fail(members, lead.cause(err))
	}
}

// read reads the answer completely.
func (g *group) read(answer *http.Response, hold *inbound.Hold) ([]byte, error) {
	lead := g.lead
	lead.tries++
	if answer.StatusCode >= http.StatusInternalServerError {
		g.b.p.cfg.Instances.Failing()
	}
	timeout := lead.function.Calls().Timeout
	lead.limit.Reset(timeout)
	text, err := hold.ReadAll(answer.Body, answer.ContentLength, func() { lead.limit.Reset(timeout) })
	_ = answer.Body.Close()
	switch {
	case err == nil:
		return text, nil
	case g.ctx.Err() != nil:
		return nil, context.Cause(g.ctx)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		g.b.p.cfg.Instances.Suspect(lead.turn.Instance)
		return nil, &refusal.Error{Code: refusal.InstanceDied, Message: "instance " + lead.turn.Record.ID + " did not complete its answer: " + err.Error()}
	}
	return nil, err
}

// pass passes the answer on: its parts to the members or, if the instance refused the batch, the decision to send each
// member alone. It returns an error if the answer has no part for each member.
func (g *group) pass(members []*member, requests []*kserve.Request, answer *http.Response, text []byte, size int, hold *inbound.Hold) error {
	status := answer.StatusCode
	var parts [][][]byte
	switch {
	case status == http.StatusTooManyRequests: // more requests would make it worse
		for range members {
			parts = append(parts, [][]byte{text})
		}
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError: // nothing was executed, perhaps because of one member
		hold.Release()
		for _, m := range members {
			m.done <- g.outcome(m)
		}
		return nil
	case status < http.StatusOK || status >= http.StatusMultipleChoices:
		return &refusal.Error{Code: refusal.BatchFailed, Hint: repeatHint,
			Message: fmt.Sprintf("instance %s answered %d to a batch of %d calls, which included this call", g.lead.turn.Record.ID, status, len(members))}
	case answer.Header.Get("Content-Encoding") != "":
		return g.notSplit(members, fmt.Errorf("it has the Content-Encoding %q", answer.Header.Get("Content-Encoding")))
	default:
		var err error
		if parts, err = kserve.Split(text, requests); err != nil {
			return g.notSplit(members, err)
		}
	}
	var reading atomic.Int64
	reading.Store(int64(len(members)))
	for i, m := range members {
		o := g.outcome(m)
		o.tries-- // answered counts the last one
		o.size = size
		o.answer = partOf(answer, parts[i], func() {
			if reading.Add(-1) == 0 {
				hold.Release()
			}
		})
		m.done <- o
	}
	return nil
}

// repeatHint tells how to have the members of a failed batch sent again.
const repeatHint = "calls with an Idempotency-Key are sent again, each alone; so are all calls with 'repeat: true' in the function's batcher"

// notSplit returns the error for an answer that cannot be split.
func (g *group) notSplit(members []*member, why error) error {
	return &refusal.Error{Code: refusal.BadAnswer, Hint: repeatHint,
		Message: fmt.Sprintf("instance %s: its answer to a batch of %d calls cannot be split: %v", g.lead.turn.Record.ID, len(members), why)}
}

// partOf returns the part of an answer for one member. ended is called once, when its body is closed.
func partOf(answer *http.Response, part [][]byte, ended func()) *http.Response {
	length := 0
	for _, text := range part {
		length += len(text)
	}
	body := &partBody{Reader: inbound.JoinedReader(part), ended: sync.OnceFunc(ended)}
	return &http.Response{StatusCode: answer.StatusCode, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: withoutShared(answer.Header, length), Body: body, ContentLength: int64(length)}
}

// partBody is the body of a part of an answer.
type partBody struct {
	io.Reader
	ended func()
}

// Close implements io.Closer.
func (b *partBody) Close() error {
	b.ended()
	return nil
}

// fail ends a batch without a usable answer: members that may be sent again are sent alone, the others get the error.
func (g *group) fail(members []*member, e *refusal.Error) {
	for _, m := range members {
		o := g.outcome(m)
		switch e.Code {
		case refusal.BatchFailed, refusal.BadAnswer, refusal.InstanceDied:
			if o.repeated = m.repeatedAlone(); !o.repeated {
				o.err = e
			}
		default:
			o.err = e
		}
		m.done <- o
	}
}

// idempotent reports whether a call with these headers may be executed twice.
func idempotent(h http.Header) bool {
	return launch.Repeatable(ports.Sent, http.MethodPost, h, true, 0) == launch.RepeatOnce
}
