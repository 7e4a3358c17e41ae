package async

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/async/journal"
)

// run runs a call that has a place, and keeps what became of it.
func (q *Queue) run(id string) {
	call, body, size, err := q.journal.Read(id)
	if err != nil {
		known, _ := q.journal.Get(id)
		q.unreadable(known, err, func() { q.leave(id, func() { q.again(known.Function, id, firstPause) }) })
		return
	}
	began := time.Now()
	answer := q.answerTo(call, body, size)
	call.Seconds = time.Since(began).Seconds()
	_ = body.Close()
	defer answer.body.Discard()
	if !answer.instances() && (q.ctx.Err() != nil || answer.header.Get("Gfaas-Reason") == "draining") {
		q.leave(id, func() {}) // it does not count, and is run at the next start
		return
	}
	call.Attempts++
	call.Status = answer.status
	retry := answer.final == "" && (answer.status == http.StatusTooManyRequests || answer.status >= 502 && answer.status <= 504)
	if retry && call.Attempts <= q.cfg.Retries {
		if err := q.journal.Note(id, call.Attempts, 0); err != nil {
			q.log.Warn("that a call was run is not kept: a kill would not remember it", "call", journal.NameOf(id), "err", err)
		}
		q.leave(id, func() { q.again(call.Function, id, pause(call.Attempts)) })
		return
	}
	call.Path, call.Query, call.Header, call.Host, call.Remote = "", nil, nil, "", ""
	call.GaveUp = retry || !answer.instances()
	if call.CallbackURL == "" {
		q.end(call)
		q.leave(id, func() {})
		return
	}
	call.State, call.ContentType = journal.Callback, answer.header.Get("Content-Type")
	if !q.insist(id, func() error { return q.journal.Put(call, answer.body) }) {
		q.leave(id, func() {})
		return
	}
	q.leave(id, func() { q.out.add(receiverOf(call.CallbackURL), id) })
}

// unreadable ends a call whose record is damaged. Anything else that keeps it from
// being read may pass: then later has it read again.
func (q *Queue) unreadable(call journal.Call, err error, later func()) {
	var damaged *journal.DamagedError
	if !errors.As(err, &damaged) {
		q.log.Error("a call cannot be read", "call", journal.NameOf(call.ID), "err", err)
		later()
		return
	}
	q.log.Error("a call is lost: what was kept of it is damaged", "call", journal.NameOf(call.ID), "err", err)
	sent := call.State == journal.Callback
	call.GaveUp = true
	q.end(call)
	if sent {
		q.leavePost(call.ID, nil, func() {})
	} else {
		q.leave(call.ID, func() {})
	}
}

// leave gives back the place of a call that ran, and does what else is to be done
// under the lock.
func (q *Queue) leave(id string, and func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.runs--
	delete(q.running, id)
	and()
	q.next()
}

// again has a call run later.
func (q *Queue) again(function, id string, after time.Duration) {
	q.later(after, func() { q.enqueue(function, id) })
}

// end keeps that a call has ended, as well as it did.
func (q *Queue) end(call journal.Call) {
	result := "done"
	if call.State = journal.Done; call.GaveUp {
		call.State, result = journal.Failed, "failed"
	}
	call.Ended = time.Now().Round(0)
	call.CallbackURL, call.ContentType, call.Seconds = "", "", 0
	if !q.insist(call.ID, func() error { return q.journal.Put(call, nil) }) {
		return
	}
	if q.cfg.Known == nil || q.cfg.Known(call.Function) {
		q.metrics.ended.WithLabelValues(call.Function, result).Inc()
	}
	q.journal.Expire(time.Now())
	q.mu.Lock()
	q.pending--
	q.mu.Unlock()
}

// answerTo runs a call and returns what was answered.
func (q *Queue) answerTo(call journal.Call, body io.ReadCloser, size int64) *answer {
	a := &answer{header: http.Header{}, max: q.cfg.MaxAnswer}
	if call.CallbackURL != "" {
		a.body = q.journal.NewBody()
	}
	address, err := url.ParseRequestURI("/function/" + call.Function + call.Path)
	if err != nil {
		a.refuse(http.StatusBadRequest, "bad-request", err.Error(), q)
		return a
	}
	address.RawQuery = string(call.Query)
	// A server's requests know it. A proxy that finds none does not say that an
	// answer was cut.
	ctx, cancel := context.WithCancel(context.WithValue(q.ctx, http.ServerContextKey, &http.Server{}))
	defer cancel()
	header := parseHeader(call.Header)
	header.Set("X-Call-Id", journal.NameOf(call.ID))
	request := &http.Request{
		Method: http.MethodPost, URL: address, RequestURI: address.RequestURI(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: body, ContentLength: size, Host: call.Host, RemoteAddr: call.Remote,
	}
	if size == 0 {
		request.Body = http.NoBody
	}
	whole := q.serve(a, request.WithContext(ctx))
	switch {
	case a.full != nil:
		a.refuse(http.StatusServiceUnavailable, "journal", "the answer cannot be kept: "+a.full.Error(), q)
	case a.large:
		a.refuse(http.StatusBadGateway, "bad-answer", fmt.Sprintf("the answer has more than %d bytes", a.max), q)
	case !whole:
		a.cut(q)
	case a.status == 0:
		a.status = http.StatusOK
	}
	return a
}

// serve has the handler answer, and says whether it did so to the end. One that panics
// ends its call alone, as in a server: the call is on disk, and at each start it would
// end the daemon again.
func (q *Queue) serve(w http.ResponseWriter, r *http.Request) (whole bool) {
	defer func() {
		if what := recover(); what != nil && what != http.ErrAbortHandler {
			q.log.Error("panic while a call ran", "call", r.Header.Get("X-Call-Id"), "panic", what, "stack", string(debug.Stack()))
		}
	}()
	q.cfg.Handler.ServeHTTP(w, r)
	return true
}

// answer takes what a handler answers.
type answer struct {
	header http.Header
	status int
	body   *journal.Body // nil where nobody wants it
	size   int64
	max    int64
	full   error  // the body could not be kept
	large  bool   // it had more than max
	final  string // code of an error that running again would not help against
}

var errLarge = errors.New("the answer is too large")

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
		a.header = a.header.Clone() // what is set from here on would be trailers
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.size += int64(len(p)); a.size > a.max {
		a.large = true
		return 0, errLarge
	}
	if a.body == nil {
		return len(p), nil
	}
	n, err := a.body.Write(p)
	if err != nil {
		a.full = err
	}
	return n, err
}

