package loadtest

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// TestFailedRequestsReuseConnections sends 20 requests, one after another, to a server that answers each with an error
// and a long body. All use one connection: the time to set up a new one would add to the latencies.
func TestFailedRequestsReuseConnections(t *testing.T) {
	var connections atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, strings.Repeat("a long story ", 4000))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	send, done := ToURL(u, Request{Method: http.MethodPost, Body: []byte("in")})
	defer done()
	for range 20 {
		const want = "status 500 Internal Server Error: a long story"
		if err := send(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) || len(err.Error()) > 300 {
			t.Fatalf("got the error %v, want one of at most 300 bytes that begins with %q", err, want)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("got %d connections for 20 requests, want 1", n)
	}
}
