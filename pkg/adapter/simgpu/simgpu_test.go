package simgpu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newFolder creates a folder with the files of two devices and an unrelated file.
func newFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a[b]") // the code under test must not use it as a pattern
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GFAAS_SIM_DIR", dir)
	for _, name := range []string{"gpu0.state", "gpu0.mem.0.1", "gpu0.mem.3.2", "gpu1.state", "gpu1.mem.0.1", "notes"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// names returns the names of the files in a folder, separated by spaces.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// TestSweep checks that Sweep removes the files of the GPUs that no process uses, and only those.
func TestSweep(t *testing.T) {
	dir := newFolder(t)
	f, err := os.OpenFile(filepath.Join(dir, "gpu1.state"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// A lock of the open file description acts like another process's lock; a lock of
	// this process would not conflict.
	slot := unix.Flock_t{Type: unix.F_WRLCK, Start: lockSlot + 4, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &slot); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != "gpu1.mem.0.1 gpu1.state notes" {
		t.Errorf("files after Sweep with a process on GPU 1: got %s, want gpu1.mem.0.1 gpu1.state notes", got)
	}
	slot.Type = unix.F_UNLCK
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &slot); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != "notes" {
		t.Errorf("files after Sweep without a process: got %s, want notes", got)
	}
	if err := Sweep(); err != nil {
		t.Errorf("second Sweep: %v", err)
	}
}

// TestRetain checks that Sweep does not remove a folder between Retain and Release.
func TestRetain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	t.Setenv("GFAAS_SIM_DIR", dir)
	if err := Release("f-0"); err != nil {
		t.Error(err)
	}
	if err := Retain("f-0"); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != "keep.f-0" {
		t.Errorf("files after Retain and Sweep: got %s, want keep.f-0", got)
	}
	if err := Release("f-0"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != "" {
		t.Errorf("files after Release: got %s, want none", got)
	}
}

func TestDir(t *testing.T) {
	t.Setenv("GFAAS_SIM_DIR", "")
	if got := Dir(); !strings.HasPrefix(got, "/dev/shm/gfaas-sim-") {
		t.Errorf("got %s, want a path that begins with /dev/shm/gfaas-sim-", got)
	}
}
