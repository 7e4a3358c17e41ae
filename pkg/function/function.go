// Package function reads and writes function.yaml, the description of a
// function (docs/files.md).
package function

import (
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Function is one document of a function file.
type Function struct {
	Name     string            // [a-z0-9]([-a-z0-9]*[a-z0-9])?, at most 63 bytes
	Image    string            // container image; empty for a process
	Command  []string          // the process, or what overrides the image's entry point
	Env      map[string]string // added to the instance's environment
	Port     int               // port inside a container, 8080 unless given
	Contract string            // auto, http, openfaas, kserve-v2 or openai
	Kind     string            // inference, training or kernels
	Request  string            // of the kind kernels: the file of its request, of gfaas-kerneld
	SLO      time.Duration     // objective for the p95 latency; 0 is none
	GPUMem   gpu.Bytes         // limit on GPU memory; 0 is none
	GPUs     int               // GPUs one instance spans, 1 unless given
	Weight   float64           // share in fair queueing, 1 unless given
	Tenant   string            // "default" unless given
	Model    *Model            // weights shared between instances, if any
	Scale    Scale             // how many instances a gateway has of it
	Inflight int               // calls that an instance takes at once from a gateway, 1 unless given
	Timeout  time.Duration     // of a gateway's calls: until an answer's head, then each pause; 0 is the gateway's
	Queue    int               // calls that may wait at a gateway; 0 is the gateway's
	Restart  string            // no, on-failure or always: whether an instance that ended is started again
	Limits   Limits            // of a container, beside its slice
	ReadOnly bool              // a container's root cannot be written to

	// Unmanaged is StopUnmanaged if the instances' processes that use the GPU without
	// the preload library are to be killed, else they are only reported.
	Unmanaged string

	Probes Probes // requests that neither start an instance nor keep one

	// KeepUpgraded has upgraded connections that are idle stay open, and their instances
	// loaded (websocket: keep).
	KeepUpgraded bool

	Labels map[string]string // for whoever asks a gateway for functions: they change nothing here

	// Annotations are the same, with longer values.
	Annotations map[string]string

	Dir string // folder of the file it was read from: relative commands start there
}

// Versioned returns the function without the fields that only a gateway uses. Functions that
// are equal in the others are one version: instances of the one are instances of the other.
func (fn Function) Versioned() Function {
	fn.SLO, fn.Weight, fn.Tenant, fn.Scale, fn.Inflight, fn.Timeout, fn.Queue = 0, 0, "", Scale{}, 0, 0, 0
	fn.Probes, fn.KeepUpgraded, fn.Labels, fn.Annotations = Probes{}, false, nil, nil
	return fn
}

// Limits is how much of its host a container may use; what is 0 is as the runtime
// has it.
type Limits struct {
	Memory gpu.Bytes
	Pids   int     // processes and threads
	CPUs   float64 // processors' worth of time
}

// Scale bounds how many instances a gateway has of a function.
type Scale struct {
	Min  int           // kept ready, 0 unless given
	Max  int           // 8 unless given
	Idle time.Duration // one beyond Min stops when it has idled for so long, 5 minutes unless given
}

// Model names weights that instances share: gfaas-modeld loads them from the file,
// and instances have their memory from it. Without a file the size is for planning
// alone, and each instance loads its own.
type Model struct {
	Name string
	File string    // relative to the folder of the function's file
	Size gpu.Bytes // 0 is what is measured
}
