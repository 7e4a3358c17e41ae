package docker_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/docker/dockertest"
	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Stop ends the GPU work of a container's processes before it kills the container, and only
// if it kills.
func TestStopTerminatesClients(t *testing.T) {
	const server = 4<<20 + 1 // beyond the range of PIDs
	engine := connect(t)
	image := importImage(t, engine, "client", dockertest.Probe(t, mpstest.Client(t)))
	for name, c := range map[string]struct {
		sigterm   string // the client's reaction
		cancelled bool
		outside   bool // the container has no MPS daemon
		want      int
	}{
		"ignores SIGTERM":               {sigterm: "ignore", want: 1},
		"catches SIGTERM":               {sigterm: "catch"},
		"to be killed":                  {sigterm: "catch", cancelled: true, want: 1},
		"ignores SIGTERM, without MPS":  {sigterm: "ignore", outside: true},
		"first process, does not catch": {sigterm: "default", want: 1}, // the kernel drops the signal
	} {
		t.Run(name, func(t *testing.T) {
			mpstest.Install(t)
			t.Setenv("CUDA_MPS_PIPE_DIRECTORY", t.TempDir())
			dir := t.TempDir()
			pipes := mps.PipeDir(dir)
			mpstest.Start(t, pipes, server)
			r, err := docker.New(t.Context(), docker.Config{RunDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			config := &container.Config{Image: image, Entrypoint: []string{"/probe", c.sigterm}, User: fmt.Sprint(os.Getuid())}
			if !c.outside {
				config.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipes}
			}
			created, err := engine.ContainerCreate(t.Context(), config, nil, nil, nil, "")
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = engine.ContainerRemove(context.Background(), created.ID, container.RemoveOptions{Force: true})
			}()
			if err := engine.ContainerStart(t.Context(), created.ID, container.StartOptions{}); err != nil {
				t.Fatal(err)
			}
			h := instance.Handle{Runtime: instance.Docker, Container: created.ID}
			eventually(t, "the client is ready", func() bool {
				out, err := engine.ContainerLogs(t.Context(), created.ID, container.LogsOptions{ShowStdout: true})
				if err != nil {
					t.Fatal(err)
				}
				defer out.Close()
				n, _ := out.Read(make([]byte, 64))
				return n > 0
			})
			pid, err := r.PID(t.Context(), h)
			if err != nil || pid == 0 {
				t.Fatalf("PID of the container's process: got %d, %v; want one", pid, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancelled {
				cancel()
			}
			grace := time.Second
			if c.sigterm == "catch" {
				grace = time.Minute
			}
			if err := r.Stop(ctx, h, grace); err != nil {
				t.Error(err)
			}
			if state, err := r.State(t.Context(), h); err != nil || state.Running || state.Detail != "gone" {
				t.Errorf("afterwards it is %+v, %v; want Running false and Detail gone", state, err)
			}
			var want []string
			for range c.want {
				want = append(want, fmt.Sprint(server, " ", pid))
			}
			if got := mpstest.Terminated(t, pipes); !slices.Equal(got, want) {
				t.Errorf("terminated %q, want %q", got, want)
			}
		})
	}
}
