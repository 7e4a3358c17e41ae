package chassis

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// TestWeb checks that the TCP address serves the handler behind the guard, with unchanged
// paths.
func TestWeb(t *testing.T) {
	cfg := config(runDir(t))
	cfg.Listen = "127.0.0.1:0"
	tuned := make(chan *http.Server, 2)
	cfg.HTTP = func(s *http.Server) {
		s.ReadTimeout = 0
		tuned <- s
	}
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })
	d := serve(t, cfg, Service{Web: echo, Guard: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}})
	for range 2 {
		select {
		case s := <-tuned:
			if s.ReadTimeout != 0 {
				t.Errorf("read timeout of a tuned server: got %v, want 0", s.ReadTimeout)
			}
		case <-time.After(patience):
			t.Fatalf("Config.HTTP was not called for both servers within %v", patience)
		}
	}
	const path = "/function/f//a/../b?x=1"
	if status, body := d.get(true, path); status != http.StatusOK || body != path {
		t.Errorf("GET %s over TCP: got %d %q, want 200 and the same path", path, status, body)
	}
	if status, _ := d.get(true, "/readyz"); status != http.StatusUnauthorized {
		t.Errorf("GET /readyz over TCP: got status %d, want the guard's %v", status, http.StatusUnauthorized)
	}
	if status, _ := d.get(true, "/healthz"); status != http.StatusOK {
		t.Errorf("GET /healthz over TCP: got status %d, want %v", status, http.StatusOK)
	}
	if status, _ := d.get(false, "/readyz"); status != http.StatusOK {
		t.Errorf("GET /readyz on the control socket, which has no guard: got status %d, want %v", status, http.StatusOK)
	}
}

// TestUI checks that the second address has its own handler and guard, and serves health
// and metrics.
func TestUI(t *testing.T) {
	cfg := config(runDir(t))
	cfg.Listen, cfg.UIListen = "127.0.0.1:0", "127.0.0.1:0"
	textHandler := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	guard := func(name string) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Guard", name)
				next.ServeHTTP(w, r)
			})
		}
	}
	d := serve(t, cfg, Service{Web: textHandler("web"), Guard: guard("web"), UI: textHandler("ui"), UIGuard: guard("ui")})
	for address, name := range map[string]string{d.WebAddr().String(): "web", d.UIAddr().String(): "ui"} {
		for path, body := range map[string]string{"/x": name, "/healthz": "ok\n"} {
			answer, err := http.Get("http://" + address + path)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if err != nil || string(text) != body || answer.Header.Get("Guard") != name {
				t.Errorf("GET %s at the address of %s: got %q behind the guard %q, %v, want %q behind %q", path, name, text, answer.Header.Get("Guard"), err, body, name)
			}
		}
	}
	d.stop()
	if err := d.end(); err != nil {
		t.Error(err)
	}
	if answer, err := http.Get("http://" + d.UIAddr().String() + "/healthz"); err == nil {
		_ = answer.Body.Close()
		t.Errorf("GET /healthz after the daemon has ended: got status %d, want no answer", answer.StatusCode)
	}
}
