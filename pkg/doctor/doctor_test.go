package doctor

import (
	"context"
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
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

func TestLadder(t *testing.T) {
	libs := preload.Libs{Hook: "/lib/libgfaas.so", SimDir: "/lib/sim"}
	for _, c := range []struct {
		name string
		m    hardware
		want string
	}{
		{"simulated", hardware{libs: libs}, "SM share: simulated driver; GPU time: token leases; GPU memory: preload library; idle memory: swap by the preload library"},
		{"MPS", hardware{driver: true, libs: libs, mps: mps.Status{PID: 1}}, "SM share: MPS thread percentage; GPU time: token leases; GPU memory: preload library; idle memory: swap by the preload library"},
		{"MPS not started", hardware{driver: true, libs: libs, mps: mps.Status{Program: "x"}}, "SM share: MPS thread percentage; GPU time: token leases; GPU memory: preload library; idle memory: swap by the preload library"},
		{"no MPS", hardware{driver: true, libs: libs}, "SM share: time only; GPU time: token leases; GPU memory: preload library; idle memory: swap by the preload library"},
		{"no library", hardware{driver: true}, ""},
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
	mig := hardware{driver: true, libs: libs, devices: []nvml.Device{{}, {MIG: true}}}
	if first := mig.ladder()[0]; !first.Found || first.Mechanism != "MIG instance" {
		t.Errorf("MIG: %+v, want Found true and Mechanism MIG instance", first)
	}
}

// TestCheckpoints checks that the driver's checkpoints are found if the driver supports them and this process may use
// them. Otherwise the ladder describes the missing dependency.
func TestCheckpoints(t *testing.T) {
	on := func(version string, mig bool) []nvml.Device { return []nvml.Device{{Driver: version, MIG: mig}} }
	for _, c := range []struct {
		m      hardware
		detail string
		found  bool
	}{
		{hardware{}, "CAP_SYS_PTRACE", false},
		{hardware{ptrace: true}, "preserves its addresses", false},
		{hardware{ptrace: true, libs: preload.Libs{SimDir: "sim"}}, "preserves its addresses", true},
		{hardware{driver: true, ptrace: true}, "unknown", false},
		{hardware{driver: true, ptrace: true, devices: on("550.54.15", false)}, "needs driver 570 or later", false},
		{hardware{driver: true, ptrace: true, devices: on("580.1", true)}, "MIG", false},
		{hardware{driver: true, devices: on("570.86", false)}, "CAP_SYS_PTRACE", false},
		{hardware{driver: true, ptrace: true, devices: on("570.86", false)}, "preserves its addresses", true},
	} {
		if r := c.m.parking()[0]; r.Found != c.found || r.Chosen || !strings.Contains(r.Detail, c.detail) {
			t.Errorf("%+v: %+v", c.m, r)
		}
	}
}

func TestProbeDriver(t *testing.T) {
	h200 := nvml.Device{Name: "NVIDIA H200", Mem: 141 * gpu.GiB, Driver: "570.1"}
	for _, c := range []struct {
		name   string
		m      hardware
		lib    fake
		status string
		detail string
	}{
		{"none", hardware{}, fake{Err: errors.New("must not be asked")}, Missing, "simulated"},
		{"one", hardware{driver: true}, fake{List: []nvml.Device{h200}}, OK, "version 570.1 | NVIDIA H200, 141GiB"},
		{"memory unknown", hardware{driver: true}, fake{List: []nvml.Device{{Name: "NVIDIA GB10", Driver: "580.1"}}}, OK,
			"version 580.1 | NVIDIA GB10, memory unknown | set --gpu-mem"},
		{"unknown on MIG", hardware{driver: true}, fake{List: []nvml.Device{{Name: "NVIDIA GB10", Driver: "580.1", MIG: true}}}, OK,
			"NVIDIA GB10, memory unknown, MIG enabled"},
		{"no GPU", hardware{driver: true}, fake{}, Bad, "no GPU"},
		{"cannot ask", hardware{driver: true}, fake{Err: &ports.UnavailableError{Err: errors.New("no tool")}}, OK, "no tool"},
	} {
		checks := c.m.probeDriver(t.Context(), c.lib)
		var notes []string
		for _, k := range checks {
			notes = append(notes, k.Detail)
			if strings.Contains(k.Hint, "--gpu-mem") {
				notes = append(notes, "set --gpu-mem")
			}
		}
		if got := strings.Join(notes, " | "); checks[0].Status != c.status || !strings.Contains(got, c.detail) {
			t.Errorf("%s: %s, %s; want %s, %s", c.name, checks[0].Status, got, c.status, c.detail)
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

// TestProbeDockerCloses checks that the probe leaves no connection to the engine open.
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
	m := Host{RunDir: t.TempDir()}
	if c := m.probeDocker(t.Context()); c.Status != OK || c.Detail != "version 99.9" {
		t.Fatalf("got %+v, want Status %v and Detail version 99.9", c, OK)
	}
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("the connection is still open")
	}
}

// fake is a lister with a fixed answer.
type fake struct {
	List []nvml.Device
	Err  error
}

func (f fake) Devices(context.Context) ([]nvml.Device, error) { return f.List, f.Err }
