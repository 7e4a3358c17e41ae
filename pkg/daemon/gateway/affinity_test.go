package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
)

// cookie makes the calls of a browser go to one of up to two instances, which take up to inflight calls.
func cookie(inflight int) func(*function.Function) {
	return func(f *function.Function) {
		f.Affinity, f.Inflight, f.Scale.Min, f.Scale.Max = function.AffinityCookie, inflight, 2, 2
	}
}

// awaitInstances waits until that many instances run.
func (w *world) awaitInstances(n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d instances run", n), func() bool { return len(w.startedIDs()) == n })
}

func (a answer) instance() string { return a.header.Get("Gfaas-Instance") }

// TestAffinityCookie checks that the gateway gives a browser a cookie for its instance, that calls with the
// cookie go there, and that the cookie of an instance that is gone is replaced.
func TestAffinityCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f", cookie(1)), fn("g", cookie(1)), fn("plain"))
	w.awaitInstances(4)
	for _, id := range []string{"f.1", "f.2", "f.2", "f.1"} {
		if a := w.do("GET", "/function/f/x", "", "Cookie", "a=b; gfaas-instance="+id+"; c=d"); a.status != 200 || a.instance() != id || a.header.Get("Set-Cookie") != "" {
			t.Errorf("a call with the cookie of %s: got %d of %s with the cookie %q, want 200 of this instance and no new cookie", id, a.status, a.instance(), a.header.Get("Set-Cookie"))
		}
	}
	for _, value := range []string{"", "gfaas-instance=f.99", "gfaas-instance=", "gfaas-instance", "gfaas-instance=g.3", "gfaas-instance=" + strings.Repeat("x", 5000), "=;;=, gfaas-instance=\xff"} {
		a := w.do("POST", "/function/f/x", "", "Cookie", value)
		if want := "gfaas-instance=" + a.instance() + "; Path=/function/f; HttpOnly; SameSite=Lax"; a.status != 200 || !strings.HasPrefix(a.instance(), "f.") || a.header.Get("Set-Cookie") != want {
			t.Errorf("a call with the cookie %.50q: got %d with Set-Cookie %q, want 200 with %q", value, a.status, a.header.Get("Set-Cookie"), want)
		}
	}
	if a := w.do("GET", "/function/f.openfaas-fn/x", ""); !strings.Contains(a.header.Get("Set-Cookie"), "; Path=/function/f.openfaas-fn;") {
		t.Errorf("got Set-Cookie %q, want the path of the request", a.header.Get("Set-Cookie"))
	}
	for _, path := range []string{"/function/plain/x", "/function/f/healthz", "/v2/models/f/x"} { // without affinity, a probe, and without the function's path
		if a := w.do("GET", path, ""); a.status != 200 || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: got %d with Set-Cookie %q, want 200 without", path, a.status, a.header.Get("Set-Cookie"))
		}
	}
	w.runtime.Kill("f.1", 1)
	w.until("f.1 is gone", func() bool { return !slices.Contains(w.startedIDs(), "f.1") })
	a := w.do("GET", "/function/f/x", "", "Cookie", "gfaas-instance=f.1")
	if a.status != 200 || a.instance() == "f.1" || !strings.HasPrefix(a.header.Get("Set-Cookie"), "gfaas-instance="+a.instance()+";") {
		t.Errorf("a call with the cookie of f.1, which is gone: got %d of %s with Set-Cookie %q, want 200 of another instance and its cookie", a.status, a.instance(), a.header.Get("Set-Cookie"))
	}
}

// TestBoundCallWaits checks that a call with the cookie of a busy instance waits for it, although another
// instance is idle, and that calls without the cookie do not.
func TestBoundCallWaits(t *testing.T) {
	t.Parallel()
	release, began := make(chan struct{}), make(chan struct{}, 1)
	w := newWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) { began <- struct{}{}; <-release; echo(rw, r) }}, nil)
	w.apply(fn("f", cookie(1)))
	w.awaitInstances(2)
	var calls sync.WaitGroup
	call := func(path string) {
		calls.Go(func() {
			if a, err := w.try(t.Context(), "GET", path, "", "Cookie", "gfaas-instance=f.1"); err != nil || a.status != 200 || a.instance() != "f.1" {
				t.Errorf("%s with the cookie of f.1: got %d of %s, %v; want 200 of f.1", path, a.status, a.instance(), err)
			}
		})
	}
	call("/function/f/wait")
	<-began
	call("/function/f/bound")
	w.until("the call waits for its instance", func() bool {
		f := w.Status().Functions[0]
		return *f.Waiting == 1 && f.Reason.Code == "waiting-for-bound-instance"
	})
	if a := w.do("GET", "/function/f/free", ""); a.status != 200 || a.instance() != "f.2" {
		t.Errorf("a call without a cookie: got %d of %s, want 200 of the idle f.2", a.status, a.instance())
	}
	close(release)
	calls.Wait()
	w.awaitNoCalls()
}

