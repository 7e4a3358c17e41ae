// Package mps controls NVIDIA's Multi-Process Service (MPS), with which processes run on a
// GPU at the same time, each on its share of the SMs. Daemon is a private control daemon,
// Probe finds a running one, and Terminate ends the GPU work of clients before they are
// killed.
package mps

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

const (
	control      = "nvidia-cuda-mps-control"
	defaultDir   = "/tmp/nvidia-mps"
	pipeVariable = "CUDA_MPS_PIPE_DIRECTORY" // names a control daemon's folder
)

// Status describes MPS on this machine.
type Status struct {
	Program string // path of nvidia-cuda-mps-control; empty if not installed
	PipeDir string // where clients find the daemon
	PID     int    // PID of the control daemon; 0 if none is running
}

// Running reports whether a control daemon serves PipeDir.
func (s Status) Running() bool { return s.PID != 0 }

// Probe finds the control program on PATH and the administrator's daemon, in
// $CUDA_MPS_PIPE_DIRECTORY or the default folder.
func Probe() Status {
	dir := os.Getenv(pipeVariable)
	if dir == "" {
		dir = defaultDir
	}
	return ProbeDir(dir)
}

// ProbeDir finds the daemon of a folder. It ignores daemons of users other than root and
// this process's user, since any user can create the default folder.
func ProbeDir(dir string) Status {
	s := Status{PipeDir: dir}
	if path, err := exec.LookPath(control); err == nil {
		s.Program = path
	}
	text, err := readPIDFile(filepath.Clean(dir))
	if err != nil {
		return s
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return s
	}
	if procfs.Alive(pid) {
		s.PID = pid
	}
	return s
}

// maxPIDFile is the size limit of a PID file, in bytes.
const maxPIDFile = 32

// readPIDFile reads the daemon's PID file. It does not block on a FIFO.
func readPIDFile(dir string) ([]byte, error) {
	for _, look := range []func(string) (fs.FileInfo, error){os.Lstat, os.Stat} { // Lstat checks the owner of a symbolic link as well
		if info, err := look(dir); err != nil || !trusted(info) {
			return nil, errors.Join(err, fs.ErrPermission)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, control+".pid"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !trusted(info) || !info.Mode().IsRegular() || info.Size() > maxPIDFile {
		return nil, errors.Join(err, fs.ErrPermission)
	}
	return io.ReadAll(io.LimitReader(f, maxPIDFile))
}

// trusted reports whether a file belongs to root or to this process's user.
func trusted(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && (s.Uid == 0 || int(s.Uid) == os.Geteuid())
}

// privateDir returns the folder of a run directory's private MPS daemon.
func privateDir(runDir string) string { return filepath.Join(runDir, "mps") }

// PipeDir returns the folder in which clients find the private daemon.
func PipeDir(runDir string) string { return filepath.Join(privateDir(runDir), "pipe") }
