// Package instance describes instances of functions. Spec is the input of a start; Record is an instance's entry in the
// state file. pkg/instance/ports has the interfaces that start, call and store instances; daemons and commands use them.
package instance

import (
	"regexp"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// socketName is the name of the token daemon's sockets. One of them is in the same folder as the folders of instances,
// so this name cannot be an ID.
const socketName = "token.sock"

// ids is compiled on first use, not at the start of every program.
var ids = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}$`) })

// ValidID reports whether a text is valid as an instance's ID and in file names: at most 63 of the characters
// [A-Za-z0-9._-], the first one not a dot, and not token.sock.
func ValidID(id string) bool { return ids().MatchString(id) && id != socketName }

// Spec holds the data that a runtime needs to start an instance.
type Spec struct {
	ID       string            // unique among instances, for example resnet-0
	Function string            // the function's name
	Image    string            // container image; empty for a process
	Command  []string          // program and arguments; may be empty with an image
	Dir      string            // working directory of a process; empty means that of its starter
	Env      map[string]string // environment variables that the function sets
	Port     int               // the port inside a container; 0 lets the runtime choose
	GPUs     []string          // names as in gpu.ParseDevice; several for an instance that spans GPUs
	Slice    gpu.Slice
	Secret   string // authenticates the instance to the token daemon; must not appear on a command line
	Grant    string // signed grant (pkg/grant) with which the instance registers itself; empty if it is registered
	LogPath  string // folder for the log of a process's output

	// For containers: whether the engine restarts the instance (as in function.Function), its limits on the host's
	// resources, and whether its root file system is read-only.
	Restart  string
	Limits   function.Limits
	ReadOnly bool

	// Job is set if the instance is a job: it runs to completion and does not listen on a port.
	Job *Job

	// Oversubscribe is when the preload library moves the instance's memory to the host.
	Oversubscribe gpu.Oversubscription

	// AllSMs lets the instance's kernels use all SMs, although Slice.SMPct is less: then SMPct only
	// determines how many instances have leases at the same time.
	AllSMs bool

	// ModelFolder contains model.sock, the model daemon's socket for its tenant; empty without a model.
	ModelFolder string

	MPSPipeDir string // folder of the MPS daemon that it runs under; empty without MPS
}

// Labels of a container that runs an instance.
const (
	LabelInstance = "gfaas.instance" // the instance's ID
	LabelFunction = "gfaas.function"
)

// Job describes how a training function's command runs to completion.
type Job struct {
	MaxRestarts int           // restarts after failures
	Deadline    time.Duration // limit on the whole job, restarts and pauses included; 0: none
}

// JobOf returns the job of a function, or nil if the function is not of the kind training.
func JobOf(fn function.Function) *Job {
	if fn.Kind != function.Training {
		return nil
	}
	return &Job{MaxRestarts: fn.MaxRestarts, Deadline: fn.Deadline}
}

const (
	FirstRestart = time.Second      // the shortest pause before a restart
	LastRestart  = time.Minute      // the longest one
	SteadyRun    = 10 * time.Second // how long a run must last so that the pause after it is the shortest one
)

// RestartPause returns the pause before a restart after the given number of runs that were shorter than SteadyRun, in a row: 1 s,
// 2 s, 4 s and so on, up to a minute.
func RestartPause(short int) time.Duration {
	return min(FirstRestart<<min(max(short-1, 0), 10), LastRestart)
}

// DefaultPids is the default limit on a container's processes and threads.
const DefaultPids = 4096

// The runtimes.
const (
	Process = "process"
	Docker  = "docker"
	Swarm   = "swarm"
)

// Handle identifies a started instance to all processes.
type Handle struct {
	Runtime   string    `json:"runtime"` // Process, Docker or Swarm
	PID       int       `json:"pid,omitempty"`
	StartTime uint64    `json:"start_time,omitempty"` // start time of the process, in clock ticks since boot; it detects a reused PID
	Container string    `json:"container,omitempty"`  // of Docker; the service of Swarm
	Address   string    `json:"address"`              // host:port
	LogPath   string    `json:"log_path,omitempty"`
	Started   time.Time `json:"started"` // not later than the instance's first action
}

// State is the state of an instance according to its runtime.
type State struct {
	Running  bool
	ExitCode int    // valid if not running; -1 if unknown
	Detail   string // description for people, for example "exited with status 3"
	Restarts int    // how often its runtime has restarted it

	// Restarting reports that a job has failed and waits for its restart. Running is set as well.
	Restarting bool
}

// The states of an instance in the state file. They do not tell whether the instance is still running; its runtime does.
const (
	Starting = "starting" // about to start, or started but not ready yet
	Ready    = "ready"    // has answered on its ready path
	Running  = "running"  // a job that has started
)

// The further states of a job. They are not in the state file.
const (
	Restarting = "restarting" // has failed, and waits for its restart
	Succeeded  = "succeeded"
	Failed     = "failed"
)

// Gateway is the owner of instances that gfaas serve started; it also stops them.
const Gateway = "gateway"

// Record is the state file's entry of an instance, from the intent to start it until all of its resources are
// removed.
type Record struct {
	ID         string       `json:"id"`
	Function   string       `json:"function"`
	Runtime    string       `json:"runtime"` // known before there is a Handle
	GPUs       []string     `json:"gpus"`
	Slice      gpu.Slice    `json:"slice"`
	State      string       `json:"state"`
	Contract   string       `json:"contract,omitempty"`   // the actual contract, never auto
	Definition string       `json:"definition,omitempty"` // hash of the function's definition at the start, to detect a later change
	Registered []string     `json:"registered,omitempty"`
	Owner      string       `json:"owner,omitempty"`    // Gateway, or empty for an instance of a plan
	Turns      [][]gpu.Turn `json:"turns,omitempty"`    // as in Placement
	RPS        float64      `json:"rps,omitempty"`      // as in Placement
	Batch      int          `json:"batch,omitempty"`    // as in Placement
	Restarts   int          `json:"restarts,omitempty"` // how often a gateway has restarted it
	Job        bool         `json:"job,omitempty"`      // it is a job (Spec.Job)
	Handle     Handle       `json:"handle"`
}

// Placement describes where and how to start one instance, as in a plan.
type Placement struct {
	ID    string
	GPUs  []string // names as in gpu.ParseDevice
	Slice gpu.Slice
	Turns [][]gpu.Turn // for each of the GPUs, the instance's parts of the window; nil if it has none
	RPS   float64      // throughput in requests per second that the plan expects from it; 0 means unknown
	Batch int          // number of requests that the plan, or the profile's row, has it process at once; 0 and 1 mean one at a time

	// Restarts is the number of earlier starts of an instance with this ID. Its earlier output is kept even if this start
	// fails.
	Restarts int

	// Oversubscribe and AllSMs are as in Spec.
	Oversubscribe gpu.Oversubscription
	AllSMs        bool

	// Note, if set, is called with the record after the runtime has started the instance and before the instance is ready.
	// From then on, there is something to stop. An error from Note ends the start.
	Note func(Record) error
}
