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

// run runs a call and stores the result. It occupies one of the Config.Concurrency places, which fill has counted in
// q.runs. It returns what to do with q.mu held after the place is free; nil means nothing.
func (q *Queue) run(id string) (then func()) {
	call, body, size, err := q.journal.Read(id)
	if err != nil {
		// Get may succeed where Read fails: it accepts a damaged record, and opens no body.
		known, _ := q.journal.Get(id)
		if q.endDamaged(known, err) {
			return nil
		}
		return func() { q.schedule(firstPause, func() { q.enqueue(known.Function, id) }) }
	}
	start := time.Now()
	answer := q.answerTo(call, body, size)
	call.Seconds = time.Since(start).Seconds()
	_ = body.Close()
	defer answer.body.Discard()
	if !answer.fromInstance() && (q.ctx.Err() != nil || answer.header.Get("Gfaas-Reason") == "draining") {
		return nil // the interrupted attempt does not count; the call is run after the next Open
	}
	call.Attempts++
	call.Status = answer.status
	retry := answer.final == "" && (answer.status == http.StatusTooManyRequests || answer.status >= 502 && answer.status <= 504)
	if retry && call.Attempts <= q.cfg.Retries {
		if err := q.journal.Note(id, call.Attempts, 0); err != nil { // 0: no attempt to send the answer yet
			q.log.Warn("cannot store an attempt of a call: the number of attempts would be lost in a kill", "call", journal.NameOf(id), "err", err)
		}
		return func() { q.schedule(pause(call.Attempts), func() { q.enqueue(call.Function, id) }) }
	}
	call.Path, call.Query, call.Header, call.Host, call.Remote = "", nil, nil, "", ""
	call.GaveUp = retry || !answer.fromInstance()
	if call.CallbackURL == "" {
		q.end(call)
		return nil
	}
	call.State, call.ContentType = journal.Callback, answer.header.Get("Content-Type")
	if !q.retryWrite(id, func() error { return q.journal.Put(call, answer.body) }) {
		return nil // the queue stops before the result is on disk; the call is run again after the next Open
	}
	return func() { q.outbox.add(receiverOf(call.CallbackURL), id) }
}

// endDamaged ends a call whose record cannot be read as failed, if err reports that the record is damaged. It
// returns false for other errors, which may be temporary.
func (q *Queue) endDamaged(call journal.Call, err error) bool {
	if _, ok := errors.AsType[*journal.DamagedError](err); !ok {
		q.log.Error("cannot read a stored call", "call", journal.NameOf(call.ID), "err", err)
		return false
	}
	q.log.Error("a call is lost: its record or body is damaged", "call", journal.NameOf(call.ID), "err", err)
	call.GaveUp = true
	q.end(call)
	return true
}

// end stores that a call has ended, as done or, if GaveUp is set, as failed.
func (q *Queue) end(call journal.Call) {
	result := "done"
	if call.State = journal.Done; call.GaveUp {
		call.State, result = journal.Failed, "failed"
	}
	call.Ended = time.Now().Round(0)
	call.CallbackURL, call.ContentType, call.Seconds = "", "", 0
	if !q.retryWrite(call.ID, func() error { return q.journal.Put(call, nil) }) {
		return
	}
	// known reports whether the function of the call still exists, so that its name may be a label.
	known := func() bool { return q.cfg.Known == nil || q.cfg.Known(call.Function) }
	if known() {
		q.metrics.endedCalls.WithLabelValues(call.Function, result).Inc()
		// If the function was removed between the check and Inc, Inc may have created the metric's
		// series again after the removal had deleted it.
		if !known() {
			q.Forget(call.Function)
		}
	}
	q.journal.Expire(time.Now())
	q.mu.Lock()
	q.pending--
	q.mu.Unlock()
}

// answerTo runs a call and returns the answer.
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
	// http.Server sets this value for its requests. With it, httputil.ReverseProxy panics with
	// http.ErrAbortHandler when an answer is cut off, and serve reports that the answer is
	// incomplete. Without it, the handler would return as if the answer were complete.
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
	complete := q.serve(a, request.WithContext(ctx))
	switch {
	case a.body.Err() != nil:
		a.refuse(http.StatusServiceUnavailable, "journal", "cannot store the answer: "+a.body.Err().Error(), q)
	case a.tooLarge:
		a.refuse(http.StatusBadGateway, "bad-answer", fmt.Sprintf("the answer is larger than %d bytes", a.max), q)
	case !complete:
		a.replace(http.StatusBadGateway, "instance-died", "the answer was cut off", q)
	case a.status == 0:
		a.status = http.StatusOK
	}
	return a
}

