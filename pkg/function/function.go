// Package function reads and writes function.yaml, the description of a function (docs/files.md). Its
// main type is Function; Parse and Format convert between functions and files.
package function

import (
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Function is one document of a function file. The tags are those of Format; Parse reads the same keys.
type Function struct {
	Name  string `yaml:"name"`            // [a-z0-9]([-a-z0-9]*[a-z0-9])?, at most 63 bytes
	Image string `yaml:"image,omitempty"` // container image; empty for a process
	// Command is the process's command, or the replacement of the image's entry point.
	Command  []string          `yaml:"command,omitempty,flow"`
	Env      map[string]string `yaml:"env,omitempty"`        // added to the instance's environment
	Port     int               `yaml:"port,omitempty"`       // port inside a container; default 8080
	Contract string            `yaml:"contract,omitempty"`   // auto, http, openfaas, kserve-v2 or openai
	Ready    Ready             `yaml:"ready,omitempty,flow"` // replaces the contract's health check
	// Aliases are further names of the function, for calls that name a model. CheckNames compares them.
	Aliases []string `yaml:"aliases,omitempty,flow"`
	// Served is the name that the server knows; a gateway replaces the model of calls by it. Empty: it replaces nothing.
	Served string `yaml:"served,omitempty"`
	// Unlisted hides the function from lists of models (listed: false).
	Unlisted unlisted `yaml:"listed,omitempty"`
	// LoadingComments sends comments to callers that wait for a stream of events (loading: comment).
	LoadingComments loadingComments `yaml:"loading,omitempty"`

	Kind     string        `yaml:"kind,omitempty"`       // inference, training or kernels
	Request  string        `yaml:"request,omitempty"`    // kind kernels only: the file with its request for gfaas-kerneld
	SLO      time.Duration `yaml:"slo,omitempty"`        // objective for the p95 latency; 0: none
	SM       float64       `yaml:"sm,omitempty"`         // share of the SMs in percent, of the gateway's instances; 0: the profile's
	Quota    Quota         `yaml:"quota,omitempty"`      // of each window, of the gateway's instances; zero: the profile's
	GPUMem   gpu.Bytes     `yaml:"gpu_mem,omitempty"`    // limit on GPU memory; 0: none
	GPUs     int           `yaml:"gpus,omitempty"`       // GPUs of one instance; default 1
	Weight   float64       `yaml:"weight,omitempty"`     // share in fair queueing; default 1
	Tenant   string        `yaml:"tenant,omitempty"`     // default "default"
	Model    *Model        `yaml:"model,omitempty,flow"` // weights shared between instances, if any
	Scale    Scale         `yaml:"scale,omitempty,flow"` // bounds for the gateway's number of instances
	Inflight int           `yaml:"inflight,omitempty"`   // concurrent calls of an instance from a gateway; default 1

	// BatchWindow is how long a gateway lets calls join those that an instance runs while calls of other functions
	// wait; nil: the gateway's.
	BatchWindow *time.Duration `yaml:"batch_window,omitempty"`

	// Batcher makes a gateway form batches of calls; nil: it forms none. Inflight then counts batches.
	Batcher *Batcher `yaml:"batcher,omitempty,flow"`

	// Timeout limits a gateway's calls: the time until the head of the answer, then each pause; 0: the gateway's.
	Timeout time.Duration `yaml:"timeout,omitempty"`
	Queue   int           `yaml:"queue,omitempty"` // calls that may be queued at a gateway; 0: the gateway's
	// Restart is no, on-failure or always: whether an ended instance is restarted. The default is on-failure for training
	// functions, and no for others.
	Restart  string `yaml:"restart,omitempty"`
	Limits   Limits `yaml:"limits,omitempty,flow"` // a container's limits in addition to its slice
	ReadOnly bool   `yaml:"read_only,omitempty"`   // a container's root file system is read-only

	// The keys of training functions. See Training.
	MaxRestarts int           `yaml:"max_restarts,omitempty"` // restarts after failures; default 6; 0 only with restart: no
	Deadline    time.Duration `yaml:"deadline,omitempty"`     // limit on a process's job, restarts and pauses included; 0: none
	Progress    string        `yaml:"progress,omitempty"`     // regular expression (RE2) that matches one line of output per iteration; empty: none

	// Unmanaged is StopUnmanaged if the instances' processes that use the GPU without the preload
	// library are killed; otherwise they are only reported.
	Unmanaged string `yaml:"unmanaged,omitempty"`

	Probes Probes `yaml:"probes,omitempty,flow"` // requests that neither start an instance nor keep one

	// KeepUpgraded keeps idle upgraded connections open, and their instances loaded (websocket: keep).
	KeepUpgraded keepUpgraded `yaml:"websocket,omitempty"`

	Affinity Affinity `yaml:"affinity,omitempty"` // which calls go to the same instance; empty: none

	Labels map[string]string `yaml:"labels,omitempty"` // for clients that list functions at a gateway; they have no effect

	// Annotations are labels with longer values.
	Annotations map[string]string `yaml:"annotations,omitempty"`

	Dir string `yaml:"-"` // folder of the function's file, to which its commands are relative
}

// Quota is the guaranteed fraction of each window, and the largest fraction that an instance may use:
// 0 < Request <= Limit <= 1.
type Quota struct{ Request, Limit float64 }

// String returns the quota as gpu.ParseQuota reads it.
func (q Quota) String() string {
	text := strconv.FormatFloat(q.Request, 'g', -1, 64)
	if q.Limit != q.Request {
		text += ":" + strconv.FormatFloat(q.Limit, 'g', -1, 64)
	}
	return text
}

// MarshalYAML implements yaml.Marshaler.
func (q Quota) MarshalYAML() (any, error) { return q.String(), nil }

// Versioned returns the function without the fields that only a gateway uses. Functions that
// are equal in the others are one version: instances of the one are instances of the other.
func (fn Function) Versioned() Function {
	fn.SLO, fn.Weight, fn.Tenant, fn.Scale, fn.Inflight, fn.Timeout, fn.Queue = 0, 0, "", Scale{}, 0, 0, 0
	fn.Batcher, fn.BatchWindow = nil, nil
	fn.Aliases, fn.Served, fn.Unlisted, fn.LoadingComments = nil, "", false, false
	fn.Probes, fn.KeepUpgraded, fn.Affinity, fn.Labels, fn.Annotations = Probes{}, false, "", nil, nil
	return fn
}

// LLM reports whether the function is known to serve a language model: its contract is openai.
func (fn Function) LLM() bool { return fn.Contract == "openai" }

// Ready is the health check of an instance: GET Path answers Status when the instance is ready.
type Ready struct {
	Path   string `yaml:"path"`             // escaped, perhaps with a query; empty means the contract's check
	Status int    `yaml:"status,omitempty"` // 0 means any 2xx
}

// Limits bounds a container's use of its host; 0 means the runtime's default.
type Limits struct {
	Memory gpu.Bytes `yaml:"memory,omitempty"`
	Pids   int       `yaml:"pids,omitempty"` // processes and threads
	CPUs   float64   `yaml:"cpus,omitempty"` // processors
}

// Batcher configures the batches that a gateway forms of a function's calls.
type Batcher struct {
	Max     int           `yaml:"max"`              // most inferences in a batch; default 8
	Latency time.Duration `yaml:"latency"`          // how long a batch waits for further calls before it is queued; default 5 ms
	Repeat  bool          `yaml:"repeat,omitempty"` // send the calls of a failed batch again, each alone, even if they are not idempotent
}

// Batches reports whether requests reach instances in batches: those of the batcher, or concurrent calls
// that the server batches by itself. The batch of an instance of a plan then replaces MaxBatch. Jobs receive no
// requests, and process batches of their own.
func (fn *Function) Batches() bool {
	return fn.Batcher != nil || fn.Inflight > 1 || fn.Kind == Training
}

// Spans reports whether each instance runs on several GPUs.
func (fn *Function) Spans() bool { return fn.GPUs > 1 }

// MaxBatch returns the largest batch of inferences that reaches an instance: that of the batcher or,
// for a server that batches concurrent calls by itself, their number.
func (fn *Function) MaxBatch() int {
	if fn.Batcher != nil {
		return fn.Batcher.Max
	}
	return max(fn.Inflight, 1)
}

// Scale bounds how many instances a gateway runs.
type Scale struct {
	Min  int           `yaml:"min"`  // instances that are always ready; default 0
	Max  int           `yaml:"max"`  // default 8
	Idle time.Duration `yaml:"idle"` // idle time after which an instance beyond Min stops; default 5 minutes
}

// Model names weights that instances share. gfaas-modeld loads them from the file, and instances map its
// memory. Without a file, the size is used for planning only, and each instance loads its own weights.
type Model struct {
	Name string    `yaml:"name"`
	File string    `yaml:"file,omitempty"` // relative to the folder of the function's file
	Size gpu.Bytes `yaml:"size,omitempty"` // 0: as measured
}
