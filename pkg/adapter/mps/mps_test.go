package mps

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", dir)
	t.Setenv("PATH", dir)
	if s := Probe(); s != (Status{PipeDir: dir}) {
		t.Errorf("nothing there: %+v", s)
	}
	program := filepath.Join(dir, control)
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		strconv.Itoa(os.Getpid()) + "\n": os.Getpid(),
		"":                               0,
		"none":                           0,
		"-1":                             0,
		"2147483646":                     0, // above any PID there can be
	} {
		if err := os.WriteFile(program+".pid", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := Probe()
		if s.Program != program || s.PID != want || s.Running() != (want != 0) {
			t.Errorf("PID file %q: %+v, want PID %d", text, s, want)
		}
	}
}

// TestProbeZombie: what has ended does not run, though nobody asked how.
func TestProbeZombie(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, control+".pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ProbeDir(dir).Running(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it runs still")
		}
	}
}

func TestDefaultFolder(t *testing.T) {
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "")
	if s := Probe(); s.PipeDir != defaultDir {
		t.Errorf("got %+v", s)
	}
}
