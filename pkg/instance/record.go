package instance

import "github.com/gfaas/gfaas/pkg/gpu"

// What the state file says of an instance. Whether it still runs is for its
// runtime to say.
const (
	Starting = "starting" // intended or started, not seen ready yet
	Ready    = "ready"    // has answered on its ready path
)

// Record is what the state file keeps of an instance, from the intent to start
// it until nothing of it is left.
type Record struct {
	ID         string    `json:"id"`
	Function   string    `json:"function"`
	Runtime    string    `json:"runtime"` // known before there is a handle
	GPUs       []string  `json:"gpus"`
	Slice      gpu.Slice `json:"slice"`
	State      string    `json:"state"`
	Contract   string    `json:"contract,omitempty"` // resolved, never auto
	Registered []string  `json:"registered,omitempty"`
	Handle     Handle    `json:"handle"`
}
