package simtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Two users that no account on this machine should have.
const (
	victim   = 64984
	attacker = 64985
)

// TestUsualFolder checks that the default folder is used only if no other user can have
// put files into it.
func TestUsualFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can be two users")
	}
	dir := fmt.Sprintf("/dev/shm/gfaas-sim-%d", victim)
	for name, c := range map[string]struct {
		create  func(home string) error
		refused bool
	}{
		"not there":     {func(string) error { return nil }, false},
		"one's own":     {func(string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, victim, victim)) }, false},
		"another's":     {func(string) error { return mkdir(dir, 0o777, attacker) }, true},
		"open to all":   {func(string) error { return mkdir(dir, 0o777, victim) }, true},
		"open to group": {func(string) error { return mkdir(dir, 0o770, victim) }, true},
		"link":          {func(home string) error { return errors.Join(os.Symlink(home, dir), os.Lchown(dir, attacker, attacker)) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Lstat(dir); err == nil {
				t.Fatalf("%s exists before the test, want no such folder", dir)
			}
			h := newHost(t, "count=1,mem=1GiB")
			home, file := publish(t, h.build), ""
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := errors.Join(os.Chmod(home, 0o755), os.Chown(home, victim, victim), c.create(home)); err != nil {
				t.Fatal(err)
			}
			if c.refused && name != "link" { // a file that an attacker wants the victim to overwrite
				file = filepath.Join(home, "file")
				if err := errors.Join(os.WriteFile(file, []byte("precious"), 0o600), os.Chown(file, victim, victim),
					os.Symlink(file, filepath.Join(dir, "gpu0.state"))); err != nil {
					t.Fatal(err)
				}
			}
			cmd := h.command("", "several", "hold", "1")
			cmd.Path, cmd.Dir = filepath.Join(home, "several"), "/"
			cmd.Env = append(cmd.Env, "GFAAS_SIM_DIR=", "LD_LIBRARY_PATH="+home)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: victim, Gid: victim}}
			var output strings.Builder
			cmd.Stderr = &output
			out, err := run(cmd)
			if held := strings.Contains(out, "held"); held == c.refused || (err != nil) != c.refused {
				t.Errorf("program: got %v with the output %s, want a refusal: %v; messages: %s", err, out, c.refused, output.String())
			}
			if c.refused && !strings.Contains(output.String(), dir+" is not a folder that you own and only you can write to") {
				t.Errorf("messages of the program: got %q, want one that %s is not a folder of its own", output.String(), dir)
			}
			if file != "" {
				if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
					t.Errorf("file of the victim: got %q, %v; want \"precious\"", text, err)
				}
			}
			if name == "link" {
				if files, _ := filepath.Glob(filepath.Join(home, "gpu*")); files != nil {
					t.Errorf("files in the victim's folder: got %v, want none", files)
				}
			} else if _, err := os.Lstat(dir); !c.refused && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("folder %s at the end: got %v, want none", dir, err)
			}
		})
	}
}

func mkdir(dir string, mode os.FileMode, owner int) error {
	return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode), os.Chown(dir, owner, owner))
}

// publish copies the program and the driver to a folder that all users can read.
func publish(t *testing.T, build string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gfaas-simtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, from := range []string{"check/several", "lib/sim/libcuda.so.1"} {
		text, err := os.ReadFile(filepath.Join(build, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(from)), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
