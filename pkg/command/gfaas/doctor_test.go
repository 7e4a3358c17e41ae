package gfaas

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
)

func TestLadder(t *testing.T) {
	libs := preload.Libs{Hook: "/lib/libgfaas.so", SimDir: "/lib/sim"}
	for _, c := range []struct {
		name string
		m    machine
		want string
	}{
		{"simulated", machine{libs: libs}, "SM share: simulated driver; GPU time: token leases; GPU memory: preload library; idle memory: swap by the preload library"},
		{"MPS", machine{driver: true, libs: libs, mps: mps.Status{PID: 1}}, "SM share: MPS thread percentage; GPU time: token leases; GPU memory: preload library; idle memory: swap by the preload library"},
		{"MPS not started", machine{driver: true, libs: libs, mps: mps.Status{Program: "x"}}, "SM share: MPS thread percentage; GPU time: token leases; GPU memory: preload library; idle memory: swap by the preload library"},
		{"no MPS", machine{driver: true, libs: libs}, "SM share: time only; GPU time: token leases; GPU memory: preload library; idle memory: swap by the preload library"},
		{"no library", machine{driver: true}, ""},
	} {
		var chosen []string
		for _, r := range c.m.ladder() {
			if r.Chosen && !r.Found || r.Purpose == "" || r.Detail == "" {
				t.Errorf("%s: %+v", c.name, r)
			}
			if r.Chosen {
				chosen = append(chosen, r.Purpose+": "+r.Mechanism)
			}
		}
		if got := strings.Join(chosen, "; "); got != c.want {
			t.Errorf("%s: chosen %s, want %s", c.name, got, c.want)
		}
	}
	mig := machine{driver: true, libs: libs, devices: []nvml.Device{{}, {MIG: true}}}
	if first := mig.ladder()[0]; !first.Found || first.Mechanism != "MIG instance" {
		t.Errorf("MIG: %+v", first)
	}
}

// TestCheckpoints: the driver's checkpoint is found where the driver has it and this
// process may use it, and the ladder says what is missing elsewhere.
func TestCheckpoints(t *testing.T) {
	on := func(version string, mig bool) []nvml.Device { return []nvml.Device{{Driver: version, MIG: mig}} }
	for _, c := range []struct {
		m     machine
		says  string
		found bool
	}{
		{machine{}, "CAP_SYS_PTRACE", false},
		{machine{ptrace: true}, "addresses kept", false},
		{machine{ptrace: true, libs: preload.Libs{SimDir: "sim"}}, "addresses kept", true},
		{machine{driver: true, ptrace: true}, "not known", false},
		{machine{driver: true, ptrace: true, devices: on("550.54.15", false)}, "drivers from 570 on", false},
		{machine{driver: true, ptrace: true, devices: on("580.1", true)}, "MIG", false},
		{machine{driver: true, devices: on("570.86", false)}, "CAP_SYS_PTRACE", false},
		{machine{driver: true, ptrace: true, devices: on("570.86", false)}, "addresses kept", true},
	} {
		if r := c.m.parking()[0]; r.Found != c.found || r.Chosen || !strings.Contains(r.Detail, c.says) {
			t.Errorf("%+v: %+v", c.m, r)
		}
	}
}

func TestProbeDriver(t *testing.T) {
	h200 := nvml.Device{Name: "NVIDIA H200", Mem: 141 * gpu.GiB, Driver: "570.1"}
	for _, c := range []struct {
		name   string
		m      machine
		lib    nvml.Fake
		status string
		says   string
	}{
		{"none", machine{}, nvml.Fake{Err: errors.New("must not be asked")}, checkMissing, "simulated"},
		{"one", machine{driver: true}, nvml.Fake{List: []nvml.Device{h200}}, checkOK, "version 570.1 | NVIDIA H200, 141GiB"},
		{"memory unknown", machine{driver: true}, nvml.Fake{List: []nvml.Device{{Name: "NVIDIA GB10", Driver: "580.1"}}}, checkOK,
			"version 580.1 | NVIDIA GB10, memory unknown | set --gpu-mem"},
		{"unknown on MIG", machine{driver: true}, nvml.Fake{List: []nvml.Device{{Name: "NVIDIA GB10", Driver: "580.1", MIG: true}}}, checkOK,
			"NVIDIA GB10, memory unknown, MIG enabled"},
		{"no GPU", machine{driver: true}, nvml.Fake{}, checkBad, "no GPU"},
		{"cannot ask", machine{driver: true}, nvml.Fake{Err: &nvml.UnavailableError{Err: errors.New("no tool")}}, checkOK, "no tool"},
	} {
		checks := c.m.probeDriver(t.Context(), c.lib)
		var said []string
		for _, k := range checks {
			said = append(said, k.Detail)
			if strings.Contains(k.Hint, "--gpu-mem") {
				said = append(said, "set --gpu-mem")
			}
		}
		if got := strings.Join(said, " | "); checks[0].Status != c.status || !strings.Contains(got, c.says) {
			t.Errorf("%s: %s, %s; want %s, %s", c.name, checks[0].Status, got, c.status, c.says)
		}
	}
}

func TestWritable(t *testing.T) {
	dir := t.TempDir()
	for path, ok := range map[string]bool{
		dir: true, dir + "/a/b/c": true, "/proc/version": false, "/proc/version/x": false,
	} {
		if err := writable(path); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}

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
