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

// A new connection for each failed request would add to the latencies.
func TestFailedRequestsReuseConnections(t *testing.T) {
	var made atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, strings.Repeat("a long story ", 4000))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
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
		if err := send(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "status 500 Internal Server Error: a long story") || len(err.Error()) > 300 {
			t.Fatal(err)
		}
	}
	if n := made.Load(); n != 1 {
		t.Errorf("%d connections for 20 requests, one after another", n)
	}
}
