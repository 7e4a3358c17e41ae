package swarm_test

import (
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/gfaas/gfaas/pkg/adapter/docker/dockertest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/swarm"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// fleet returns the folder of the fleet that make fleet-check has started (testdata/fleet), or skips the test.
func fleet(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("GFAAS_FLEET")
	if dir == "" {
		t.Skip("needs a swarm of several engines: make fleet-check")
	}
	return dir
}

// engine returns a client of the engine of a node.
func engine(t *testing.T, dir, node string) *client.Client {
	t.Helper()
	c, err := client.NewClientWithOpts(client.WithHost("unix://"+filepath.Join(dir, node, "run/docker.sock")), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// overlayVariable names the image of the tests in a process that runs on the overlay network.
const overlayVariable = "GFAAS_FLEET_IMAGE"

// onOverlay runs the test again in a process in the network namespace of a container on the overlay network,
// where addresses of tasks can be reached. In that process, it returns the name of the image of the probe.
func onOverlay(t *testing.T) (name string) {
	t.Helper()
	dir := fleet(t)
	if name = os.Getenv(overlayVariable); name != "" {
		return name
	}
	name = "gfaas-conformance:" + preload.NewSecret()[:12]
	first := engine(t, dir, "node1")
	// The nodes preload these libraries into the program.
	files := dockertest.Probe(t, instancetest.BuildProbe(t), "../../../build/lib/libgfaas.so", "../../../build/lib/sim/libcuda.so.1")
	dockertest.Import(t, first, name, files, `ENTRYPOINT ["/probe"]`)
	nodes, err := filepath.Glob(filepath.Join(dir, "node[0-9]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range nodes {
		copyImage(t, first, engine(t, dir, filepath.Base(path)), name)
	}
	cmd := exec.CommandContext(t.Context(), "../../../testdata/fleet/fleet", "overlay", os.Args[0], "-test.run="+flag.Lookup("test.run").Value.String(), "-test.v=true", "-test.timeout=20m")
	cmd.Env = append(os.Environ(), overlayVariable+"="+name, "DOCKER_HOST=unix://"+filepath.Join(dir, "node1/run/docker.sock"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return ""
}

// copyImage copies an image to another engine, on which it keeps its ID.
func copyImage(t *testing.T, from, to *client.Client, name string) {
	t.Helper()
	saved, err := from.ImageSave(t.Context(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	loaded, err := to.ImageLoad(t.Context(), saved)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, loaded.Body)
	_ = loaded.Body.Close()
	t.Cleanup(func() {
		_, _ = to.ImageRemove(context.WithoutCancel(t.Context()), name, image.RemoveOptions{Force: true})
	})
}

func newRuntime(t *testing.T) *swarm.Runtime {
	t.Helper()
	r, err := swarm.New(t.Context(), swarm.Config{Network: swarm.DefaultNetwork})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestConformance(t *testing.T) {
	name := onOverlay(t)
	if name == "" {
		return
	}
	instancetest.Run(t, instancetest.Suite{
		OperationTimeout: time.Minute,
		New:              func(t *testing.T) ports.Runtime { return newRuntime(t) },
		Spec: func(*testing.T) instance.Spec {
			return instance.Spec{Image: name, Port: 9000, GPUs: []string{"node2/sim"}, Slice: gpu.Slice{SMPct: 24.5}}
		},
	})
}
