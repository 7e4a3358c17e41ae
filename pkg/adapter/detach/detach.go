// Package detach has programs outlive the one that starts them.
package detach

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// Command has a command lead a session of its own, and keeps from it what our own
// starter left open beside the standard streams: it would hold a script's lock, or
// the end of a pipe that somebody reads to its end, for as long as it lives. It has
// these files of ours besides, from descriptor 3 on.
func Command(cmd *exec.Cmd, ours ...*os.File) error {
	last, err := lastInherited()
	if err != nil {
		return err
	}
	cmd.ExtraFiles = make([]*os.File, max(last-2, len(ours))) // nil is closed
	copy(cmd.ExtraFiles, ours)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return nil
}

// lastInherited is the highest descriptor that a program started from here would
// have; at least 2.
func lastInherited() (int, error) {
	files, err := procfs.OpenFiles()
	if err != nil {
		return 0, err
	}
	last := 2
	for _, fd := range files {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			last = max(last, fd)
		}
	}
	return last, nil
}

// Find looks for one of our programs: beside this one, then on PATH.
func Find(program string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if self, err = filepath.EvalSymlinks(self); err == nil {
			beside := filepath.Join(filepath.Dir(self), program)
			if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return beside, nil
			}
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor on PATH", program)
	}
	return filepath.Abs(path)
}
