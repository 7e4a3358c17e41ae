package fnhttp

import (
	"cmp"
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

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// newServer starts a server that answers these paths with 200 and all others with the status fallback. It returns
// the server's address.
func newServer(t *testing.T, fallback int, paths ...string) string {
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

// newClosedAddress returns an address that refuses connections: a socket is bound to it but does not listen.
func newClosedAddress(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", address.(*unix.SockaddrInet4).Port)
}

// newStallingServer starts a server that answers the first request with 503 and does not answer later ones. It
// returns the server's address.
func newStallingServer(t *testing.T) string {
	t.Helper()
	var hasAnswered atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hasAnswered.Swap(true) {
			<-r.Context().Done()
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// newUnreadyServer starts a server that answers with 503 and a reason. It returns the server's address.
func newUnreadyServer(t *testing.T, reason string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, reason)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestWaitReadyResolvesContract checks which contract WaitReady finds for a function that answers certain paths.
func TestWaitReadyResolvesContract(t *testing.T) {
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
			got, err := WaitReady(t.Context(), newServer(t, c.fallback, c.paths...), function.Function{Contract: c.contract}, nil)
			if err != nil || got != c.want {
				t.Errorf("got contract %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// TestWaitReadyAwaitsHealth checks that a model server that lists its model while it loads it is not ready before
// it reports its health.
func TestWaitReadyAwaitsHealth(t *testing.T) {
	for _, contract := range []string{OpenAI, auto} {
		var probes atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/v1/models":
			case r.URL.Path != "/health":
				w.WriteHeader(http.StatusNotFound)
			case probes.Add(1) < 4:
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(s.Close)
		got, err := WaitReady(t.Context(), s.Listener.Addr().String(), function.Function{Contract: contract}, nil)
		if err != nil || got != OpenAI || probes.Load() < 4 {
			t.Errorf("contract %s: got %q, %v after %d probes of /health; want openai after 4", contract, got, err, probes.Load())
		}
	}
}

// TestReadinessOfModelServers checks which statuses of which paths mean that a model server is ready, is not ready
// yet, or demands a key.
func TestReadinessOfModelServers(t *testing.T) {
	openAI := func(path string, status int) function.Function { // with a readiness check of its own, unless empty
		return function.Function{Contract: OpenAI, Ready: function.Ready{Path: path, Status: status}}
	}
	const notReady, denied = "context deadline exceeded", `set "ready" in function.yaml`
	for name, c := range map[string]struct {
		fn      function.Function
		status  map[string]int // by path and query; others get 404
		wantErr string         // part of the error; empty: none
	}{
		"health":                     {openAI("", 0), map[string]int{"/health": 200}, ""},
		"health without content":     {openAI("", 0), map[string]int{"/health": 204}, ""},
		"models only":                {openAI("", 0), map[string]int{"/v1/models": 200}, ""},
		"health not allowed":         {openAI("", 0), map[string]int{"/health": 405, "/v1/models": 200}, ""},
		"loading, models listed":     {openAI("", 0), map[string]int{"/health": 503, "/v1/models": 200}, notReady},
		"redirect":                   {openAI("", 0), map[string]int{"/health": 302, "/v1/models": 200}, notReady},
		"key for the health":         {openAI("", 0), map[string]int{"/health": 401, "/v1/models": 200}, denied},
		"key for the models":         {openAI("", 0), map[string]int{"/v1/models": 403}, "GET /v1/models: status 403: the health check needs a key"},
		"key, auto":                  {function.Function{Contract: auto}, map[string]int{"/v1/models": 401}, denied},
		"redirect, http":             {function.Function{Contract: HTTP}, map[string]int{"/healthz": 302}, ""},
		"key, http":                  {function.Function{Contract: HTTP}, map[string]int{"/healthz": 401}, notReady},
		"own path":                   {openAI("/ping?a=b", 0), map[string]int{"/ping?a=b": 201, "/health": 500}, ""},
		"own path, redirect":         {openAI("/ping", 0), map[string]int{"/ping": 302, "/health": 200}, notReady},
		"own path and status":        {openAI("/ping", 418), map[string]int{"/ping": 418}, ""},
		"own status that means keys": {openAI("/v1/models", 401), map[string]int{"/v1/models": 401}, ""},
		"not the own status":         {openAI("/ping", 204), map[string]int{"/ping": 200}, notReady},
		"key for the own path":       {openAI("/ping", 0), map[string]int{"/ping": 401, "/health": 200}, denied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if status := c.status[r.RequestURI]; status > 0 {
					w.WriteHeader(status)
				} else {
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			t.Cleanup(s.Close)
			limit := 20 * time.Second
			if c.wantErr == notReady {
				limit = 50 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := WaitReady(ctx, s.Listener.Addr().String(), c.fn, nil)
			if c.wantErr == "" && err != nil || c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)) {
				t.Errorf("got error %v, want %q", err, cmp.Or(c.wantErr, "none"))
			}
		})
	}
	contract, err := WaitReady(t.Context(), newServer(t, 404, "/ping"), function.Function{Ready: function.Ready{Path: "/ping"}}, nil)
	if err != nil || contract != HTTP {
		t.Errorf("own check without a contract: got %q, %v; want %s", contract, err, HTTP)
	}
}

// TestWaitReadyExplainsFailure checks the error of WaitReady for functions that do not become ready, for an unknown
// contract, and for an instance that has ended.
func TestWaitReadyExplainsFailure(t *testing.T) {
	closed := newClosedAddress(t)
	status := func(s int) func(*testing.T) string { return func(t *testing.T) string { return newServer(t, s) } }
	text := func(reason string) func(*testing.T) string {
		return func(t *testing.T) string { return newUnreadyServer(t, reason) }
	}
	for _, c := range []struct {
		name           string
		address        func(*testing.T) string
		contract, want string
	}{
		{"loading", status(503), auto, "GET /healthz: status 503"},
		{"another contract", status(404), OpenFaaS, "GET /_/health: status 404"},
		{"refuses connections", func(*testing.T) string { return closed }, auto, "connection refused"},
		{"gives a reason", text("no kernel\x1b[31m daemon\nat /run\n"), auto, "GET /healthz: status 503: no kernel [31m daemon at /run)"},
		{"gives a long reason", text(strings.Repeat("é", 1000)), auto, "status 503: " + strings.Repeat("é", 200) + "…)"},
		{"gives a reason in HTML", text("<html>wait"), auto, "status 503)"},
		{"stalls", newStallingServer, auto, "GET /healthz: status 503"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var err error
			for limit := time.Second; limit < 20*time.Second; limit *= 4 { // the first limit may be too short for an answer
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				_, err = WaitReady(ctx, c.address(t), function.Function{Contract: c.contract}, nil)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), c.want) {
					return
				}
			}
			t.Errorf("got error %v, want deadline exceeded and %q", err, c.want)
		})
	}
	if _, err := WaitReady(t.Context(), closed, function.Function{Contract: "soap"}, nil); err == nil || !strings.Contains(err.Error(), `unknown contract "soap"`) {
		t.Errorf("contract soap: got error %v, want one about the contract", err)
	}
	exited := errors.New("exited with status 3")
	_, err := WaitReady(t.Context(), closed, function.Function{Contract: auto}, func(context.Context) error { return exited })
	if !errors.Is(err, exited) {
		t.Errorf("exited instance: got error %v, want %v", err, exited)
	}
}

// TestWaitReadyRepeatsProbes waits for a function that becomes ready at the fourth probe.
func TestWaitReadyRepeatsProbes(t *testing.T) {
	var probes atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if probes.Add(1) < 4 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	got, err := WaitReady(t.Context(), s.Listener.Addr().String(), function.Function{Contract: auto}, func(context.Context) error { return nil })
	if got != HTTP || err != nil || probes.Load() != 4 {
		t.Errorf("got contract %q, %v after %d probes, want http after 4", got, err, probes.Load())
	}
}

// TestProbePauses checks the pauses between probes: after a time T without readiness, the next probe is at most T/8
// later, and there are at most a thousand probes in two minutes.
func TestProbePauses(t *testing.T) {
	probes := 0
	for now := time.Duration(0); now < 2*time.Minute; probes++ {
		pause := pauseAfter(now)
		if limit := max(now/8, firstPause); pause <= 0 || pause > limit {
			t.Fatalf("after %v: got a pause of %v, want at most %v", now, pause, limit)
		}
		now += pause
	}
	if probes > 1000 {
		t.Errorf("got %d probes, want at most 1000", probes)
	}
}

// recordAt returns the record of an instance of the function with that name.
func recordAt(address, contract, name string) *instance.Record {
	return &instance.Record{ID: name + "-0", Function: name, Contract: contract, Handle: instance.Handle{Address: address}}
}

// TestInvoke checks the method, the path and the headers of a call under each contract, and that Invoke passes on the
// status and the body of the answer.
func TestInvoke(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Seen", strings.Join([]string{r.Method, r.URL.EscapedPath(), r.Host, r.Header.Get("Content-Type"), r.Header.Get("X-A")}, "|"))
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(body)
	}))
	defer s.Close()
	address, client := s.Listener.Addr().String(), NewClient()
	defer client.Close()
	for _, c := range []struct {
		contract, function string
		header             http.Header
		seen               string // the request that the function receives: method, path, host, content type and X-A
	}{
		{HTTP, "f", nil, "POST|/|" + address + "||"},
		{auto, "f", http.Header{"x-a": {"1"}, "Content-Type": {"text/plain"}}, "POST|/|" + address + "|text/plain|1"},
		{OpenFaaS, "f", http.Header{"Host": {"f.example"}}, "POST|/|f.example||"},
		{KServeV2, "a/b", nil, "POST|/v2/models/a%2Fb/infer|" + address + "|application/json|"},
		{OpenAI, "f", nil, "POST|/v1/chat/completions|" + address + "|application/json|"},
	} {
		response, err := client.Invoke(t.Context(), recordAt(address, c.contract, c.function), ports.Call{Header: c.header, Body: strings.NewReader("body")})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(body) != "body" || response.StatusCode != http.StatusTeapot || response.Header.Get("Seen") != c.seen {
			t.Errorf("contract %s: got status %d, body %q, request %q, %v; want 418, \"body\" and %q",
				c.contract, response.StatusCode, body, response.Header.Get("Seen"), err, c.seen)
		}
	}
	if _, err := client.Invoke(t.Context(), recordAt(address, HTTP, "f"), ports.Call{Header: http.Header{"Content-Length": {"x"}}}); err == nil {
		t.Error("Content-Length x: got no error, want one")
	}
	if _, err := client.Invoke(t.Context(), recordAt(address, "soap", "f"), ports.Call{}); err == nil {
		t.Error("contract soap: got no error, want one")
	}
}
