package gfaas

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"
)

// What is asked of the engine leaves no connection to it behind.
func TestProbeDockerCloses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.45")
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"Version":"99.9"}`)
		}
	}))
	_ = engine.Listener.Close()
	engine.Listener = l
	closed := make(chan net.Conn, 16)
	engine.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- c
		}
	}
	engine.Start()
	defer engine.Close()
	t.Setenv("DOCKER_HOST", "unix://"+path)
	tool := &tool{runDir: t.TempDir()}
	if c := tool.probeDocker(t.Context()); c.Status != checkOK || c.Detail != "version 99.9" {
		t.Fatalf("got %+v", c)
	}
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("the connection is still open")
	}
}
