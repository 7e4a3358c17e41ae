// Package mps speaks to NVIDIA's Multi-Process Service, which lets processes
// run on a GPU side by side, each on its share of the multiprocessors.
package mps

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/procfs"
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
	if procfs.Alive(pid) {
		s.PID = pid
	}
	return s
}

// privateDir is where gfaas keeps an MPS daemon of its own: clients find it in
// the folder pipe, its logs are in the folder log.
func privateDir(runDir string) string { return filepath.Join(runDir, "mps") }

// PipeDir is the folder in which clients find the private daemon.
func PipeDir(runDir string) string { return filepath.Join(privateDir(runDir), "pipe") }