// Flush implements http.Flusher.
func (a *answer) Flush() {}

// instances says whether an instance answered.
func (a *answer) instances() bool { return a.header.Get("Gfaas-Instance") != "" }

// refuse makes the answer an error that is final.
func (a *answer) refuse(status int, code, message string, q *Queue) {
	a.final = code
	a.replace(status, code, message, q)
}

// cut makes the answer the error of one that ended before its end.
func (a *answer) cut(q *Queue) {
	a.replace(http.StatusBadGateway, "instance-died", "the answer was cut off", q)
}

func (a *answer) replace(status int, code, message string, q *Queue) {
	a.status, a.header = status, http.Header{"Content-Type": {"application/json"}, "Gfaas-Reason": {code}}
	if a.body == nil {
		return
	}
	a.body.Discard()
	a.body = q.journal.NewBody()
	text, _ := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": message, "hint": ""}})
	_, _ = a.body.Write(append(text, '\n')) // short: it is in memory
}

// send sends an answer that has a place, and keeps what became of that.
func (q *Queue) send(ctx context.Context, id string) {
	call, body, size, err := q.journal.Read(id)
	if err != nil {
		known, _ := q.journal.Get(id)
		q.unreadable(known, err, func() { q.leavePost(id, nil, func() { q.sendAgain("", id, firstPause) }) })
		return
	}
	err = q.post(ctx, call, body, size)
	_ = body.Close()
	if err != nil && q.ctx.Err() != nil {
		q.leavePost(id, nil, func() {})
		return
	}
	call.Posts++
	took := new(err == nil)
	switch {
	case err == nil:
		q.metrics.callbacks.WithLabelValues("ok").Inc()
	case call.Posts > q.cfg.CallbackRetries, errors.As(err, new(*receiverError)): // the rule is the same at the next try
		q.metrics.callbacks.WithLabelValues("failed").Inc()
		q.log.Warn("the answer to a call was not taken", "call", journal.NameOf(id), "function", call.Function, "callback", redacted(call.CallbackURL), "err", err)
		call.GaveUp = true
	default:
		q.metrics.callbacks.WithLabelValues("retried").Inc()
		if err := q.journal.Note(id, call.Attempts, call.Posts); err != nil {
			q.log.Warn("that an answer was sent is not kept: a kill would not remember it", "call", journal.NameOf(id), "err", err)
		}
		q.leavePost(id, took, func() { q.sendAgain(receiverOf(call.CallbackURL), id, pause(call.Posts)) })
		return
	}
	q.end(call)
	q.leavePost(id, took, func() {})
}

// leavePost gives back the place of an answer that was sent, and does what else is to be
// done under the lock. Took is as for outbox.end.
func (q *Queue) leavePost(id string, took *bool, and func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.posts--
	q.out.end(id, took)
	and()
	q.next()
}

func (q *Queue) sendAgain(receiver, id string, after time.Duration) {
	q.later(after, func() { q.out.add(receiver, id) })
}

// maxReply is how much is read of what a receiver says, for its connection to be
// used again.
const maxReply = 64 << 10

// post sends an answer, once. It follows no redirect.
func (q *Queue) post(ctx context.Context, call journal.Call, body io.Reader, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, callbackTime)
	defer cancel()
	if size == 0 {
		body = http.NoBody
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, call.CallbackURL, body)
	if err != nil {
		return err
	}
	r.ContentLength = size
	for name, value := range map[string]string{
		"Content-Type": call.ContentType, "X-Call-Id": journal.NameOf(call.ID), "X-Function-Name": call.Function, "X-Function-Status": strconv.Itoa(call.Status),
		"X-Duration-Seconds": strconv.FormatFloat(call.Seconds, 'f', 6, 64), "User-Agent": "gfaas",
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	reply, err := q.client.Do(r)
	if err != nil {
		var at *url.Error
		if errors.As(err, &at) {
			err = at.Err // it names the address, password and all
		}
		return gaveWay(ctx, err)
	}
	_, _ = io.CopyN(io.Discard, reply.Body, maxReply)
	_ = reply.Body.Close()
	if reply.StatusCode/100 != 2 {
		return fmt.Errorf("status %s", reply.Status)
	}
	return nil
}

// redacted is an address without its password and query.
func redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "?"
	}
	u.RawQuery = ""
	return u.Redacted()
}
