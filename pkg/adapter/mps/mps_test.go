package mps

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", dir)
	t.Setenv("PATH", dir)
	if s := Probe(); s != (Status{PipeDir: dir}) {
		t.Errorf("Probe without MPS: got %+v, want only the pipe folder %s", s, dir)
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
		"2147483646":                     0, // above every possible PID
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

// TestProbeOthers checks that a daemon in the default folder, which any user can create,
// counts only if its files belong to root or to us, and that Probe never blocks on them.
func TestProbeOthers(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for name, put := range map[string]func(dir, file string) error{
		"pipe":   func(_, file string) error { return unix.Mkfifo(file, 0o600) },
		"folder": func(_, file string) error { return os.Mkdir(file, 0o700) },
		"link": func(dir, file string) error {
			elsewhere := filepath.Join(dir, "elsewhere")
			return errors.Join(os.WriteFile(elsewhere, []byte(own), 0o600), os.Symlink(elsewhere, file))
		},
		"long": func(_, file string) error {
			return os.WriteFile(file, []byte(own+strings.Repeat("\n", maxPIDFile)), 0o600)
		},
		"another user's file": func(_, file string) error {
			return errors.Join(os.WriteFile(file, []byte(own), 0o644), os.Chown(file, 65534, 65534))
		},
		"another user's folder": func(dir, file string) error {
			return errors.Join(os.WriteFile(file, []byte(own), 0o644), os.Chown(dir, 65534, 65534))
		},
		"another user's link": func(dir, file string) error {
			behind := dir + ".behind"
			return errors.Join(os.WriteFile(file, []byte(own), 0o600), os.Rename(dir, behind), os.Symlink(behind, dir), os.Lchown(dir, 65534, 65534))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "another") && os.Geteuid() != 0 {
				t.Skip("only root can make one")
			}
			dir := filepath.Join(t.TempDir(), "pipes")
			if err := errors.Join(os.Mkdir(dir, 0o755), put(dir, filepath.Join(dir, control+".pid"))); err != nil {
				t.Fatal(err)
			}
			probed := make(chan Status, 1)
			go func() { probed <- ProbeDir(dir + "/") }()
			select {
			case s := <-probed:
				if s.Running() {
					t.Errorf("%s: got %+v, want MPS not running", name, s)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: no result of the probe within 20s, want one without waiting for a writer", name)
			}
		})
	}
}

// TestProbeZombie checks that an ended process that was not reaped does not count as running.
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
			t.Fatal("MPS counts as running 20s after its process became a zombie, want it not running")
		}
	}
}

func TestDefaultFolder(t *testing.T) {
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "")
	if s := Probe(); s.PipeDir != defaultDir {
		t.Errorf("got %+v, want PipeDir %v", s, defaultDir)
	}
}
