package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/async"
)

// Async is how calls are run whose callers do not wait.
type Async struct {
	Dir             string          // where they are kept; empty takes none
	Concurrency     int             // that run, or whose answers are being sent, at once
	Retries         int             // after one that failed
	CallbackRetries int             // after an answer that was not taken
	Max             int             // that have not ended
	Allow           []async.Allowed // receivers of answers that need not have public addresses
}

func (g *Gateway) openAsync() (err error) {
	a := g.cfg.Async
	if a.Dir == "" {
		return nil
	}
	g.async, err = async.Open(async.Config{
		Dir: a.Dir, Handler: g, Known: func(name string) bool { return (*g.names.Load())[name] != nil }, Concurrency: a.Concurrency, Retries: a.Retries, CallbackRetries: a.CallbackRetries, Max: a.Max,
		MaxAnswer: g.cfg.MaxBody, Receivers: async.Receivers{Allow: a.Allow, Own: g.listening}, Log: g.log,
	})
	if err == nil {
		g.registry.MustRegister(g.async.Collectors()...)
	}
	return err
}

// listening returns the TCP addresses that the gateway listens on.
func (g *Gateway) listening() []netip.AddrPort {
	var own []netip.AddrPort
	for _, addr := range []net.Addr{g.WebAddr(), g.UIAddr()} {
		if tcp, ok := addr.(*net.TCPAddr); ok {
			own = append(own, tcp.AddrPort())
		}
	}
	return own
}

// stopAsync begins no more asynchronous calls. What it returns returns when those
// that run have ended, or had their time.
func (g *Gateway) stopAsync() (wait func()) {
	if g.async == nil {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), g.cfg.Drain)
		defer cancel()
		if err := g.async.Stop(ctx); err != nil {
			g.log.Error("asynchronous calls", "err", err)
		}
	}()
	return func() { <-ended }
}

// serveAsync takes a call in and answers when it is on disk.
func (g *Gateway) serveAsync(w http.ResponseWriter, r *http.Request, name, path string) {
	target := g.target(r.Context(), name)
	c := g.newCall(r, target, path)
	switch {
	case g.async == nil:
		c.refuse(w, noPath(r.URL.EscapedPath()))
	case r.Method != http.MethodPost:
		c.refuse(w, notAllowed(r.Method, http.MethodPost))
	case target == nil:
		c.refuse(w, noFunction(name))
	case g.draining.Load():
		c.refuse(w, draining())
	case r.ContentLength > g.cfg.MaxBody:
		c.refuse(w, tooLarge())
	default:
		fault := g.accept(w, r, c)
		if fault != nil {
			c.refuse(w, fault)
			return
		}
		w.Header()["X-Call-Id"], w.Header()["X-Content-Type-Options"] = []string{c.key}, []string{noSniff}
		w.WriteHeader(http.StatusAccepted)
	}
}

// asyncBody is as much of a body as its queue has in memory: what is longer is in a file.
const asyncBody = 64 << 10

// accept keeps a call, or says why it is not kept.
func (g *Gateway) accept(w http.ResponseWriter, r *http.Request, c *call) *Error {
	from := g.upload(w, r, g.cfg.MaxBody)
	size := int64(asyncBody)
	if r.ContentLength >= 0 {
		size = min(r.ContentLength, size)
	}
	defer from.keep(0)
	if fault := g.open(r.Context(), from, c.target, size+from.copySize()); fault != nil {
		return fault
	}
	err := g.async.Accept(async.Request{
		ID: c.key, Function: c.target.name, Path: c.path, Query: r.URL.RawQuery, Header: r.Header, Host: r.Host, Remote: r.RemoteAddr, Body: from,
	})
	var callback *async.CallbackError
	fault := from.wrong()
	switch {
	case err == nil:
		return nil
	case fault != nil:
		return fault
	case errors.As(err, &callback):
		return badRequest("%v", err)
	case g.draining.Load():
		return draining()
	case errors.Is(err, async.ErrReused):
		return &Error{Status: http.StatusConflict, Code: codeCallID, Message: fmt.Sprintf("call %s of function %s is known with another body, query or receiver", c.key, c.target.name),
			Hint: "give each call an X-Call-Id of its own, or none"}
	case errors.Is(err, async.ErrFull):
		return &Error{Status: http.StatusTooManyRequests, Code: codeAsyncFull, Retry: g.asyncBacklog(c.target),
			Message: fmt.Sprintf("%d asynchronous calls have not ended", g.cfg.Async.Max)}
	}
	g.log.Error("an asynchronous call is refused", "err", err)
	return &Error{Status: http.StatusServiceUnavailable, Code: codeJournal, Message: err.Error(), Retry: journalPause}
}

// journalPause is after what a caller may try again where the disk was full.
const journalPause = 10 * time.Second

// asyncBacklog is how long what waits will take, about.
func (g *Gateway) asyncBacklog(t *target) time.Duration {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	return max(time.Duration(g.async.Pending()/g.cfg.Async.Concurrency)*t.spec.Warm, time.Second)
}

func (g *Gateway) serveAsyncStatus(w http.ResponseWriter, r *http.Request) {
	var found []async.Status
	query, id := r.URL.Query(), r.PathValue("id")
	if g.async != nil {
		var path *string
		if query.Has("path") {
			path = new(query.Get("path"))
		}
		found = g.async.Statuses(id, query.Get("function"), path)
	}
	if len(found) > 1 {
		e := &Error{Status: http.StatusConflict, Code: codeCallID, Message: fmt.Sprintf("%d asynchronous calls have the id %s", len(found), id),
			Hint: "add ?function=NAME, and &path=PATH if they are of one function"}
		g.refuse(w, r, e)
		return
	}
	if len(found) == 0 {
		e := &Error{Status: http.StatusNotFound, Code: codeNoCall, Message: "no asynchronous call has the id " + id,
			Hint: "what ended is known for an hour"}
		g.refuse(w, r, e)
		return
	}
	writeJSON(w, http.StatusOK, found[0])
}

// writeJSON answers with a value.
func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(value) // nobody is there to be told
}
