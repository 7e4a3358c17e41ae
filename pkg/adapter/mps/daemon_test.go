package mps_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
)

func TestFake(t *testing.T) { mpstest.Suite(t, mpstest.Install(t)) }

// TestReal runs on machines with NVIDIA's program and a GPU.
func TestReal(t *testing.T) {
	program, err := exec.LookPath("nvidia-cuda-mps-control")
	if err != nil {
		t.Skip("nvidia-cuda-mps-control is not on this machine")
	}
	mpstest.Suite(t, program)
}

func TestStartFails(t *testing.T) {
	d := mps.Daemon{Program: mpstest.Install(t), Dir: t.TempDir()}
	if err := os.MkdirAll(d.PipeDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.PipeDir(), "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "Cannot bind") {
		t.Errorf("error = %v, want what the program said", err)
	}
}

// TestEnvironment checks that the daemon serves all GPUs and clients, whatever the
// environment of its starter.
func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "5",
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G", "CUDA_MPS_PIPE_DIRECTORY": "/nowhere", "KEPT": "yes",
	} {
		t.Setenv(name, value)
	}
	d := mps.Daemon{Program: mpstest.Install(t), Dir: t.TempDir()}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(d.PipeDir(), "environ"))
	if err := errors.Join(err, d.Stop(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "CUDA_") || strings.HasPrefix(line, "KEPT") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	slices.Sort(got)
	want := []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(d.Dir, "log"),
		"CUDA_MPS_PIPE_DIRECTORY=" + d.PipeDir(), "KEPT=yes"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReason(t *testing.T) {
	d := mps.Daemon{Dir: t.TempDir()}
	if got := d.Reason(); got != "it logged nothing" {
		t.Errorf("without logs: %q, want it logged nothing", got)
	}
	if err := os.MkdirAll(filepath.Join(d.Dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []struct{ name, text, want string }{
		{"control.log", "started\nno server\n", "no server"},
		{"server.log", "up\nfatal exception\n\n", "fatal exception"},
	} {
		if err := os.WriteFile(filepath.Join(d.Dir, "log", file.name), []byte(file.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := d.Reason(); got != file.want {
			t.Errorf("with %s: %q, want %q", file.name, got, file.want)
		}
	}
}
