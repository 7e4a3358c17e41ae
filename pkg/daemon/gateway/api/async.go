package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/async"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// Async configures asynchronous calls, whose callers do not wait for the answer.
type Async struct {
	Dir             string          // folder of the journal; empty disables asynchronous calls
	Concurrency     int             // limit on calls in progress, delivery of their answers included
	Retries         int             // retries of a failed call
	CallbackRetries int             // retries of a failed delivery of an answer
	Max             int             // limit on unfinished calls
	Allow           []async.Allowed // receivers of answers that may have private addresses
}

// asyncCalls serves asynchronous calls. Its queue is nil if they are disabled.
type asyncCalls struct {
	api   *API
	queue *async.Queue
}

// OpenAsync opens the queue of asynchronous calls if Config.Async has a folder. own returns
// the TCP addresses that the gateway listens on.
func (a *API) OpenAsync(own func() []netip.AddrPort) (err error) {
	cfg := a.cfg.Async
	if cfg.Dir == "" {
		return nil
	}
	a.async.queue, err = async.Open(async.Config{
		Dir: cfg.Dir, Handler: a, Known: func(name string) bool { return a.cfg.Dispatcher.Function(name) != nil }, Concurrency: cfg.Concurrency, Retries: cfg.Retries, CallbackRetries: cfg.CallbackRetries, Max: cfg.Max,
		MaxAnswer: a.cfg.MaxBody, Receivers: async.Receivers{Allow: cfg.Allow, Own: own}, Log: a.cfg.Log,
	})
	if err == nil {
		a.cfg.Metrics.Registry.MustRegister(a.async.queue.Collectors()...)
	}
	return err
}

// StartAsync starts running asynchronous calls.
func (a *API) StartAsync() {
	if a.async.queue != nil {
		a.async.queue.Start()
	}
}

// ForgetAsync deletes the counts of a function's asynchronous calls.
func (a *API) ForgetAsync(function string) {
	if a.async.queue != nil {
		a.async.queue.Forget(function)
	}
}

// StopAsync stops starting asynchronous calls. The returned function waits until the
// running calls have ended, but not longer than drain.
func (a *API) StopAsync(drain time.Duration) (wait func()) {
	if a.async.queue == nil {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), drain)
		defer cancel()
		if err := a.async.queue.Stop(ctx); err != nil {
			a.cfg.Log.Error("asynchronous calls", "err", err)
		}
	}()
	return func() { <-ended }
}

// serve accepts an asynchronous call, and answers once the call is on disk.
func (s *asyncCalls) serve(w http.ResponseWriter, r *http.Request, name, path string) {
	f := s.api.function(r.Context(), name)
	c := s.api.cfg.Proxy.NewCall(r, f, path)
	switch {
	case s.queue == nil:
		c.Refuse(w, noPath(r.URL.EscapedPath()))
	case r.Method != http.MethodPost:
		c.Refuse(w, notAllowed(r.Method, http.MethodPost))
	case f == nil:
		c.Refuse(w, refusal.UnknownFunction(name))
	case f.Uncallable() != nil:
		c.Refuse(w, f.Uncallable())
	case s.api.cfg.Dispatcher.Draining.IsSet():
		c.Refuse(w, refusal.Ending())
	case r.ContentLength > s.api.cfg.MaxBody:
		c.Refuse(w, inbound.TooLarge())
	default:
		if fault := s.accept(w, r, c, f, path); fault != nil {
			c.Refuse(w, fault)
			return
		}
		w.Header()["X-Call-Id"], w.Header()["X-Content-Type-Options"] = []string{c.ID()}, []string{proxy.NoSniff}
		w.WriteHeader(http.StatusAccepted)
	}
}

// asyncBody is the part of a body that the queue holds in memory. The rest goes to a file.
const asyncBody = 64 << 10

// bodySize returns the memory that the body of a request needs, up to limit bytes.
func bodySize(r *http.Request, limit int64) int64 {
	if r.ContentLength < 0 {
		return limit
	}
	return min(r.ContentLength, limit)
}

// accept writes a call to the queue. It returns the reason for a refusal, or nil.
func (s *asyncCalls) accept(w http.ResponseWriter, r *http.Request, c *proxy.Call, f *dispatch.Function, path string) *refusal.Error {
	from := s.api.cfg.Intake.Upload(w, r, s.api.cfg.MaxBody)
	defer from.Finish(0)
	if fault := s.api.cfg.Intake.Open(r.Context(), from, &f.Bodies, bodySize(r, asyncBody)+from.CopySize()); fault != nil {
		return fault
	}
	err := s.queue.Accept(async.Request{
		ID: c.ID(), Function: f.Name(), Path: path, Query: r.URL.RawQuery, Header: r.Header, Host: r.Host, Remote: r.RemoteAddr, Body: from,
	})
	var callback *async.CallbackError
	fault := from.Fault()
	switch {
	case err == nil:
		return nil
	case fault != nil:
		return fault
	case errors.As(err, &callback):
		return refusal.Bad("%v", err)
	case s.api.cfg.Dispatcher.Draining.IsSet():
		return refusal.Ending()
	case errors.Is(err, async.ErrReused):
		return &refusal.Error{Code: refusal.CallID, Message: fmt.Sprintf("there already is a call %s of function %s, with another body, query or receiver", c.ID(), f.Name()),
			Hint: "use a different X-Call-Id for each call, or none"}
	case errors.Is(err, async.ErrFull):
		return &refusal.Error{Code: refusal.AsyncFull, Retry: max(time.Duration(s.queue.Pending()/s.api.cfg.Async.Concurrency)*f.Info().Spec.Warm, time.Second),
			Message: fmt.Sprintf("too many asynchronous calls: %d have not ended", s.api.cfg.Async.Max)}
	}
	s.api.cfg.Log.Error("asynchronous call refused", "err", err)
	return &refusal.Error{Code: refusal.Journal, Message: err.Error(), Retry: journalPause}
}

// journalPause is the Retry-After of a call that a full disk refused.
const journalPause = 10 * time.Second

// serveStatus answers with the status of an asynchronous call.
func (s *asyncCalls) serveStatus(w http.ResponseWriter, r *http.Request) {
	var found []async.Status
	query, id := r.URL.Query(), r.PathValue("id")
	if s.queue != nil {
		var path *string
		if query.Has("path") {
			path = new(query.Get("path"))
		}
		found = s.queue.Statuses(id, query.Get("function"), path)
	}
	switch len(found) {
	case 0:
		s.api.refuse(w, r, &refusal.Error{Code: refusal.NoCall, Message: "no such asynchronous call: " + id,
			Hint: "the gateway forgets a call one hour after its end"})
	case 1:
		writeJSON(w, http.StatusOK, found[0])
	default:
		s.api.refuse(w, r, &refusal.Error{Code: refusal.CallID, Message: fmt.Sprintf("%d asynchronous calls have the id %s", len(found), id),
			Hint: "add ?function=NAME and, if the function has several, &path=PATH"})
	}
}

// writeJSON answers with a value.
func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(value) // the caller may have closed its connection
}
