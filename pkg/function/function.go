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
	Kind     string            // inference or training
	SLO      time.Duration     // objective for the p95 latency; 0 is none
	GPUMem   gpu.Bytes         // limit on GPU memory; 0 is none
	GPUs     int               // GPUs one instance spans, 1 unless given
	Weight   float64           // share in fair queueing, 1 unless given
	Tenant   string            // "default" unless given
	Model    *Model            // weights shared between instances, if any
	Dir      string            // folder of the file it was read from: relative commands start there
}

// Model names weights that instances share.
type Model struct {
	Name string
	Size gpu.Bytes
}
