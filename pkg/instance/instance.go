// Package instance describes running instances of functions. What starts, calls
// and remembers them is in pkg/instance/ports.
package instance

import (
	"regexp"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// socketName is what the token daemon calls its sockets: one lies beside the
// folders of instances, so no instance may be called so.
const socketName = "token.sock"

// ids is compiled when it is first needed, not at every program's start.
var ids = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}$`) })

// ValidID says whether an instance may be called so, and its files too: at most
// 63 of the characters [A-Za-z0-9._-], the first not a dot, and not token.sock.
func ValidID(id string) bool { return ids().MatchString(id) && id != socketName }

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
	LogPath  string // the folder of the log of what a process prints

	// Of a container: whether its engine starts it again, as function.Function has
	// it, what it may use of its host, and whether it can write to its root.
	Restart  string
	Limits   function.Limits
	ReadOnly bool

	// Oversubscribe has its memory wait on the host while it has no work.
	Oversubscribe bool

	// ModelFolder is where it finds the model daemon's socket, model.sock, that
	// speaks for its tenant; empty without a model.
	ModelFolder string

	MPSPipeDir string // where it finds the MPS daemon it runs under; empty without one
}

// Labels of a container that is an instance.
const (
	LabelInstance = "gfaas.instance" // its id
	LabelFunction = "gfaas.function"
)

// DefaultPids is how many processes and threads a container may have unless its function
// says otherwise.
const DefaultPids = 4096

// The runtimes there are.
const (
	Process = "process"
	Docker  = "docker"
)

// Handle finds a started instance again, from another process too.
type Handle struct {
	Runtime   string    `json:"runtime"` // Process or Docker
	PID       int       `json:"pid,omitempty"`
	StartTime uint64    `json:"start_time,omitempty"` // of the PID, in clock ticks since boot: a PID alone can be another process by now
	Container string    `json:"container,omitempty"`
	Address   string    `json:"address"` // host:port
	LogPath   string    `json:"log_path,omitempty"`
	Started   time.Time `json:"started"` // not after anything that the instance did
}

// State is what became of an instance.
type State struct {
	Running  bool
	ExitCode int    // valid when not running; -1 when nobody knows
	Detail   string // what a person would want to read: "exited with status 3"
	Restarts int    // how often its runtime has started it again by itself
}

// What the state file says of an instance. Whether it still runs is for its
// runtime to say.
const (
	Starting = "starting" // intended or started, not seen ready yet
	Ready    = "ready"    // has answered on its ready path
)

// Gateway owns the instances that gfaas serve started, and stops them.
const Gateway = "gateway"

// Record is what the state file keeps of an instance, from the intent to start
// it until nothing of it is left.
type Record struct {
	ID         string       `json:"id"`
	Function   string       `json:"function"`
	Runtime    string       `json:"runtime"` // known before there is a handle
	GPUs       []string     `json:"gpus"`
	Slice      gpu.Slice    `json:"slice"`
	State      string       `json:"state"`
	Contract   string       `json:"contract,omitempty"`   // resolved, never auto
	Definition string       `json:"definition,omitempty"` // tells the function as it was when it was started from what it may be by now
	Registered []string     `json:"registered,omitempty"`
	Owner      string       `json:"owner,omitempty"`    // Gateway, or empty: whoever started it by a plan
	Turns      [][]gpu.Turn `json:"turns,omitempty"`    // as in Placement
	RPS        float64      `json:"rps,omitempty"`      // as in Placement
	Restarts   int          `json:"restarts,omitempty"` // how often a gateway has started it again after it ended
	Handle     Handle       `json:"handle"`
}

// Placement is what a plan says of one instance.
type Placement struct {
	ID    string
	GPUs  []string // names as in gpu.ParseDevice
	Slice gpu.Slice
	Turns [][]gpu.Turn // on each of the GPUs, parts of the window that are its own; nil is none
	RPS   float64      // requests a second that the plan counts on it for; 0 is not known

	// Restarts is how often it was started before under its id: what it printed
	// then stays, whatever comes of this start.
	Restarts int

	// Oversubscribe has its memory wait on the host while it has no work.
	Oversubscribe bool

	// Note, if set, is told of the instance as soon as there is something to
	// stop: when its runtime has started it, before it is ready. Its error
	// ends the start.
	Note func(Record) error
}
