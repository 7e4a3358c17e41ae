// Package job runs the commands of training functions to completion. Each job has a supervisor, a
// small process that outlives its starter (Supervise). The supervisor starts the command, restarts
// it after a failure, and writes the state of the job to a file. So the result is known even if no
// other process of gfaas was running when the job ended.
package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Result is the state of a job in its file.
type Result struct {
	Program  string    `json:"program,omitempty"` // of a command of gfaas run
	State    string    `json:"state"`             // one of instance.Running, Restarting, Succeeded and Failed
	ExitCode int       `json:"exit_code"`         // of the command's last run; -1 if no run has ended
	Detail   string    `json:"detail,omitempty"`  // describes the end of that run, for people
	Restarts int       `json:"restarts"`
	Ended    time.Time `json:"ended,omitzero"` // when the job succeeded or failed
}

// Over reports whether the job has succeeded or failed.
func (r Result) Over() bool { return r.State == instance.Succeeded || r.State == instance.Failed }

// lostSupervisor describes a job whose supervisor has ended without a result.
const lostSupervisor = "ended without a result: its supervisor was killed"

// StateOf returns the state of a job's instance with the given result. running reports whether its
// supervisor is running.
func (r Result) StateOf(running bool) instance.State {
	s := instance.State{Running: running, ExitCode: r.ExitCode, Detail: r.Detail, Restarts: r.Restarts}
	switch {
	case running:
		s.ExitCode, s.Restarting = -1, r.State == instance.Restarting
		if s.Detail == "" {
			s.Detail = instance.Running
		}
	case !r.Over():
		s.ExitCode, s.Detail = -1, lostSupervisor
	}
	return s
}

// Read returns the result in the folder of an instance's log. The error is fs.ErrNotExist if the
// folder has none, because the instance is not a job.
func Read(dir string) (r Result, err error) {
	text, err := os.ReadFile(path(dir))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("read the result of a job in %s: %w", dir, err)
	}
	return r, err
}

// Write writes a result to a folder, in which Read finds it. A reader sees the earlier or the new
// result.
func Write(dir string, r Result) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return renameio.WriteFile(path(dir), append(text, '\n'), 0o600)
}

func path(dir string) string { return filepath.Join(dir, logs.ResultFile) }

// EndOf returns the exit code of an ended process, as shells count it (128 plus the number of a signal), and a
// description.
func EndOf(status syscall.WaitStatus) (code int, detail string) {
	if code = status.ExitStatus(); status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return code, Describe(code)
}

// Describe describes an exit code, as shells count it.
func Describe(code int) string {
	switch {
	case code == 0:
		return "ended"
	case code > 128:
		return "ended by signal: " + syscall.Signal(code-128).String()
	}
	return fmt.Sprintf("exited with status %d", code)
}