// serve runs the handler and reports whether it returned normally. It recovers from a
// panic, as http.Server does, since the call is on disk and would crash the daemon at each
// start.
func (q *Queue) serve(w http.ResponseWriter, r *http.Request) (complete bool) {
	defer func() {
		if panicked := recover(); panicked != nil && panicked != http.ErrAbortHandler {
			q.log.Error("panic during a call", "call", r.Header.Get("X-Call-Id"), "panic", panicked, "stack", string(debug.Stack()))
		}
	}()
	q.cfg.Handler.ServeHTTP(w, r)
	return true
}

// answer is a http.ResponseWriter that stores an answer.
type answer struct {
	header   http.Header
	status   int
	body     *journal.Body // nil if the caller wants no callback
	size     int64
	max      int64
	tooLarge bool   // the body exceeds max
	final    string // code of an error that a repetition of the call cannot cure
}

var errLarge = errors.New("the answer is too large")

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
		a.header = a.header.Clone() // headers set from here on would be trailers
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.size += int64(len(p)); a.size > a.max {
		a.tooLarge = true
		return 0, errLarge
	}
	if a.body == nil {
		return len(p), nil
	}
	return a.body.Write(p)
}

// Flush implements http.Flusher.
func (a *answer) Flush() {}

// fromInstance reports whether the answer is from an instance.
func (a *answer) fromInstance() bool { return a.header.Get("Gfaas-Instance") != "" }

// refuse replaces the answer by an error that makes the call end without a repetition.
func (a *answer) refuse(status int, code, message string, q *Queue) {
	a.final = code
	a.replace(status, code, message, q)
}

// replace sets the status, the header and a JSON error as the body.
func (a *answer) replace(status int, code, message string, q *Queue) {
	a.status, a.header = status, http.Header{"Content-Type": {"application/json"}, "Gfaas-Reason": {code}}
	if a.body == nil {
		return
	}
	a.body.Discard()
	a.body = q.journal.NewBody()
	text, _ := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": message, "hint": ""}})
	_, _ = a.body.Write(append(text, '\n')) // short enough to stay in memory
}

// send sends the answer to a call and stores the result. It occupies one of the Config.Concurrency places, which fill
// has counted in q.sends. It returns what to do with q.mu held after the place is free; nil means nothing. accepted
// reports whether the receiver took the answer; it is nil if the attempt proves nothing about the receiver (see
// outbox.end).
func (q *Queue) send(ctx context.Context, id string) (accepted *bool, then func()) {
	call, body, size, err := q.journal.Read(id)
	if err != nil {
		known, _ := q.journal.Get(id)
		if q.endDamaged(known, err) {
			return nil, nil
		}
		return nil, func() { q.schedule(firstPause, func() { q.outbox.add("", id) }) }
	}
	err = q.post(ctx, call, body, size)
	_ = body.Close()
	if err != nil && q.ctx.Err() != nil {
		return nil, nil
	}
	call.Posts++
	accepted = new(err == nil)
	switch {
	case err == nil:
		q.metrics.callbacks.WithLabelValues("ok").Inc()
	// After a *receiverError, another attempt would fail as well: q.cfg.Receivers forbids this receiver.
	case call.Posts > q.cfg.CallbackRetries, errors.As(err, new(*receiverError)):
		q.metrics.callbacks.WithLabelValues("failed").Inc()
		q.log.Warn("cannot deliver the answer of a call", "call", journal.NameOf(id), "function", call.Function, "callback", redacted(call.CallbackURL), "err", err)
		call.GaveUp = true
	default:
		q.metrics.callbacks.WithLabelValues("retried").Inc()
		if err := q.journal.Note(id, call.Attempts, call.Posts); err != nil {
			q.log.Warn("cannot store an attempt to deliver an answer: the number of attempts would be lost in a kill", "call", journal.NameOf(id), "err", err)
		}
		return accepted, func() {
			q.schedule(pause(call.Posts), func() { q.outbox.add(receiverOf(call.CallbackURL), id) })
		}
	}
	q.end(call)
	return accepted, nil
}

// maxReply is how much of a receiver's reply is read, so that the connection can be reused.
const maxReply = 64 << 10

// post sends an answer once. It follows no redirects and returns an error unless the status
// is 2xx.
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
		if at, ok := errors.AsType[*url.Error](err); ok {
			err = at.Err // without the URL, which may contain a password
		}
		// errPreempted: the outbox cancelled the attempt because other work waited for the place.
		if preempted, ok := errors.AsType[errPreempted](context.Cause(ctx)); ok {
			return preempted
		}
		return err
	}
	_, _ = io.CopyN(io.Discard, reply.Body, maxReply)
	_ = reply.Body.Close()
	if reply.StatusCode/100 != 2 {
		return fmt.Errorf("status %s", reply.Status)
	}
	return nil
}

// redacted returns a URL without its password and query.
func redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "?"
	}
	u.RawQuery = ""
	return u.Redacted()
}
