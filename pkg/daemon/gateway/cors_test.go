package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// sharing answers with the CORS headers of the answer, sorted, without the list of exposed headers.
func sharing(h http.Header) string {
	var lines []string
	for name, values := range h {
		if (strings.HasPrefix(name, "Access-Control-") || name == "Vary") && name != "Access-Control-Expose-Headers" {
			lines = append(lines, strings.TrimPrefix(name, "Access-Control-")+": "+strings.Join(values, " | "))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

const (
	preflightVary = "; Vary: Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network"
	chat, other   = "https://chat.example.com", "https://other.example.com"
)

// TestPreflight checks that the gateway answers a preflight request itself: without a password,
// without an instance, and whatever the function does.
func TestPreflight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		c.Origins, c.Auth, c.AuthFunctions = api.Origins{chat}, api.NewCredentials("u", "p"), true
		c.Concurrency = 1
	})
	w.apply(fn("f"))
	asks := func(method, path, origin string, more ...string) answer {
		return w.do(method, path, "", append([]string{"Origin", origin, "Access-Control-Request-Method", "POST"}, more...)...)
	}
	for _, path := range []string{"/function/f", "/function/f/x/y", "/function/none", "/v1/chat/completions", "/v1/models", "/v2/models/f/infer", "/async-function/f", "/health"} {
		a := asks("OPTIONS", path, chat, "Access-Control-Request-Headers", "authorization,content-type")
		const want = "Allow-Credentials: true; Allow-Headers: authorization,content-type; Allow-Methods: POST; Allow-Origin: " + chat + "; Max-Age: 600" + preflightVary + " | Origin"
		if got := sharing(a.header); a.status != 204 || got != want || a.reason() != string(refusal.Preflight) {
			t.Errorf("%s: got %d %s, want 204 %s", path, a.status, got, want)
		}
	}
	if a := asks("OPTIONS", "/v1/models", chat, "Access-Control-Request-Private-Network", "true"); a.header.Get("Access-Control-Allow-Private-Network") != "true" {
		t.Errorf("got %v, want access of a public page to a private network", a.header)
	}
	for _, origin := range []string{other, "null", "http://chat.example.com", chat + ":8443", chat + "/", "*", "HTTPS://chat.example.com"} {
		a := asks("OPTIONS", "/function/f", origin)
		if checkRefusal(t, a, 403, refusal.Auth); sharing(a.header) != "Vary: Origin" {
			t.Errorf("origin %s: got %s, want no permission", origin, sharing(a.header))
		}
	}
	for _, path := range []string{"/system/functions", "/system/status", "/ui/", "/ui", "/", "/metrics"} {
		if a := asks("OPTIONS", path, chat, "Authorization", auth("u", "p")); a.status != 403 || sharing(a.header) != "" {
			t.Errorf("%s: got %d %s, want 403 without permission", path, a.status, sharing(a.header))
		}
		if a := asks("GET", path, chat, "Authorization", auth("u", "p")); a.status != 403 || sharing(a.header) != "" {
			t.Errorf("GET %s: got %d %s, want 403 without permission", path, a.status, sharing(a.header))
		}
	}
	if n := len(w.Status().Instances); n != 0 {
		t.Errorf("got %d instances after preflight requests, want none", n)
	}
	if a := w.do("OPTIONS", "/function/f", "", "Origin", chat); a.status != 401 || sharing(a.header) != "Allow-Credentials: true; Allow-Origin: "+chat+"; Vary: Origin" {
		t.Errorf("OPTIONS that is no preflight request: got %d %s, want 401 that the page may read", a.status, sharing(a.header))
	}
}

// TestPreflightWhileBusy checks that a preflight request waits neither for a slot nor for an
// instance.
func TestPreflightWhileBusy(t *testing.T) {
	t.Parallel()
	release, began := make(chan struct{}), make(chan struct{})
	w := newWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) { close(began); <-release; echo(rw, r) }},
		func(c *Config) { c.Origins, c.Concurrency = api.Origins{"*"}, 1 })
	w.apply(fn("f"), fn("g"))
	ended := make(chan answer, 1)
	go func() {
		a, _ := w.try(t.Context(), "POST", "/function/f/wait", "")
		ended <- a
	}()
	<-began
	for _, name := range []string{"f", "g"} {
		a := w.do("OPTIONS", "/function/"+name, "", "Origin", chat, "Access-Control-Request-Method", "DELETE", "Access-Control-Request-Private-Network", "true")
		if got, want := sharing(a.header), "Allow-Methods: DELETE; Allow-Origin: *; Max-Age: 600"+preflightVary; a.status != 204 || got != want {
			t.Errorf("%s: got %d %s, want 204 %s", name, a.status, got, want)
		}
	}
	close(release)
	if a := <-ended; a.status != 200 {
		t.Errorf("the running call: got %+v; want status 200", a)
	}
	if f := w.Status().Functions[0]; *f.ColdStarts+*f.GPUWarmStarts != 1 {
		t.Errorf("got %d calls of f, want 1: preflight requests are no calls", *f.ColdStarts+*f.GPUWarmStarts)
	}
}

