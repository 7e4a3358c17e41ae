package gfaas

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
)

// slowEngine forwards requests to the Docker engine. It delays requests that create a container until let is closed, and
// then performs them even if the client has given up.
type slowEngine struct {
	created  chan struct{} // receives a value when a request is delayed
	release  chan struct{} // close it to release the request
	answered chan struct{} // closed when the request has been answered
}

func newSlowEngine(t *testing.T, path string) *slowEngine {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &slowEngine{created: make(chan struct{}, 1), release: make(chan struct{}), answered: make(chan struct{})}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(engine(), "unix://"))
	}}
	direct := func(r *http.Request) { r.URL.Scheme, r.URL.Host = "http", "engine" }
	proxy := &httputil.ReverseProxy{Director: direct, Transport: transport}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/containers/create") {
			proxy.ServeHTTP(w, r)
			return
		}
		defer close(s.answered)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		s.created <- struct{}{}
		<-s.release
		out := r.Clone(context.Background())
		direct(out)
		out.Body, out.RequestURI = io.NopCloser(bytes.NewReader(body)), ""
		answer, err := transport.RoundTrip(out)
		if err != nil {
			t.Error(err)
			return
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusCreated {
			text, _ := io.ReadAll(answer.Body)
			t.Errorf("create a container: got status %d, want %d: %s", answer.StatusCode, http.StatusCreated, text)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// TestCreateInFlight kills an up while the engine creates its container, and runs a down before the container exists.
// The next up or down removes the container.
func TestCreateInFlight(t *testing.T) {
	t.Parallel()
	for _, next := range [][]string{{"down"}, {"up", "plan.json"}} {
		t.Run(next[0], func(t *testing.T) {
			t.Parallel()
			p := newDockerEnvironment(t)
			if !strings.HasPrefix(engine(), "unix://") {
				t.Skip("SKIPPED: the engine has no socket of this machine")
			}
			image := importImage(t, p)
			slow := newSlowEngine(t, filepath.Join(p.dir, "slow.sock"))
			p.write("f.yaml", "{name: boxed, image: "+image+"}")
			p.write("plan.json", planOf("boxed-0"))
			p.output("apply", "-f", "f.yaml")
			up := p.command("up", "plan.json")
			up.Env = append(up.Env, "DOCKER_HOST=unix://"+filepath.Join(p.dir, "slow.sock"))
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			<-slow.created
			_ = up.Process.Kill()
			_ = up.Wait()
			p.output("down")
			if text := p.output("ps", "-o", "json"); strings.TrimSpace(text) != "[]" {
				t.Errorf("gfaas ps after down: got %s, want no instances", text)
			}
			// The engine requires the mounted folders before it starts.
			folder := tokend.InstanceSocketDir(filepath.Join(p.dir, "run"), "boxed-0")
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			close(slow.release)
			<-slow.answered
			if err := os.Remove(folder); err != nil {
				t.Error(err)
			}
			if n := containers(t, image); n != 1 {
				t.Fatalf("containers after the delayed answer of the engine: got %d, want 1", n)
			}
			if text := p.output("ps", "-o", "csv"); !strings.Contains(text, "boxed-0,boxed,docker,") || !strings.Contains(text, ",lost,") {
				t.Errorf("gfaas ps with a container of a killed up: got\n%swant boxed-0 as lost", text)
			}
			p.output(next...)
			want := 0
			if next[0] == "up" {
				want = 1
			}
			if n := containers(t, image); n != want {
				t.Errorf("containers after gfaas %v: got %d, want %d", next, n, want)
			}
			p.output("down")
			p.checkNothingRemains()
			if n := containers(t, image); n != 0 {
				t.Errorf("containers at the end: got %d, want 0", n)
			}
		})
	}
}
