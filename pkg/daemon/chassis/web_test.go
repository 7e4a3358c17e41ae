package chassis

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// TestWeb: a daemon answers at its TCP address too, paths as they came, behind its
// guard.
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
				t.Errorf("read timeout %v", s.ReadTimeout)
			}
		case <-time.After(patience):
			t.Fatal("a server was not tuned")
		}
	}
	const path = "/function/f//a/../b?x=1"
	if status, body := d.get(true, path); status != http.StatusOK || body != path {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := d.get(true, "/readyz"); status != http.StatusUnauthorized {
		t.Errorf("unguarded: %d", status)
	}
	if status, _ := d.get(true, "/healthz"); status != http.StatusOK {
		t.Errorf("health: %d", status)
	}
	if status, _ := d.get(false, "/readyz"); status != http.StatusOK {
		t.Errorf("the control socket is guarded: %d", status)
	}
}
