// Package detach has programs outlive the one that starts them.
package detach

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// Command has a command lead a session of its own, and keeps from it what our own
// starter left open beside the standard streams: it would hold a script's lock, or
// the end of a pipe that somebody reads to its end, for as long as it lives.
func Command(cmd *exec.Cmd) error {
	last, err := lastInherited()
	if err != nil {
		return err
	}
	cmd.ExtraFiles = make([]*os.File, max(last-2, 0)) // nil is closed
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
