package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// serve serves handler on the socket of a new run directory.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("unix", Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	client := Dial(dir)
	t.Cleanup(func() {
		client.Close()
		_ = server.Close()
	})
	return client
}

func TestStatus(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/system/status":
			_, _ = io.WriteString(w, `{"gpus":[{"gpu":"sim","slots":2}],"functions":[],"instances":[]}`)
		case "/echo":
			_, _ = fmt.Fprintf(w, "%q", string(body))
		case "/refuse":
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"code":"no-function","message":"there is no such function"}}`)
		case "/broken":
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<html>")
		case "/torn":
			_, _ = io.WriteString(w, `{"gpus":`)
		case "/redirect":
			http.Redirect(w, r, "http://elsewhere/", http.StatusFound)
		}
	})
	s, err := client.Status(t.Context())
	if err != nil || len(s.GPUs) != 1 || s.GPUs[0].GPU != "sim" || *s.GPUs[0].Slots != 2 {
		t.Errorf("status: got %+v, %v; want the GPU sim with 2 slots", s, err)
	}
	var echoed string
	if err := client.Do(t.Context(), http.MethodPost, "/echo", map[string]int{"replicas": 2}, &echoed); err != nil || echoed != `{"replicas":2}` {
		t.Errorf(`echo %q, %v; want {"replicas":2}`, echoed, err)
	}
	for path, want := range map[string]Error{
		"/refuse":   {Status: 404, Code: "no-function"},
		"/broken":   {Status: 502},
		"/torn":     {},
		"/redirect": {Status: 302},
	} {
		var e *Error
		if err := client.Do(t.Context(), http.MethodGet, path, nil, &s); !errors.As(err, &e) || e.Status != want.Status || e.Code != want.Code || e.Missing {
			t.Errorf("%s: %v, want %+v", path, err, want)
		}
	}
}

func TestMissing(t *testing.T) {
	client := Dial(t.TempDir())
	_, err := client.Status(t.Context())
	var e *Error
	if !errors.As(err, &e) || !e.Unavailable() || e.Hint() == "" {
		t.Errorf("status without a gateway: got the error %v, want one that there is no gateway", err)
	}
}
