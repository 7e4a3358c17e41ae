package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// TestHealth checks that GET /health reports whether the gateway accepts calls, without a password
// and without a function.
func TestHealth(t *testing.T) {
	t.Parallel()
	release, began := make(chan struct{}), make(chan struct{})
	w := newWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) { close(began); <-release; echo(rw, r) }},
		func(c *Config) { c.Auth, c.AuthFunctions = api.NewCredentials("u", "p"), true })
	w.apply(fn("f"))
	if a := w.do("GET", "/health", ""); a.status != 200 || a.body != "{\"status\":\"ok\"}\n" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("GET /health: got %+v; want status 200 and ok", a)
	}
	if a := w.do("HEAD", "/health", ""); a.status != 200 || a.body != "" {
		t.Errorf("HEAD /health: got %+v; want status 200", a)
	}
	checkRefusal(t, w.do("POST", "/health", ""), 405, refusal.Method)
	ended := make(chan answer, 1)
	go func() {
		a, _ := w.try(t.Context(), "POST", "/function/f/wait", "", "Authorization", auth("u", "p"))
		ended <- a
	}()
	<-began
	conn := w.dial("GET /health HTTP/1.1\r\nHost: x\r\n\r\n") // the listener closes with the drain; this connection remains
	if a := readAnswer(t, conn); a.status != 200 {
		t.Errorf("GET /health: got %+v; want status 200", a)
	}
	w.stop()
	w.until("the gateway drains", w.dispatcher.Draining.IsSet)
	if _, err := conn.Write([]byte("GET /health HTTP/1.1\r\nHost: x\r\n\r\n")); err == nil {
		checkRefusal(t, readAnswer(t, conn), 503, refusal.Draining)
	}
	close(release)
	if a := <-ended; a.status != 200 {
		t.Errorf("the running call: got %+v; want status 200", a)
	}
}

// TestRedirectToRoot checks that a browser that opens /function/NAME is redirected to
// /function/NAME/, where the relative links of a page lead to the function, and that other clients
// are not.
func TestRedirectToRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for path, want := range map[string]string{
		"/function/f": "./f/", "/function/f?a=b&c": "./f/?a=b&c", "/function/f.openfaas-fn": "./f.openfaas-fn/",
	} {
		a := w.do("GET", path, "", "Accept", browser)
		if a.status != 307 || a.header.Get("Location") != want || a.reason() != string(refusal.Redirect) || a.body != "" {
			t.Errorf("%s: got %+v; want status 307 to %s", path, a, want)
		}
	}
	if n := len(w.Status().Instances); n != 0 {
		t.Errorf("got %d instances after redirects, want none", n)
	}
	for _, c := range []struct{ method, path, accept, seen string }{
		{"GET", "/function/f", "*/*", "GET / "}, {"GET", "/function/f", "", "GET / "}, {"GET", "/function/f/", browser, "GET / "},
		{"GET", "/function/f/x", browser, "GET /x "}, {"POST", "/function/f", browser, "POST / "},
	} {
		if a := w.do(c.method, c.path, "", "Accept", c.accept); a.status != 200 || !strings.HasPrefix(a.header.Get("Seen"), c.seen) {
			t.Errorf("%s %s with Accept %q: got %+v; want status 200 of %s", c.method, c.path, c.accept, a, c.seen)
		}
	}
	checkRefusal(t, w.do("GET", "/function/none", "", "Accept", browser), 404, refusal.NoFunction)
	answer, err := http.DefaultClient.Do(request(t, w.url("/function/f?x=1"), browser))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 || !strings.HasPrefix(answer.Header.Get("Seen"), "GET /?x=1 ") {
		t.Errorf("a client that follows: got %d, %v; want status 200 of GET /?x=1", answer.StatusCode, answer.Header)
	}
	http.DefaultClient.CloseIdleConnections()
}

// request returns a GET request with that Accept.
func request(t *testing.T, url, accept string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	return r
}