// TestInterrupt checks that a stream and a WebSocket leave the other places of their instance free: a call
// with the same cookie reaches the instance at once, even while a call of another function waits for the GPU.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	interrupted := make(chan struct{})
	w := newWorld(t, pathHandlers{
		"/socket":    sockets,
		"/interrupt": func(rw http.ResponseWriter, r *http.Request) { close(interrupted); echo(rw, r) },
		"/stream": func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, "begin\n")
			_ = http.NewResponseController(rw).Flush()
			<-interrupted
			_, _ = io.WriteString(rw, "end\n")
		},
	}, func(c *Config) { c.Concurrency = 1 })
	w.apply(fn("f", cookie(3)), fn("g"))
	w.awaitInstances(2)
	const session = "gfaas-instance=f.2"
	conn := w.dial("GET /function/f/socket HTTP/1.1\r\nHost: x\r\nCookie: " + session + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	in := bufio.NewReader(conn)
	if r, err := http.ReadResponse(in, nil); err != nil || r.StatusCode != 101 || r.Header.Get("Gfaas-Instance") != "f.2" {
		t.Fatalf("WebSocket: got %+v, %v; want status 101 of f.2", r, err)
	}
	stream := w.dial("POST /function/f/stream HTTP/1.1\r\nHost: x\r\nCookie: " + session + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(stream), nil)
	if err != nil || answer.StatusCode != 200 || answer.Header.Get("Gfaas-Instance") != "f.2" {
		t.Fatalf("stream: got %+v, %v; want status 200 of f.2", answer, err)
	}
	var other sync.WaitGroup
	other.Go(func() {
		if a, err := w.try(t.Context(), "POST", "/function/g", ""); err != nil || a.status != 200 {
			t.Errorf("g: got %+v, %v; want status 200", a, err)
		}
	})
	w.until("the call of g waits", func() bool { return *w.Status().Functions[1].Waiting == 1 })
	if a := w.do("POST", "/function/f/interrupt", "", "Cookie", session); a.status != 200 || a.instance() != "f.2" || a.reason() == "" {
		t.Errorf("interrupt: got %+v; want status 200 of f.2", a)
	}
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "begin\nend\n" {
		t.Errorf("stream: got %q, %v; want its begin and its end", text, err)
	}
	if *w.Status().Functions[1].Waiting != 1 {
		t.Error("the call of g has run, want it to wait for the WebSocket")
	}
	if !roundTrip(conn, in, "\x82\x04text") {
		t.Error("WebSocket: it passes no data after the stream has ended")
	}
	_ = conn.Close()
	other.Wait()
	w.awaitNoCalls()
}

// TestAffinityHeader checks that calls with the same value of a header go to the same instance, even if
// they arrive together and no instance runs, and to another one when it is gone.
func TestAffinityHeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Concurrency = 4 })
	w.apply(fn("f", func(f *function.Function) { f.Affinity, f.Inflight, f.Scale.Max = "header:X-Session-Id", 2, 4 }))
	together := func() map[string]string {
		var mu sync.Mutex
		var calls sync.WaitGroup
		seen := map[string]string{}
		for i := range 24 {
			calls.Go(func() {
				session := fmt.Sprint("s", i%3)
				a, err := w.try(t.Context(), "POST", "/function/f", "", "X-Session-Id", session)
				mu.Lock()
				defer mu.Unlock()
				if err != nil || a.status != 200 || seen[session] != "" && seen[session] != a.instance() {
					t.Errorf("session %s: got %d of %s, %v; want 200 of %s", session, a.status, a.instance(), err, seen[session])
				}
				seen[session] = a.instance()
			})
		}
		calls.Wait()
		return seen
	}
	first := together()
	if second := together(); fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("got the instances %v, and then %v; want the same", first, second)
	}
	w.runtime.Kill(first["s0"], 1)
	w.until("the instance of s0 is gone", func() bool { return !slices.Contains(w.startedIDs(), first["s0"]) })
	if third := together(); third["s0"] == first["s0"] || first["s1"] != first["s0"] && third["s1"] != first["s1"] {
		t.Errorf("got the instances %v, and %v after the end of that of s0; want another for s0 only", first, third)
	}
	w.awaitNoCalls()
}

