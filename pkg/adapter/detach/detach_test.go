package detach

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inherit opens a descriptor with the given number, or the next free one, without
// O_CLOEXEC, as shells do.
func inherit(t *testing.T, number int) int {
	t.Helper()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD, number)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// limit lowers the limit on open files. It does not close descriptors beyond it.
func limit(t *testing.T, files uint64) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	set := func(l unix.Rlimit) {
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &l, nil); err != nil {
			t.Fatal(err)
		}
	}
	set(unix.Rlimit{Cur: files, Max: before.Max})
	t.Cleanup(func() { set(before) })
}

func TestStart(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// Uses only shell builtins, so that the shell opens only the folder, after all other
	// descriptors.
	const listing = `for fd in /proc/$$/fd/*; do printf '%s ' "${fd##*/}"; done; read -r pid x y z p session rest </proc/$$/stat; test $pid = $session`
	const limited = 128
	for name, c := range map[string]struct {
		inherited []int
		files     []*os.File
		last      int // the command's highest descriptor
	}{
		"none":                    {last: 2},
		"low":                     {inherited: []int{40}, last: 2},
		"beyond the limit":        {inherited: []int{200}, last: 2},
		"at the limit":            {inherited: []int{limited}, last: 2},
		"many":                    {inherited: []int{40, 127, 128, 129, 300}, last: 2},
		"with files of its own":   {inherited: []int{40}, files: []*os.File{file}, last: 3},
		"with files, beyond":      {inherited: []int{200}, files: []*os.File{file, file, file}, last: 5},
		"more files than numbers": {files: []*os.File{file, file, file, file}, last: 6},
	} {
		t.Run(name, func(t *testing.T) {
			var open []int
			for _, number := range c.inherited {
				open = append(open, inherit(t, number))
			}
			limit(t, limited)
			var out strings.Builder
			cmd := exec.Command("sh", "-c", listing)
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := Start(cmd, c.files...); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("the command failed: %v, want it to lead a session: %s", err, &out)
			}
			var want []string
			for fd := range c.last + 1 {
				want = append(want, fmt.Sprint(fd))
			}
			// One descriptor may be the folder's.
			if got := strings.Fields(out.String()); len(got) > len(want)+1 || strings.Join(got[:min(len(got), len(want))], " ") != strings.Join(want, " ") {
				t.Errorf("its descriptors: %s, want %s", got, want)
			}
			// A program that is to inherit them still does.
			for _, fd := range open {
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags != 0 {
					t.Errorf("descriptor %d afterwards: flags %d, %v; want 0", fd, flags, err)
				}
			}
		})
	}
}

// If the command cannot be started, the flags are restored as well.
func TestStartFails(t *testing.T) {
	fd := inherit(t, 200)
	if err := Start(exec.Command("/nonexistent")); err == nil {
		t.Error("start of a missing program: got no error, want one")
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags != 0 {
		t.Errorf("flags %d, %v; want 0", flags, err)
	}
}

// TestInheriting runs both kinds of starts concurrently: each command gets the descriptors
// meant for it.
func TestInheriting(t *testing.T) {
	fd := inherit(t, 200)
	done := make(chan error)
	go func() {
		for range 20 {
			cmd := exec.Command("test", "!", "-e", fmt.Sprintf("/proc/self/fd/%d", fd))
			if err := Start(cmd); err != nil {
				done <- err
				return
			}
			if err := cmd.Wait(); err != nil {
				done <- fmt.Errorf("a detached command has descriptor %d: %w", fd, err)
				return
			}
		}
		done <- nil
	}()
	for range 20 {
		cmd := exec.Command("test", "-e", fmt.Sprintf("/proc/self/fd/%d", fd))
		if err := Inheriting(cmd.Start); err != nil {
			t.Error(err)
		} else if err := cmd.Wait(); err != nil {
			t.Errorf("command with the inherited descriptor %d: %v, want it to find the descriptor", fd, err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
