package docker_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/docker/dockertest"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// startContainer starts the probe in a container that is stopped when the test ends.
func startContainer(t *testing.T, r *docker.Runtime, spec instance.Spec) instance.Handle {
	t.Helper()
	spec.ID, spec.Port, spec.GPUs, spec.Slice = "boxed", 9000, []string{"sim"}, gpu.Slice{SMPct: 100}
	h, err := r.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(context.Background(), h, 0); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return h
}

func eventually(t *testing.T, condition string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(engineTimeout); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v, want: %s", engineTimeout, condition)
		}
	}
}

func isAnswering(h instance.Handle) bool {
	response, err := http.Get("http://" + h.Address)
	if err == nil {
		_ = response.Body.Close()
	}
	return err == nil
}

// A container has no capabilities, cannot gain privileges and has limits: its function's or
// the defaults. If it is read-only, it can write only to /tmp.
func TestLimits(t *testing.T) {
	engine := connect(t)
	name := importImage(t, engine, "fence", dockertest.Probe(t, instancetest.BuildProbe(t)), `ENTRYPOINT ["/probe"]`)
	about, err := engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		spec   instance.Spec
		memory int64
		pids   int64
		cpus   int64
		root   string
	}{
		"as any": {instance.Spec{Image: name}, about.MemTotal / 10 * 8, 4096, 0, "rw"},
		"its own": {instance.Spec{Image: name, Limits: function.Limits{Memory: 100 * gpu.MiB, Pids: 50, CPUs: 0.5}, ReadOnly: true},
			100 << 20, 50, 5e8, "ro"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRuntime(t, newConfig(t))
			h := startContainer(t, r, c.spec)
			eventually(t, "the container answers", func() bool { return isAnswering(h) })
			pid, err := docker.PID(r, t.Context(), h)
			if err != nil || pid == 0 {
				t.Fatalf("PID of the container's process: got %d, %v; want one", pid, err)
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range []string{"NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"} {
				if !strings.Contains(string(status), line) {
					t.Errorf("status of the process: got no %q, want it, in\n%s", line, status)
				}
			}
			mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
			if err != nil {
				t.Fatal(err)
			}
			var root, tmp string
			for line := range strings.Lines(string(mounts)) {
				switch fields := strings.Fields(line); fields[1] {
				case "/":
					root, _, _ = strings.Cut(fields[3], ",")
				case "/tmp":
					tmp, _, _ = strings.Cut(fields[3], ",")
				}
			}
			if root != c.root || c.spec.ReadOnly && tmp != "rw" {
				t.Errorf("its root is %s and /tmp %s, want %s:\n%s", root, tmp, c.root, mounts)
			}
			info, err := engine.ContainerInspect(t.Context(), h.Container)
			if err != nil {
				t.Fatal(err)
			}
			host := info.HostConfig
			if host.Memory < c.memory-10 || host.Memory > c.memory+10 || host.PidsLimit == nil || *host.PidsLimit != c.pids || host.NanoCPUs != c.cpus {
				t.Errorf("limits: got memory %d, pids %v, cpus %d; want about %d, %d, %d", host.Memory, host.PidsLimit, host.NanoCPUs, c.memory, c.pids, c.cpus)
			}
		})
	}
}

// A container that the engine restarts keeps its address, and its state counts the
// restarts.
func TestRestart(t *testing.T) {
	engine := connect(t)
	name := importImage(t, engine, "restart", dockertest.Probe(t, instancetest.BuildProbe(t)), `ENTRYPOINT ["/probe"]`)
	r := newRuntime(t, newConfig(t))
	h := startContainer(t, r, instance.Spec{Image: name, Restart: "on-failure"})
	eventually(t, "the container answers", func() bool { return isAnswering(h) })
	pid, err := docker.PID(r, t.Context(), h)
	if err != nil || pid == 0 {
		t.Fatalf("PID of the container's process: got %d, %v; want one", pid, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another process of the container answers", func() bool {
		now, err := docker.PID(r, t.Context(), h)
		return err == nil && now != 0 && now != pid && isAnswering(h)
	})
	state, err := r.State(t.Context(), h)
	if err != nil || !state.Running || state.Restarts != 1 || !strings.Contains(state.Detail, "restarted once") {
		t.Errorf(`State = %+v, %v; want Running true, Restarts 1, Detail with "restarted once"`, state, err)
	}
	// The engine writes the log with some delay.
	eventually(t, "the log has the output of both processes", func() bool {
		text, err := ports.Text(r.Logs(t.Context(), h, ports.LogOptions{Tail: -1}))
		return err == nil && strings.Count(string(text), "listening\n") == 2
	})
}

// A container that exits immediately after each start does not count as running.
func TestRestartLoopIsNotRunning(t *testing.T) {
	engine := connect(t)
	name := importImage(t, engine, "restarts", dockertest.Probe(t, instancetest.BuildProbe(t)), `ENTRYPOINT ["/probe"]`)
	r := newRuntime(t, newConfig(t))
	h := startContainer(t, r, instance.Spec{Image: name, Restart: "always", Env: map[string]string{"PROBE_EXIT": "3"}})
	eventually(t, "the container was restarted", func() bool {
		state, err := r.State(t.Context(), h)
		return err == nil && state.Restarts > 0 && strings.Contains(state.Detail, "status 3")
	})
}

// The log of a container is stored, up to a size limit.
func TestLogIsBounded(t *testing.T) {
	engine := connect(t)
	name := importImage(t, engine, "prints", dockertest.Probe(t, instancetest.BuildProbe(t)), `ENTRYPOINT ["/probe"]`)
	r := newRuntime(t, newConfig(t))
	h := startContainer(t, r, instance.Spec{Image: name, Env: map[string]string{"PROBE_EXIT": "0", "PROBE_LONG": "30000000"}})
	if _, err := r.Wait(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	text, err := ports.Text(r.Logs(t.Context(), h, ports.LogOptions{Tail: -1}))
	if err != nil || len(text) > 18<<20 || !strings.HasSuffix(string(text), "x\nexiting\n") {
		t.Errorf("stored log: got %d bytes that end with %.20q, %v; want at most 18 MiB that end with \"exiting\"", len(text), text[max(0, len(text)-20):], err)
	}
}

// A requested limit that the engine cannot enforce is refused.
func TestUnsupportedLimitIsRefused(t *testing.T) {
	for what, limits := range map[string]function.Limits{"memory": {Memory: 1}, "pids": {Pids: 1}, "cpus": {CPUs: 1}} {
		err := docker.Fence(&container.HostConfig{}, instance.Spec{Limits: limits}, system.Info{})
		var missing *ports.UnavailableError
		if !errors.As(err, &missing) || !missing.Unavailable() || !strings.Contains(err.Error(), "cannot limit "+what) {
			t.Errorf("%s: got the error %v, want one that it cannot be limited", what, err)
		}
	}
	if err := docker.Fence(&container.HostConfig{}, instance.Spec{}, system.Info{}); err != nil {
		t.Errorf("start without limits: got the error %v, want none", err)
	}
}
