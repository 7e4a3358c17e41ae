package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/ui"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// ServeHTTP routes all requests except those for health and metrics.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	if path == "/health" {
		a.serveHealth(w, r)
		return
	}
	if !a.cfg.Dispatcher.Known.IsSet() && !looking(path) && !a.knows(r.Context()) {
		a.refuse(w, r, unread())
		return
	}
	switch {
	case r.Method == http.MethodConnect: // the client would treat a 2xx answer as an open tunnel
		a.refuse(w, r, notAllowed(r.Method, "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))
	case strings.HasPrefix(path, "/function/"):
		name, rest := splitName(path[len("/function/"):])
		a.serveFunction(w, r, name, rest)
	case strings.HasPrefix(path, "/v2/models/"):
		name, _ := splitName(path[len("/v2/models/"):])
		a.serveFunction(w, r, name, path)
	case strings.HasPrefix(path, "/api/"):
		ollamaAPI{a}.serve(w, r, path)
	case heartbeat(r):
		w.WriteHeader(http.StatusOK)
	case strings.HasPrefix(path, "/async-function/"):
		name, rest := splitName(path[len("/async-function/"):])
		a.async.serve(w, r, name, rest)
	case callsModel(r, path):
		a.serveOpenAI(w, r, path)
	case managed(r.URL.Path):
		w.Header()["X-Content-Type-Options"] = []string{proxy.NoSniff}
		a.serveSystem(w, r)
	default:
		a.refuse(w, r, noPath(path))
	}
}

// ServeUI answers management requests at Config.UIListen. It serves no calls, because a
// page that a function returned there would share the origin of the operator's page.
func (a *API) ServeUI(w http.ResponseWriter, r *http.Request) {
	if !managed(r.URL.Path) && r.Method != http.MethodConnect {
		e := noPath(r.URL.EscapedPath())
		e.Hint = "functions are served at the address of --listen, not of --ui-listen"
		a.refuse(w, r, e)
		return
	}
	a.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), uiKey{}, true)))
}

// uiKey marks the context of a request that arrived at Config.UIListen.
type uiKey struct{}

// servePage answers with the page of /ui/.
func (a *API) servePage(w http.ResponseWriter, r *http.Request) {
	ui.Page{Token: a.guard.token, Calls: r.Context().Value(uiKey{}) == nil}.Serve(w)
}

func (a *API) serveStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a.cfg.Dispatcher.Status()) // the caller may have closed its connection
}

// serveHealth reports whether the gateway accepts calls, with the path and the answer that
// clients of model servers expect.
func (a *API) serveHealth(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		a.refuse(w, r, notAllowed(r.Method, "GET, HEAD"))
	case a.cfg.Dispatcher.Draining.IsSet():
		a.refuse(w, r, refusal.Ending())
	case !a.cfg.Dispatcher.Known.IsSet():
		a.refuse(w, r, unread())
	default:
		w.Header()["X-Content-Type-Options"] = []string{proxy.NoSniff}
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	}
}

// unread returns the refusal of a request while the gateway does not know the functions.
func unread() *refusal.Error {
	return &refusal.Error{Code: refusal.State, Message: "the gateway has not yet read the state file", Retry: time.Second}
}

// looking reports whether a path shows the gateway itself, which works before the state is
// read.
func looking(path string) bool {
	return path == "/" || path == "/system/status" || path == "/system/events" || path == "/system/info" || strings.HasPrefix(path, "/ui")
}

// knows waits until the gateway knows the applied functions and the running instances.
// Before, no function would be found, and each call would start an instance. It returns
// false after stateTime, or if the gateway drains.
func (a *API) knows(ctx context.Context) bool {
	timer := time.NewTimer(stateTime)
	defer timer.Stop()
	select {
	case <-a.cfg.Dispatcher.Known:
		return true
	case <-a.cfg.Dispatcher.Draining:
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

// refuse answers a request that is not a call of a function with an error.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, e *refusal.Error) {
	a.cfg.Proxy.NewCall(r, nil, "").Refuse(w, e)
}

// serveSystem routes a request by the mux. Its errors have the gateway's JSON format.
func (a *API) serveSystem(w http.ResponseWriter, r *http.Request) {
	handler, pattern := a.system.Handler(r)
	if pattern != "" {
		a.system.ServeHTTP(w, r)
		return
	}
	probe := &statusOnly{header: http.Header{}}
	handler.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		a.refuse(w, r, notAllowed(r.Method, probe.header.Get("Allow")))
		return
	}
	a.refuse(w, r, noPath(r.URL.EscapedPath()))
}

func notAllowed(method, allow string) *refusal.Error {
	return &refusal.Error{Code: refusal.Method, Message: "method " + method + " is not allowed for this path", Allow: allow}
}

