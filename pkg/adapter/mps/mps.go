// Package mps speaks to NVIDIA's Multi-Process Service, which lets processes
// run on a GPU side by side, each on its share of the multiprocessors.
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

// Status is what there is of MPS on this machine.
type Status struct {
	Program string // path of nvidia-cuda-mps-control; empty when it is not installed
	PipeDir string // where clients look for the daemon
	PID     int    // of the control daemon; 0 when none runs
}

// Running says whether a control daemon serves PipeDir.
func (s Status) Running() bool { return s.PID != 0 }

// Probe looks for the control program on PATH and for the daemon of this
// machine's owner: in $CUDA_MPS_PIPE_DIRECTORY, else in the default folder.
func Probe() Status {
	dir := os.Getenv(pipeVariable)
	if dir == "" {
		dir = defaultDir
	}
	return ProbeDir(dir)
}

// ProbeDir looks for the daemon of that folder. One of another user than root and
// this process's does not count: anybody can make the default folder.
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

// maxPIDFile bounds what is read of a PID file, in bytes.
const maxPIDFile = 32

// readPIDFile reads the daemon's, and never waits for who writes to it.
func readPIDFile(dir string) ([]byte, error) {
	for _, look := range []func(string) (fs.FileInfo, error){os.Lstat, os.Stat} { // also of who made a link
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

// trusted says whether a file is root's or this process's user's.
func trusted(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && (s.Uid == 0 || int(s.Uid) == os.Geteuid())
}

// privateDir is where gfaas keeps an MPS daemon of its own: clients find it in
// the folder pipe, its logs are in the folder log.
func privateDir(runDir string) string { return filepath.Join(runDir, "mps") }

// PipeDir is the folder in which clients find the private daemon.
func PipeDir(runDir string) string { return filepath.Join(privateDir(runDir), "pipe") }
