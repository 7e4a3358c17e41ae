package fnhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// server answers these paths with 200, and everything else with fallback.
func server(t *testing.T, fallback int, paths ...string) string {
	t.Helper()
	known := map[string]bool{}
	for _, path := range paths {
		known[path] = true
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !known[r.URL.Path] {
			w.WriteHeader(fallback)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// silent is an address that stays ours and that nobody listens on.
func silent(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

// stalls is a function that is not ready when first asked and does not answer
// again.
func stalls(t *testing.T) string {
	t.Helper()
	var asked atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Swap(true) {
			<-r.Context().Done()
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// says is a server that is not ready, and says why.
func says(t *testing.T, why string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, why)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestWaitReadyResolves(t *testing.T) {
	for _, c := range []struct {
		name, contract, want string
		fallback             int
		paths                []string
	}{
		{"http", auto, HTTP, 404, []string{"/healthz"}},
		{"openfaas", auto, OpenFaaS, 404, []string{"/_/health"}},
		{"kserve", auto, KServeV2, 404, []string{"/v2/health/ready"}},
		{"openai by models", auto, OpenAI, 404, []string{"/v1/models"}},
		{"openai by health", "", OpenAI, 404, []string{"/health"}},
		{"answers everything", auto, HTTP, 200, nil},
		{"knows no path", auto, HTTP, 404, nil},
		{"POST only", auto, HTTP, 405, nil},
		{"asked for http, knows no path", HTTP, HTTP, 404, nil},
		{"asked for openai", OpenAI, OpenAI, 404, []string{"/health"}},
		{"asked for kserve", KServeV2, KServeV2, 404, []string{"/v2/health/ready", "/healthz"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := WaitReady(t.Context(), server(t, c.fallback, c.paths...), c.contract, nil)
			if err != nil || got != c.want {
				t.Errorf("WaitReady = %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestWaitReadyGivesUp(t *testing.T) {
	nobody := silent(t)
	status := func(s int) func(*testing.T) string { return func(t *testing.T) string { return server(t, s) } }
	text := func(why string) func(*testing.T) string { return func(t *testing.T) string { return says(t, why) } }
	for _, c := range []struct {
		name           string
		address        func(*testing.T) string
		contract, want string
	}{
		{"loading", status(503), auto, "GET /healthz: status 503"},
		{"another contract", status(404), OpenFaaS, "GET /_/health: status 404"},
		{"nobody listens", func(*testing.T) string { return nobody }, auto, "connection refused"},
		{"says why", text("no kernel\x1b[31m daemon\nat /run\n"), auto, "GET /healthz: status 503: no kernel [31m daemon at /run)"},
		{"says much", text(strings.Repeat("é", 1000)), auto, "status 503: " + strings.Repeat("é", 200) + "…)"},
		{"says it in HTML", text("<html>wait"), auto, "status 503)"},
		{"stalls", stalls, auto, "GET /healthz: status 503"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var err error
			for limit := time.Second; limit < 20*time.Second; limit *= 4 { // no answer may come within the first
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				_, err = WaitReady(ctx, c.address(t), c.contract, nil)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), c.want) {
					return
				}
			}
			t.Errorf("error = %v, want deadline exceeded and %q", err, c.want)
		})
	}
	if _, err := WaitReady(t.Context(), nobody, "soap", nil); err == nil || !strings.Contains(err.Error(), `"soap" is not a contract`) {
		t.Errorf("error = %v, want one about the contract", err)
	}
	dead := errors.New("exited with status 3")
	_, err := WaitReady(t.Context(), nobody, auto, func(context.Context) error { return dead })
	if !errors.Is(err, dead) {
		t.Errorf("error = %v, want %v", err, dead)
	}
}

func TestWaitReadyWaits(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 4 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	got, err := WaitReady(t.Context(), s.Listener.Addr().String(), auto, func(context.Context) error { return nil })
	if got != HTTP || err != nil || asked.Load() != 4 {
		t.Errorf("WaitReady = %q, %v after %d questions, want http after 4", got, err, asked.Load())
	}
}

// TestPauses: a function is seen to be ready at most an eighth of its time too late,
// and in two minutes is not asked a thousand times.
func TestPauses(t *testing.T) {
	asked := 0
	for now := time.Duration(0); now < 2*time.Minute; asked++ {
		pause := pauseAfter(now)
		if late := max(now/8, firstPause); pause <= 0 || pause > late {
			t.Fatalf("after %v it is asked again in %v, want at most %v", now, pause, late)
		}
		now += pause
	}
	if asked > 1000 {
		t.Errorf("asked %d times", asked)
	}
}

// at is an instance at that address.
func at(address, contract, function string) *instance.Record {
	return &instance.Record{ID: function + "-0", Function: function, Contract: contract, Handle: instance.Handle{Address: address}}
}

func TestConformance(t *testing.T) {
	instancetest.RunInvoker(t, func(t *testing.T, handler http.Handler) (ports.Invoker, string) {
		s := httptest.NewServer(handler)
		client := NewClient()
		t.Cleanup(func() { client.Close(); s.Close() })
		return client, s.Listener.Addr().String()
	})
}

func TestInvoke(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Seen", strings.Join([]string{r.Method, r.URL.EscapedPath(), r.Host, r.Header.Get("Content-Type"), r.Header.Get("X-A")}, " "))
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(body)
	}))
	defer s.Close()
	address, client := s.Listener.Addr().String(), NewClient()
	defer client.Close()
	for _, c := range []struct {
		contract, function string
		header             http.Header
		seen               string
	}{
		{HTTP, "f", nil, "POST / " + address + "  "},
		{auto, "f", http.Header{"x-a": {"1"}, "Content-Type": {"text/plain"}}, "POST / " + address + " text/plain 1"},
		{OpenFaaS, "f", http.Header{"Host": {"f.example"}}, "POST / f.example  "},
		{KServeV2, "a/b", nil, "POST /v2/models/a%2Fb/infer " + address + " application/json "},
		{OpenAI, "f", nil, "POST /v1/chat/completions " + address + " application/json "},
	} {
		response, err := client.Invoke(t.Context(), at(address, c.contract, c.function), ports.Call{Header: c.header, Body: strings.NewReader("body")})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(body) != "body" || response.StatusCode != http.StatusTeapot || response.Header.Get("Seen") != strings.TrimSpace(c.seen) {
			t.Errorf("Invoke under %s: %d %q %q, %v; want 418, the body and %q", c.contract, response.StatusCode, body, response.Header.Get("Seen"), err, c.seen)
		}
	}
	if _, err := client.Invoke(t.Context(), at(address, HTTP, "f"), ports.Call{Header: http.Header{"Content-Length": {"x"}}}); err == nil {
		t.Error("a malformed Content-Length was accepted")
	}
	if _, err := client.Invoke(t.Context(), at(address, "soap", "f"), ports.Call{}); err == nil {
		t.Error("an unknown contract was accepted")
	}
}
