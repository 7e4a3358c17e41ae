// Package detach starts programs that outlive their starter, such as daemons and keepers of logs
// (Start), and finds their executables (Find).
package detach

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// inheriting guards the close-on-exec flags of inherited descriptors.
var inheriting sync.Mutex

// Start starts a command in a new session. The command gets its standard streams and, from
// descriptor 3 on, the given files. It gets no other inherited descriptors: otherwise, it
// would hold a script's lock, or the end of a pipe that a reader waits on, for as long as
// it runs.
func Start(cmd *exec.Cmd, files ...*os.File) error {
	inheriting.Lock()
	defer inheriting.Unlock()
	inherited, err := inherited()
	if err != nil {
		return err
	}
	// ExtraFiles could close them too, but only if all numbers up to the highest are below
	// the limit on open files, which a shell may have lowered afterwards.
	for _, fd := range inherited {
		unix.CloseOnExec(fd)
		defer func() { _, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) }() // cannot fail on an open descriptor
	}
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// Inheriting calls fork while no Start is in progress, so that the process that fork starts
// gets all descriptors that this process inherited.
func Inheriting(fork func() error) error {
	inheriting.Lock()
	defer inheriting.Unlock()
	return fork()
}

// inherited returns the descriptors above 2 without close-on-exec.
func inherited() (found []int, err error) {
	files, err := procfs.OpenFiles()
	if err != nil {
		return nil, err
	}
	for _, fd := range files {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && fd > 2 && flags&unix.FD_CLOEXEC == 0 {
			found = append(found, fd)
		}
	}
	return found, nil
}

// Find finds a program of gfaas, in the folder of this program or on PATH.
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
		return "", fmt.Errorf("%s is neither in the folder of this program nor on PATH", program)
	}
	return filepath.Abs(path)
}
