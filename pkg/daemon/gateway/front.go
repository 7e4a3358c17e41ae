package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/ui"
)

// Credentials are who may use what is guarded.
type Credentials struct{ user, password [sha256.Size]byte }

// NewCredentials are those of a user.
func NewCredentials(user, password string) *Credentials {
	return &Credentials{sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))}
}

// allows says whether a request has them, in a time that tells nothing.
func (c *Credentials) allows(r *http.Request) bool {
	user, password, given := r.BasicAuth()
	u, p := sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))
	same := subtle.ConstantTimeCompare(u[:], c.user[:]) & subtle.ConstantTimeCompare(p[:], c.password[:])
	return given && same == 1
}

// ServeHTTP answers what is not health or metrics.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	if !g.adopted.Load() && !looking(path) && !g.knows(r.Context()) {
		e := &Error{Status: http.StatusServiceUnavailable, Code: codeState, Message: "the gateway does not know yet what is applied: the state is not read", Retry: time.Second}
		g.refuse(w, r, e)
		return
	}
	switch {
	case r.Method == http.MethodConnect: // its caller would take an answer 2xx for a tunnel
		g.refuse(w, r, notAllowed(r.Method, "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))
	case strings.HasPrefix(path, "/function/"):
		name, rest := splitName(path[len("/function/"):])
		g.serveFunction(w, r, name, rest)
	case strings.HasPrefix(path, "/v2/models/"):
		name, _ := splitName(path[len("/v2/models/"):])
		g.serveFunction(w, r, name, path)
	case strings.HasPrefix(path, "/v1/"):
		g.serveOpenAI(w, r, path)
	case strings.HasPrefix(path, "/async-function/"):
		name, rest := splitName(path[len("/async-function/"):])
		g.serveAsync(w, r, name, rest)
	case managed(r.URL.Path):
		w.Header()["X-Content-Type-Options"] = []string{noSniff}
		g.serveSystem(w, r)
	default:
		g.refuse(w, r, noPath(path))
	}
}

// serveUI answers management requests at Config.UIListen. It answers no calls: a
// function's page there would have the origin of the operator's.
func (g *Gateway) serveUI(w http.ResponseWriter, r *http.Request) {
	if !managed(r.URL.Path) && r.Method != http.MethodConnect {
		e := noPath(r.URL.EscapedPath())
		e.Hint = "functions are served at the address of --listen, not at that of --ui-listen"
		g.refuse(w, r, e)
		return
	}
	g.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), uiKey{}, true)))
}

// uiKey marks the context of a request that came in at Config.UIListen.
type uiKey struct{}

// servePage answers with the page of /ui/.
func (g *Gateway) servePage(w http.ResponseWriter, r *http.Request) {
	ui.Page{Token: g.token, Calls: r.Context().Value(uiKey{}) == nil}.Serve(w)
}

// looking says whether a path is for looking at the gateway, whatever it knows.
func looking(path string) bool {
	return path == "/" || path == "/system/status" || path == "/system/events" || path == "/system/info" || strings.HasPrefix(path, "/ui")
}

// knows waits until the gateway knows what is applied and what runs: until then no
// function is there, and each would be started.
func (g *Gateway) knows(ctx context.Context) bool {
	timer := time.NewTimer(stateTime)
	defer timer.Stop()
	select {
	case <-g.known:
		return true
	case <-g.leaving:
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

// refuse answers what is no call of a function with an error.
func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, e *Error) {
	g.newCall(r, nil, "").refuse(w, e)
}

// serveSystem has the mux answer, in the gateway's own form where nothing is.
func (g *Gateway) serveSystem(w http.ResponseWriter, r *http.Request) {
	handler, pattern := g.system.Handler(r)
	if pattern != "" {
		g.system.ServeHTTP(w, r)
		return
	}
	probe := &statusOnly{header: http.Header{}}
	handler.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		g.refuse(w, r, notAllowed(r.Method, probe.header.Get("Allow")))
		return
	}
	g.refuse(w, r, noPath(r.URL.EscapedPath()))
}

func notAllowed(method, allow string) *Error {
	return &Error{Status: http.StatusMethodNotAllowed, Code: codeMethod, Message: "the method " + method + " is not for this path", Allow: allow}
}

// statusOnly hears what a mux would answer where it has nothing.
type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) WriteHeader(status int)      { s.status = status }
func (s *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

// namespace is the one that OpenFaaS's clients say functions are in.
const namespace = "openfaas-fn"

// splitName splits what follows /function/ into a function's name, without its
// namespace, and the path for it, as it was escaped; the path is empty or begins
// with a slash. A name in another namespace is left as it is: no function has it.
func splitName(path string) (name, rest string) {
	name = path
	if at := strings.IndexByte(path, '/'); at >= 0 {
		name, rest = path[:at], path[at:]
	}
	return strings.TrimSuffix(name, "."+namespace), rest
}

// serveFunction passes a call to a function. An empty path is where its contract
// is invoked by a POST, else its root.
func (g *Gateway) serveFunction(w http.ResponseWriter, r *http.Request, name, path string) {
	if path == "" && r.Method != http.MethodPost {
		path = "/"
	}
	target := g.target(r.Context(), name)
	c := g.newCall(r, target, path)
	if target == nil {
		c.refuse(w, noFunction(name))
		return
	}
	c.serve(w, r)
}

// target is the function of a name, nil if there is none. Before it says so it looks
// at the state: what was applied just now the engine may learn in a moment.
func (g *Gateway) target(ctx context.Context, name string) *target {
	if t := (*g.names.Load())[name]; t != nil {
		return t
	}
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	for {
		l, err := g.cfg.Catalog.Look(ctx)
		if err == nil {
			_, err = l.Function(name)
		}
		if t := (*g.names.Load())[name]; t != nil || err != nil {
			return t
		}
		if !pause(ctx, targetPause) {
			return nil
		}
	}
}

// targetPause is how often it is looked whether the engine knows a function that is
// applied.
const targetPause = 5 * time.Millisecond

// routes are those of /system/ and what else is not a call.
func (g *Gateway) routes() {
	g.system.HandleFunc("GET /system/status", g.serveStatus)
	g.system.HandleFunc("GET /system/events", g.serveEvents)
	g.system.HandleFunc("GET /ui/{$}", g.servePage)
	toPage := http.RedirectHandler("/ui/", http.StatusFound)
	g.system.Handle("GET /{$}", toPage)
	g.system.Handle("GET /ui", toPage)
	g.system.HandleFunc("GET /system/async/{id}", g.serveAsyncStatus)
	g.openFaaSRoutes()
}
