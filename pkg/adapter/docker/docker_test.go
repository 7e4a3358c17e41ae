package docker_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/docker/dockertest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const engineTimeout = time.Minute

// connect returns a client. It skips the test if no engine answers, and fails if CI is set.
func connect(t *testing.T) *client.Client {
	t.Helper()
	engine, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	if _, err := engine.Ping(t.Context()); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("no Docker engine: %v", err)
		}
		t.Skipf("no Docker engine, so containers are not tested: %v", err)
	}
	return engine
}

// importImage creates an image of files. Its cleanup removes the image, and fails the test if it left containers. The
// name is unique, so that other test runs on this engine do not interfere.
func importImage(t *testing.T, engine *client.Client, title string, files map[string]string, changes ...string) (name string) {
	t.Helper()
	name = "gfaas-" + title + ":" + preload.NewSecret()[:12]
	dockertest.Import(t, engine, name, files, changes...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
		defer cancel()
		remaining, err := engine.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("ancestor", name))})
		if err != nil || len(remaining) > 0 {
			t.Errorf("containers of %s at the end: got %d, %v; want 0", name, len(remaining), err)
		}
		if _, err := engine.ImageRemove(ctx, name, image.RemoveOptions{Force: true, PruneChildren: true}); err != nil {
			t.Errorf("remove image %s: %v", name, err)
		}
	})
	return name
}

func TestConformance(t *testing.T) {
	engine := connect(t)
	name := importImage(t, engine, "conformance", dockertest.Probe(t, instancetest.BuildProbe(t)), `ENTRYPOINT ["/bin/link"]`)
	config := newConfig(t)
	instancetest.Run(t, instancetest.Suite{
		OperationTimeout: engineTimeout,
		New:              func(t *testing.T) ports.Runtime { return newRuntime(t, config) },
		Spec: func(*testing.T) instance.Spec {
			return instance.Spec{Image: name, Port: 9000, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 24.5}}
		},
	})
}

// A start that is cancelled at any moment leaves no container; importImage checks that in
// its cleanup.
func TestCancelledStart(t *testing.T) {
	engine := connect(t)
	name := importImage(t, engine, "cancelled", dockertest.Probe(t, instancetest.BuildProbe(t)), `ENTRYPOINT ["/probe"]`)
	r := newRuntime(t, newConfig(t))
	for _, limit := range []time.Duration{5, 15, 30, 60, 120, 240} {
		ctx, cancel := context.WithTimeout(t.Context(), limit*time.Millisecond)
		h, err := r.Start(ctx, instance.Spec{ID: "cut", Image: name, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 100}})
		cancel()
		if err == nil {
			if err := r.Stop(t.Context(), h, 0); err != nil {
				t.Errorf("Stop of a start cancelled after %v: %v", limit, err)
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Start within %v: %v, want deadline exceeded", limit*time.Millisecond, err)
		}
	}
}

func newConfig(t *testing.T) docker.Config {
	t.Helper()
	hook, simDir := instancetest.BuildLibs(t)
	// Not the folder of other programs' simulated devices.
	t.Setenv("GFAAS_SIM_DIR", filepath.Join(t.TempDir(), "sim"))
	return docker.Config{RunDir: t.TempDir(), Libs: preload.Libs{Hook: hook, SimDir: simDir}, Network: networkOf(t)}
}

func newRuntime(t *testing.T, config docker.Config) *docker.Runtime {
	t.Helper()
	r, err := docker.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestRefusals(t *testing.T) {
	engine := connect(t)
	static := filepath.Join(t.TempDir(), "static")
	instancetest.Compile(t, static, []byte("int main(void) { return 0; }"), "-static")
	linked := importImage(t, engine, "static", map[string]string{"probe": static}, `ENTRYPOINT ["/probe"]`)
	none := importImage(t, engine, "none", map[string]string{"probe": static})
	user := importImage(t, engine, "user", map[string]string{"probe": static}, "USER 4321", `CMD ["/probe"]`)
	r := newRuntime(t, newConfig(t))
	for _, c := range []struct {
		name    string
		image   string
		command []string
		want    string
	}{
		{"static", linked, nil, "/probe is statically linked"},
		{"no program", none, nil, "names no program"},
		{"not on PATH", none, []string{"absent"}, "absent: command not found"},
		{"another user", user, nil, "runs as user 4321"},
		{"no such image", "127.0.0.1:9/gfaas-absent:1", nil, "is not on this engine and cannot be pulled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := r.Start(t.Context(), instance.Spec{
				ID: "refused", Image: c.image, Command: c.command, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 100},
			})
			if err == nil {
				_ = r.Stop(context.Background(), h, 0)
				t.Fatal("start: got no error, want one")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one with %q", err, c.want)
			}
			var u interface{ Unavailable() bool }
			if !errors.As(err, &u) || !u.Unavailable() {
				t.Errorf("error: got %v, want one that is Unavailable", err)
			}
		})
	}
}

func TestNoEngine(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(t.TempDir(), "none.sock"))
	_, err := docker.New(t.Context(), docker.Config{})
	var missing *ports.UnavailableError
	if !errors.As(err, &missing) || !missing.Unavailable() || missing.Hint() == "" {
		t.Errorf("error = %v, want an Unavailable one with a hint", err)
	}
}

// An engine that accepts connections but never answers counts as missing.
func TestEngineHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("DOCKER_HOST", "unix://"+path)
	_, err = docker.New(t.Context(), docker.Config{RunDir: t.TempDir(), EngineTimeout: 10 * time.Millisecond})
	var missing *ports.UnavailableError
	if !errors.As(err, &missing) || !missing.Unavailable() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want one of an engine that does not answer in time", err)
	}
}

// The PID of a container's process reveals whether it has loaded the library.
func TestPID(t *testing.T) {
	engine := connect(t)
	name := importImage(t, engine, "pid", dockertest.Probe(t, instancetest.BuildProbe(t)), `ENTRYPOINT ["/probe"]`)
	r := newRuntime(t, newConfig(t))
	h, err := r.Start(t.Context(), instance.Spec{ID: "pid", Image: name, Port: 9000, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 100}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Stop(context.WithoutCancel(t.Context()), h, 0) }()
	for end := time.Now().Add(engineTimeout); ; time.Sleep(10 * time.Millisecond) {
		pid, err := docker.PID(r, t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		hooked, known := preload.Hooked(pid)
		if known && hooked {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d after the start: got hooked %v, known %v", pid, hooked, known)
		}
	}
}