// statusOnly records the status with which a mux answers an unknown path.
type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) WriteHeader(status int)      { s.status = status }
func (s *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

// namespace is the OpenFaaS namespace of all functions.
const namespace = metrics.Namespace

// noPath returns the refusal of a request for an unknown path.
func noPath(path string) *refusal.Error {
	return &refusal.Error{Code: refusal.NoPath, Message: "no such path: " + path, Hint: "functions are at /function/NAME"}
}

// splitName splits the part of a path after /function/ into a function's name, without its
// namespace, and the remaining escaped path, which is empty or begins with a slash. A name
// in another namespace keeps its suffix, so that it matches no function.
func splitName(path string) (name, rest string) {
	name = path
	if at := strings.IndexByte(path, '/'); at >= 0 {
		name, rest = path[:at], path[at:]
	}
	return strings.TrimSuffix(name, "."+namespace), rest
}

// serveFunction serves a call of a function. An empty path means, for a POST, the path that
// the function's contract invokes, and otherwise the root. A browser that requests a page
// with an empty path is redirected to the root, because the page's relative links would
// otherwise lead out of the function.
func (a *API) serveFunction(w http.ResponseWriter, r *http.Request, name, path string) {
	f := a.function(r.Context(), name)
	if path == "" && r.Method != http.MethodPost {
		if path = "/"; f != nil && wantsPage(r) {
			a.cfg.Proxy.NewCall(r, nil, path).Label(w.Header(), queue.Reason{Code: refusal.Redirect})
			redirect(w, r)
			return
		}
	}
	c := a.cfg.Proxy.NewCall(r, f, path)
	if f == nil {
		c.Refuse(w, refusal.UnknownFunction(name))
		return
	}
	c.Serve(w, r)
}

// wantsPage reports whether a browser requests a page. Browsers name the type of pages in such
// requests; other clients do not.
func wantsPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == "" &&
		strings.Contains(strings.Join(r.Header["Accept"], ","), "text/html")
}

// redirect answers with a redirect to the request's path with a slash at its end. The reference is
// relative, so that it also suits a proxy that serves the gateway under another path.
func redirect(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	to := "./" + path[strings.LastIndexByte(path, '/')+1:] + "/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// function returns the function with that name, or nil. If the dispatcher does not know the
// name, function checks the state file, because the function may have been applied just
// now.
func (a *API) function(ctx context.Context, name string) *dispatch.Function {
	return a.find(ctx, func() *dispatch.Function { return a.cfg.Dispatcher.Function(name) }, func(l ports.Listing) error {
		_, err := l.Function(name)
		return err
	})
}

// find returns the function that known returns or, if that is nil, that known returns after the
// dispatcher has learned of it. It returns nil once the state has no such function: check fails.
func (a *API) find(ctx context.Context, known func() *dispatch.Function, check func(ports.Listing) error) *dispatch.Function {
	if f := known(); f != nil {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	var f *dispatch.Function
	poll(ctx, func() bool {
		l, err := a.cfg.Catalog.List(ctx)
		if err == nil {
			err = check(l)
		}
		f = known()
		return f != nil || err != nil
	})
	return f
}

const (
	pollEvery = 5 * time.Millisecond
	stateTime = 10 * time.Second // limit on waiting for a change of the state
)

// poll calls done until it reports true, or ctx ends.
func poll(ctx context.Context, done func() bool) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// routes adds the routes of /system/ and of the page.
func (a *API) routes() {
	a.system.HandleFunc("GET /system/status", a.serveStatus)
	a.system.HandleFunc("GET /system/events", a.events.serve)
	a.system.HandleFunc("GET /ui/{$}", a.servePage)
	toPage := http.RedirectHandler("/ui/", http.StatusFound)
	a.system.Handle("GET /{$}", toPage)
	a.system.Handle("GET /ui", toPage)
	a.system.HandleFunc("GET /system/async/{id}", a.async.serveStatus)
	a.handle("POST /models/load", a.loadModel)
	a.handle("POST /models/unload", a.unloadModel)
	(&openFaaS{a}).routes()
}

// handle adds a route for requests to change or show the state. Their bodies are short, and their
// answers are JSON.
func (a *API) handle(pattern string, do func(r *http.Request) (status int, value any, err error)) {
	a.system.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			from := a.cfg.Intake.Upload(w, r, maxDeployment)
			defer from.Finish(0)
			if fault := a.cfg.Intake.Open(r.Context(), from, nil, bodySize(r, maxDeployment)); fault != nil {
				a.refuse(w, r, fault)
				return
			}
			r.Body = from
		}
		status, value, err := do(r)
		switch {
		case err != nil:
			a.refuse(w, r, stateFault(err))
		case value == nil:
			w.WriteHeader(status)
		default:
			writeJSON(w, status, value)
		}
	})
}
