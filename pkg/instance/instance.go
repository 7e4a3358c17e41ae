// Package instance describes running instances of functions and the runtimes
// that run them.
package instance

import (
	"context"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Spec is everything a runtime needs to start one instance.
type Spec struct {
	ID       string            // unique among instances: resnet-0
	Function string            // the function's name
	Image    string            // container image; empty for a process
	Command  []string          // program and arguments; may be empty with an image
	Dir      string            // where a process starts; empty is where its starter is
	Env      map[string]string // the function's own settings
	Port     int               // the port inside a container; 0 lets the runtime choose
	GPUs     []string          // names as in gpu.ParseDevice; several for an instance that spans GPUs
	Slice    gpu.Slice
	Secret   string // proves the instance to the token daemon; never on a command line
	LogPath  string // where a process's output goes

	// Oversubscribe has its memory wait on the host while it has no work.
	Oversubscribe bool

	MPSPipeDir string // where it finds the MPS daemon it runs under; empty without one
}

// Handle finds a started instance again, from another process too.
type Handle struct {
	Runtime   string    `json:"runtime"` // "process" or "docker"
	PID       int       `json:"pid,omitempty"`
	StartTime uint64    `json:"start_time,omitempty"` // of the PID, in clock ticks since boot: a PID alone can be another process by now
	Container string    `json:"container,omitempty"`
	Address   string    `json:"address"` // host:port
	LogPath   string    `json:"log_path,omitempty"`
	Started   time.Time `json:"started"`
}

// State is what became of an instance.
type State struct {
	Running  bool
	ExitCode int    // valid when not running; -1 when nobody knows
	Detail   string // what a person would want to read: "exited with status 3"
}

// Runtime starts and stops instances. Implementations are safe for concurrent
// use; each passes the suite in pkg/instance/instancetest.
type Runtime interface {
	// Name is "process" or "docker".
	Name() string
	// Start starts the instance and returns without waiting for it to be ready.
	Start(ctx context.Context, spec Spec) (Handle, error)
	// State tells whether the instance still runs.
	State(ctx context.Context, h Handle) (State, error)
	// Stop asks the instance to end, ends it after grace, and leaves nothing
	// of it behind. Stopping what is gone already is no error.
	Stop(ctx context.Context, h Handle, grace time.Duration) error
	// Logs returns the last lines the instance printed.
	Logs(ctx context.Context, h Handle, lines int) ([]byte, error)
}
