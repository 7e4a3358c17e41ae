package simgpu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Two user IDs that are presumably unused on this host.
const (
	victim   = 64986
	attacker = 64987
)

// asVictim runs one of the package's operations as another user, without GFAAS_SIM_DIR.
func asVictim(t *testing.T, operation string) (string, error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"SIMGPU_TEST_DO=" + operation}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: victim, Gid: victim}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// do performs an operation in the process that asVictim starts.
func do(operation string) error {
	switch operation {
	case "retain":
		return Retain("f-0")
	case "ensure":
		_, err := Ensure()
		return err
	case "release":
		return Release("f-0")
	case "sweep":
		return Sweep()
	case "memory":
		_, err := ProcessMemory(Dir(), 0)
		return err
	}
	return errors.New("no such operation")
}

// newVictim creates and returns a home folder of the victim, and returns the path of the victim's default folder of
// simulated GPUs, which does not exist yet. It skips the test unless root runs it.
func newVictim(t *testing.T) (home, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can be two users")
	}
	dir = fmt.Sprintf("/dev/shm/gfaas-sim-%d", victim)
	if _, err := os.Lstat(dir); err == nil {
		t.Fatalf("%s exists before the test, want no such folder", dir)
	}
	home, err := os.MkdirTemp("/dev/shm", "simgpu-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home); os.RemoveAll(dir) })
	if err := errors.Join(os.Chown(home, victim, victim), os.Chmod(home, 0o755)); err != nil {
		t.Fatal(err)
	}
	return home, dir
}

// writeVictimFile creates a file of the victim.
func writeVictimFile(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte("precious"), 0o600), os.Chown(path, victim, victim)); err != nil {
		t.Fatal(err)
	}
}

// expectUnchanged checks that a file that writeVictimFile has created still has its content.
func expectUnchanged(t *testing.T, path string) {
	t.Helper()
	if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
		t.Errorf("%s, a file of the victim: got content %q, %v; want precious", path, text, err)
	}
}

// TestFolderOfAnotherUser checks that no operation uses a folder that another user has created, with links to a file
// of the victim.
func TestFolderOfAnotherUser(t *testing.T) {
	home, dir := newVictim(t)
	file := filepath.Join(home, "file")
	writeVictimFile(t, file)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777), os.Symlink(file, filepath.Join(dir, "keep.f-0")),
		os.Symlink(file, filepath.Join(dir, "gpu0.state")), os.Chown(dir, attacker, attacker)); err != nil {
		t.Fatal(err)
	}
	for _, operation := range []string{"retain", "ensure", "memory"} {
		out, err := asVictim(t, operation)
		if err == nil || !strings.Contains(out, dir) || !strings.Contains(out, fmt.Sprintf("is owned by uid %d", attacker)) {
			t.Errorf("%s in another user's folder: got the error %v, want one that names the folder and its owner: %s", operation, err, out)
		}
	}
	for _, operation := range []string{"release", "sweep"} { // nothing to do: the folder is not the victim's
		if out, err := asVictim(t, operation); err != nil {
			t.Errorf("%s in another user's folder: got the error %v, want none: %s", operation, err, out)
		}
	}
	expectUnchanged(t, file)
	if got := names(t, dir); got != "gpu0.state keep.f-0" {
		t.Errorf("files in another user's folder: got %s, want gpu0.state keep.f-0", got)
	}
}

// TestFolderIsLink checks that no operation follows a link from the default folder to another folder of the victim.
func TestFolderIsLink(t *testing.T) {
	home, dir := newVictim(t)
	for _, name := range []string{"gpu0.state", "gpu0.mem.notes", "keep.f-0"} {
		writeVictimFile(t, filepath.Join(home, name))
	}
	if err := errors.Join(os.Symlink(home, dir), os.Lchown(dir, attacker, attacker)); err != nil {
		t.Fatal(err)
	}
	for _, operation := range []string{"retain", "ensure"} {
		if out, err := asVictim(t, operation); err == nil || !strings.Contains(out, "symbolic link") {
			t.Errorf("%s in a linked folder: got the error %v, want one about the symbolic link: %s", operation, err, out)
		}
	}
	for _, operation := range []string{"release", "sweep"} {
		if out, err := asVictim(t, operation); err != nil {
			t.Errorf("%s in a linked folder: got the error %v, want none: %s", operation, err, out)
		}
	}
	for _, name := range []string{"gpu0.state", "gpu0.mem.notes", "keep.f-0"} {
		expectUnchanged(t, filepath.Join(home, name))
	}
}

// TestFolderOfOnesOwn checks that all operations succeed without a folder of another user.
func TestFolderOfOnesOwn(t *testing.T) {
	_, dir := newVictim(t)
	for _, operation := range []string{"retain", "retain", "ensure", "memory", "sweep", "release", "sweep"} {
		if out, err := asVictim(t, operation); err != nil {
			t.Errorf("%s in the user's own folder: got the error %v, want none: %s", operation, err, out)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder %s at the end: got %v, want none", dir, err)
	}
}