// TestHeldCallsEnd checks that calls that wait for the first call of their session are counted for the limit
// of the queue, can be cancelled, and run if the first call is cancelled or fails.
func TestHeldCallsEnd(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	w := newWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) { <-release; echo(rw, r) }}, func(c *Config) { c.Concurrency = 1 })
	w.apply(fn("busy"), fn("f", func(f *function.Function) { f.Affinity, f.Queue = "header:X-Session-Id", 3 }))
	var calls sync.WaitGroup
	calls.Go(func() { w.do("POST", "/function/busy/wait", "") })
	w.until("the GPU is busy", func() bool { return *w.Status().Functions[0].InFlight == 1 })
	first, leave := context.WithCancel(t.Context())
	call := func(ctx context.Context, status int) {
		calls.Go(func() {
			a, err := w.try(ctx, "POST", "/function/f", "", "X-Session-Id", "s")
			if ctx.Err() == nil && (err != nil || a.status != status) {
				t.Errorf("got %+v, %v; want status %d", a, err, status)
			}
		})
	}
	attempts := func(n int) {
		w.until(fmt.Sprintf("the gateway has %d calls", n), func() bool { return w.dispatcher.Attempts() == n })
	}
	call(first, 0)
	attempts(2)
	cancelled, leaveToo := context.WithCancel(t.Context())
	call(cancelled, 0)
	attempts(3)
	call(t.Context(), 200)
	attempts(4)
	if a := w.do("POST", "/function/f", "", "X-Session-Id", "s"); a.status != 429 {
		t.Errorf("a call beyond the limit: got %+v; want status 429", a)
	}
	leaveToo()
	attempts(3)
	leave()
	attempts(2)
	close(release)
	calls.Wait()
	w.awaitNoCalls()
}

// TestSocketSurvivesChanges checks that a WebSocket, of a function or of the realtime API with an alias, is one
// running call, and that neither a reload of the settings, nor the changes and the removal of other functions, nor a
// new version of its own function, nor the loss of the alias ends it.
func TestSocketSurvivesChanges(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/function/f/socket", "/v1/realtime?model=Vendor/F-Realtime&intent=x"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, http.HandlerFunc(sockets), nil)
			alias := func(f *function.Function) { f.Aliases = []string{"Vendor/F-Realtime"} }
			second := func(f *function.Function) { f.Env = map[string]string{"VERSION": "2"} }
			w.apply(fn("f", cookie(4), alias), fn("g"))
			conn, in := w.upgradeAt(path, "websocket")
			alive := func(after string) {
				t.Helper()
				if f := w.Status().Functions[0]; *f.InFlight != 1 || !roundTrip(conn, in, "\x82\x04"+"text") {
					t.Errorf("%s: got %d running calls of f, or no data; want the WebSocket alive as one call", after, *f.InFlight)
				}
			}
			alive("at first")
			w.Gateway.cfg.Reload = func() (Settings, error) { return Settings{}, nil }
			if err := w.Gateway.reload(); err != nil {
				t.Fatal(err)
			}
			alive("after a reload")
			w.apply(fn("g", second), fn("h"))
			w.do("POST", "/function/g", "")
			w.remove("g")
			alive("after changes of other functions")
			w.apply(fn("f", cookie(3), alias))
			alive("after a change without a new version")
			w.apply(fn("f", cookie(3), alias, second))
			alive("after a new version")
			w.apply(fn("f", cookie(3), second))
			checkModelRefusal(t, w.do("GET", "/v1/realtime?model=Vendor/F-Realtime", ""), 404, refusal.NoFunction)
			alive("after the removal of the alias")
			_ = conn.Close()
			w.awaitNoCalls()
		})
	}
}
