package docker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/instance"
)

// If the engine disappears during Wait, that proves nothing about the container: Wait asks
// again when the engine is back.
func TestWaitOutlivesTheEngine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var binding atomic.Int32 // number of requests for the container's state
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.45")
		switch {
		case strings.HasSuffix(r.URL.Path, "/_ping"):
		case strings.HasSuffix(r.URL.Path, "/wait"):
			panic(http.ErrAbortHandler) // the engine disappears
		case binding.Add(1) == 1:
			http.Error(w, `{"message":"not up yet"}`, http.StatusInternalServerError)
		case binding.Load() == 2: // the engine is back, and so is the container
			_, _ = io.WriteString(w, `{"Id":"c","State":{"Running":true,"Status":"running"}}`)
		default:
			_, _ = io.WriteString(w, `{"Id":"c","State":{"Running":false,"ExitCode":3}}`)
		}
	}))
	_ = engine.Listener.Close()
	engine.Listener = l
	engine.Start()
	defer engine.Close()
	t.Setenv("DOCKER_HOST", "unix://"+path)
	r, err := docker.New(t.Context(), docker.Config{RunDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h := instance.Handle{Runtime: instance.Docker, Container: "c"}
	if state, err := r.Wait(t.Context(), h); err != nil || state.Running || state.ExitCode != 3 || binding.Load() != 3 {
		t.Errorf("Wait: got %+v, %v after %d requests, want an end with status 3 after 3", state, err, binding.Load())
	}
	binding.Store(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Wait(ctx, h); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with a cancelled context: got the error %v, want %v", err, context.Canceled)
	}
}
