package token

import (
	"context"
	"log/slog"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Settings holds the settings that may change while the daemon runs.
type Settings = policy.Settings

// Config is the configuration of a daemon.
type Config struct {
	Settings
	Policy        string                         // name of the scheduling policy; empty: policy.MultiToken
	Introspective policy.IntrospectiveParameters // of the policy introspective; zero: the defaults
	Socket        string                         // control socket; its folder is the run directory
	Listen        string                         // TCP address of /healthz, /readyz and /metrics; empty: none
	ExitWhenIdle  time.Duration                  // exit after this time without an instance; 0: never
	Private       bool                           // the run directory belongs to the daemon alone: its mode becomes 0700
	HelloTimeout  time.Duration                  // limit on the wait for the hello of a new connection; 0: 5 s
	WebTimeout    time.Duration                  // limit for a client of Listen to read the answer; 0: 10 s
	ClientUIDs    []int                          // users whose processes may connect, in addition to root and this process's user
	Grants        *Grants                        // for instances that register themselves with grants; nil: none
	Log           *slog.Logger

	// Reload, if set, reads the settings again on SIGHUP. Every scheduler then starts a new
	// window.
	Reload func() (Settings, error)

	// Memory, if set, returns the memory that each process occupies on a GPU, by its PID in the
	// daemon's namespace. It is not called concurrently. With CountContext, memory beyond a
	// process's own allocations counts towards its instance's limit.
	Memory       func(device string) (map[int]gpu.Bytes, error)
	CountContext bool

	// Devices, if set, returns the memory of all GPUs of the machine. It may be called concurrently.
	Devices func() []wire.DeviceMemory

	// Mover, if set, moves the GPU memory of idle instances to the host.
	Mover Mover

	// Prepare, if set, is called with each accepted registration, and returns additional
	// settings for the instance's processes. It may be called concurrently.
	Prepare func(ctx context.Context, r wire.Registration) wire.Registered

	// BeforeKill, if set, is called with the processes of instances that the daemon is about to
	// kill. The daemon waits for it before it kills them. It may be called concurrently.
	BeforeKill func(ctx context.Context, pids []int)

	// OnFirstUse, if set, is called with the name of each GPU when the daemon starts to schedule it.
	// It may be called concurrently.
	OnFirstUse func(gpu string)

	// Cleanup, if set, reverts Prepare on exit. The next daemon can acquire the run directory only
	// after it returns.
	Cleanup func()
}

// Mover moves the memory of processes on simulated or real GPUs to the host and back. Its methods
// may be called concurrently.
type Mover interface {
	// Check returns an error if memory cannot be moved.
	Check(ctx context.Context, simulated bool) error
	// Park moves all GPU memory of these processes of one instance to the host at the same time.
	// After an error, Unpark lets the processes continue.
	Park(ctx context.Context, simulated bool, pids []int) error
	// Unpark moves the memory back to the same addresses. It may be called whether or not Park
	// succeeded.
	Unpark(ctx context.Context, simulated bool, pids []int) error
	// Free returns the unused memory of a GPU.
	Free(device string) (gpu.Bytes, error)
}
