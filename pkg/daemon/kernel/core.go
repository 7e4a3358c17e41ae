package kernel

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// core holds the configuration, the log and the lock that all types of the daemon share: store
// embeds core, gpus embeds store, and so on up to Daemon. The lock guards their state throughout.
// The daemon never holds it while it waits for an executor or for a client's socket.
type core struct {
	cfg Config
	log *slog.Logger
	mu  sync.Mutex
}

// Host is a block of host memory that the daemon shares with executors.
type Host interface {
	Bytes() []byte
	// Discard frees the memory of a range. The range reads as zeros afterwards.
	Discard(offset, size int64)
	Close()
}

// Executor is a process that runs jobs on one GPU, one at a time.
type Executor interface {
	// Send starts a job, encoded by job.Append. Wait returns the outcome of that job, or
	// the error of either step: job.ErrTimeout if the job made no progress for patience,
	// otherwise an error that tells how the executor ended. After an error or a fatal
	// outcome the caller may only call Kill.
	Send(text []byte, patience time.Duration)
	Wait(id uint64, patience time.Duration) (job.Outcome, error)
	// Pid returns the process ID of the executor.
	Pid() int
	// Close shuts the executor down; Kill ends it even during a job. Both return after
	// the process has exited.
	Close()
	Kill()
}

// Ports are the operations through which the daemon uses the node.
type Ports struct {
	NewHost func(size int64) (Host, error)
	Start   func(ctx context.Context, gpu string, h Host) (Executor, job.Hello, error)
}

// ClientConfig describes a client that is configured at start and has a socket of its own.
type ClientConfig struct {
	Name   string
	Weight float64
}

// Config is the configuration of a daemon.
type Config struct {
	Ports
	GPUs          []string // names as in gpu.ParseDevice
	GPUMem        int64    // bytes for buffers on each GPU; 0: 8 GiB, at most 90% of the GPU's memory
	HostMem       int64    // bytes of host memory for objects
	RequestMem    int64    // bytes of host memory for requests in progress; 0: 1 GiB
	MaxObjects    int      // limit on the objects of all clients together; 0: 2,097,152
	MaxRuns       int      // limit on the asynchronous runs of a client, finished ones included; 0: 4,096
	Policy        string   // cfs-affinity, exclusive or fcfs
	Isolate       bool     // start a separate executor for each client and GPU
	Clients       []ClientConfig
	RunTTL        time.Duration // how long the record and the results of a finished asynchronous run exist; 0: 10 min
	KernelTimeout time.Duration // how long a job may make no progress; 0: 10 s
	Stall         time.Duration // how long a caller may neither send nor receive; 0: 10 s
	Conns         int           // connections per socket; 0: 8,192, or fewer if file descriptors are scarce
	Socket        string        // the daemon's own socket; its folder is the run directory
	Listen        string        // additional TCP address; empty: none
	Private       bool          // the run directory belongs to this daemon only
	Log           *slog.Logger
}

// defaultGPUMem is the default memory for buffers on a GPU that has more.
const defaultGPUMem = 8 << 30

// DefaultRequestMem is the default memory for requests in progress.
const DefaultRequestMem = 1 << 30

// Limits of a daemon.
const (
	maxWaiting = 1024 // queued requests per client
	maxClients = 1024
	maxRuns    = 4096    // asynchronous runs of a client
	maxObjects = 2 << 20 // objects of all clients together
)

// Codes of problems in addition to those of kgraph.
const (
	CodeFault    = "fault"
	CodeTimeout  = "timeout"
	CodeBusy     = "busy"
	CodeInternal = "internal"
	// CodeFailedDependency: the request reads a result of an asynchronous run that failed.
	CodeFailedDependency = "failed-dependency"
)

// statuses maps the code of a problem to its HTTP status.
var statuses = map[string]int{
	kgraph.BadRequest: http.StatusBadRequest, kgraph.Unsupported: http.StatusBadRequest, kgraph.NotFound: http.StatusNotFound,
	kgraph.TooLarge: http.StatusRequestEntityTooLarge, CodeFault: http.StatusUnprocessableEntity, CodeTimeout: http.StatusGatewayTimeout,
	CodeFailedDependency: http.StatusFailedDependency, CodeBusy: http.StatusTooManyRequests, CodeInternal: http.StatusInternalServerError,
}

func problem(code, where, format string, args ...any) *kgraph.Problem {
	return &kgraph.Problem{Code: code, Where: where, Message: fmt.Sprintf(format, args...)}
}
