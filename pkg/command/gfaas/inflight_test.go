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

// slowEngine passes requests on to the Docker engine. Those that create a container
// it keeps back until it is told, and then they take place though nobody waits for
// them any more.
type slowEngine struct {
	created chan struct{} // a request is kept back
	let     chan struct{} // closed: it goes on
	done    chan struct{} // closed: it has been answered
}

func newSlowEngine(t *testing.T, path string) *slowEngine {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &slowEngine{created: make(chan struct{}, 1), let: make(chan struct{}), done: make(chan struct{})}
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
		defer close(s.done)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		s.created <- struct{}{}
		<-s.let
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
			t.Errorf("the engine answers %d: %s", answer.StatusCode, text)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// An up that is killed while the engine makes its container, and a down that comes
// before the container does, leave one that the next up takes away, or the next down.
func TestCreateInFlight(t *testing.T) {
	for _, next := range [][]string{{"down"}, {"up", "plan.json"}} {
		t.Run(next[0], func(t *testing.T) {
			p := dockerPlace(t)
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
				t.Errorf("after down: %s", text)
			}
			// The engine looks whether the folders are there before it begins.
			folder := tokend.InstanceSocketDir(filepath.Join(p.dir, "run"), "boxed-0")
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			close(slow.let)
			<-slow.done
			if err := os.Remove(folder); err != nil {
				t.Error(err)
			}
			if n := containers(t, image); n != 1 {
				t.Fatalf("%d containers were made, want the one that was on its way", n)
			}
			if text := p.output("ps", "-o", "csv"); !strings.Contains(text, "boxed-0,boxed,docker,") || !strings.Contains(text, ",lost,") {
				t.Errorf("nobody knows of it:\n%s", text)
			}
			p.output(next...)
			want := 0
			if next[0] == "up" {
				want = 1
			}
			if n := containers(t, image); n != want {
				t.Errorf("%d containers after gfaas %v, want %d", n, next, want)
			}
			p.output("down")
			p.nothing()
			if n := containers(t, image); n != 0 {
				t.Errorf("%d containers are left", n)
			}
		})
	}
}
