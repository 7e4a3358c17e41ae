// Package mps speaks to NVIDIA's Multi-Process Service, which lets processes
// run on a GPU side by side, each on its share of the multiprocessors.
package mps

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	control    = "nvidia-cuda-mps-control"
	defaultDir = "/tmp/nvidia-mps"
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
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = defaultDir
	}
	return ProbeDir(dir)
}

// ProbeDir looks for the daemon of that folder.
func ProbeDir(dir string) Status {
	s := Status{PipeDir: dir}
	if path, err := exec.LookPath(control); err == nil {
		s.Program = path
	}
	text, err := os.ReadFile(filepath.Join(s.PipeDir, control+".pid"))
	if err != nil {
		return s
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return s
	}
	if alive(pid) {
		s.PID = pid
	}
	return s
}

// alive says whether there is such a process that has not ended. In a container
// nobody may ask how a daemon ended, and it stays there as a zombie.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	name := bytes.LastIndex(stat, []byte(") "))
	return err != nil || name < 0 || !bytes.HasPrefix(stat[name:], []byte(") Z"))
}

// privateDir is where gfaas keeps an MPS daemon of its own: clients find it in
// the folder pipe, its logs are in the folder log.
func privateDir(runDir string) string { return filepath.Join(runDir, "mps") }

// PipeDir is the folder in which clients find the private daemon.
func PipeDir(runDir string) string { return filepath.Join(privateDir(runDir), "pipe") }