// TestSharedAnswers checks the CORS headers of answers. --cors replaces those of a function, also in
// streams and in the gateway's own errors. Without --cors, the gateway adds and removes none.
func TestSharedAnswers(t *testing.T) {
	t.Parallel()
	own := func(rw http.ResponseWriter, _ *http.Request) {
		h := rw.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Expose-Headers", "X-Own")
		h.Set("Vary", "Accept, origin")
		_, _ = io.WriteString(rw, "data: 1\n\n")
		_ = http.NewResponseController(rw).Flush()
		_, _ = io.WriteString(rw, "data: 2\n\n")
	}
	for _, c := range []struct {
		name                string
		origins             api.Origins
		origin              string
		own, plain, refused string
	}{
		{"without --cors", nil, chat, "Allow-Credentials: true; Allow-Origin: *; Vary: Accept, origin", "", ""},
		{"listed", api.Origins{chat}, chat, "Allow-Credentials: true; Allow-Origin: " + chat + "; Vary: Accept, origin", "Allow-Credentials: true; Allow-Origin: " + chat + "; Vary: Origin",
			"Allow-Credentials: true; Allow-Origin: " + chat + "; Vary: Origin"},
		{"not listed", api.Origins{chat}, other, "Vary: Accept, origin", "Vary: Origin", "Vary: Origin"},
		{"no page", api.Origins{chat}, "", "Vary: Accept, origin", "Vary: Origin", "Vary: Origin"},
		{"any", api.Origins{"*"}, other, "Allow-Origin: *; Vary: Accept, origin", "Allow-Origin: *", "Allow-Origin: *"},
		{"any beside a listed one", api.Origins{"*", chat}, other, "Allow-Origin: *; Vary: Accept, origin", "Allow-Origin: *; Vary: Origin", "Allow-Origin: *; Vary: Origin"},
		{"a listed one beside any", api.Origins{"*", chat}, chat, "Allow-Credentials: true; Allow-Origin: " + chat + "; Vary: Accept, origin",
			"Allow-Credentials: true; Allow-Origin: " + chat + "; Vary: Origin", "Allow-Credentials: true; Allow-Origin: " + chat + "; Vary: Origin"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, pathHandlers{"/own": own, "/socket": sockets}, func(cfg *Config) { cfg.Origins = c.origins })
			w.apply(fn("f"))
			var headers []string
			if c.origin != "" {
				headers = []string{"Origin", c.origin}
			}
			a := w.do("POST", "/function/f/own", "", headers...)
			if got := sharing(a.header); a.status != 200 || a.body != "data: 1\n\ndata: 2\n\n" || got != c.own {
				t.Errorf("a function with headers of its own: got %d %q %s, want 200 %s", a.status, a.body, got, c.own)
			}
			visible := a.header.Values("Access-Control-Expose-Headers")
			if may := c.origins == nil || c.origin != "" && (slices.Contains(c.origins, c.origin) || slices.Contains(c.origins, "*")); may && (len(visible) != 1 || !strings.HasSuffix(visible[0], "X-Own") || c.origins != nil && !strings.HasPrefix(visible[0], "X-Call-Id, ")) || !may && visible != nil {
				t.Errorf("got the exposed headers %q; want one list that ends with X-Own if the page may read the answer", visible)
			}
			if a := w.do("POST", "/function/f/plain", "x", headers...); a.status != 200 || sharing(a.header) != c.plain {
				t.Errorf("a function without such headers: got %d %s, want 200 %s", a.status, sharing(a.header), c.plain)
			}
			if a := w.do("POST", "/v1/chat/completions", `{"model":"none"}`, headers...); a.status != 404 || sharing(a.header) != c.refused {
				t.Errorf("an error of the gateway: got %d %s, want 404 %s", a.status, sharing(a.header), c.refused)
			}
			conn, in := w.upgrade("f", "own")
			if !roundTrip(conn, in, "text") {
				t.Error("an upgraded connection passes no data")
			}
		})
	}
}
