// Package mps looks at NVIDIA's Multi-Process Service, which lets processes
// run on a GPU side by side, each on its share of the multiprocessors.
package mps

import (
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

// Probe looks for the control program on PATH and for its daemon in
// $CUDA_MPS_PIPE_DIRECTORY, else in the default folder.
func Probe() Status {
	s := Status{PipeDir: os.Getenv("CUDA_MPS_PIPE_DIRECTORY")}
	if s.PipeDir == "" {
		s.PipeDir = defaultDir
	}
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
	if err := syscall.Kill(pid, 0); err == nil || errors.Is(err, syscall.EPERM) {
		s.PID = pid
	}
	return s
}
