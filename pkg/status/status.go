// Package status is how a gateway stands, as GET /system/status answers, one
// event of GET /system/events says, and gfaas top -o json prints. What is not
// known, as without a gateway, is null.
package status

// Status is how everything stands.
type Status struct {
	GPUs      []GPU      `json:"gpus"`            // by number
	Functions []Function `json:"functions"`       // by name
	Instances []Instance `json:"instances"`       // by id
	Models    []Model    `json:"models,omitzero"` // by GPU and name; nil where nobody was asked
}

// Model is a model's weights on a GPU: the one copy that instances share, which is in
// none of theirs.
type Model struct {
	GPU    string  `json:"gpu"`
	Name   string  `json:"name"`
	Tenant string  `json:"tenant"`
	State  string  `json:"state"`   // gpu or loading
	MemMiB float64 `json:"mem_mib"` // on the GPU
	Refs   int     `json:"refs"`    // who holds it
}

// GPU is how a GPU stands.
type GPU struct {
	GPU         string   `json:"gpu"`   // as in gpu.ParseDevice
	Slots       *int     `json:"slots"` // calls that it runs at once now
	Running     *int     `json:"running"`
	BusyPct     *float64 `json:"busy_pct"`
	MemUsedMiB  *float64 `json:"mem_used_mib"`  // by everything on the GPU, contexts included, as its driver reports it; by instances alone where it reports nothing
	MemOtherMiB *float64 `json:"mem_other_mib"` // of that, by programs that are no instances of the gateway
	MemMiB      *float64 `json:"mem_mib"`
}

// States of a function.
const (
	Idle     = "idle"     // no instance
	Starting = "starting" // instances, none of them ready
	Ready    = "ready"
	Failing  = "failing" // its starts failed several times in a row
)

// Function is how a function stands. Rates and latencies are those of the last
// minute, of calls that a function answered; the rest counts since the gateway
// began.
type Function struct {
	Function       string   `json:"function"`
	State          string   `json:"state"`
	Waiting        *int     `json:"waiting"`
	InFlight       *int     `json:"in_flight"`
	RPS            *float64 `json:"rps"`
	PlannedRPS     *float64 `json:"planned_rps"` // what plans count on its instances for; null without such
	P50MS          *float64 `json:"p50_ms"`
	P95MS          *float64 `json:"p95_ms"`
	P99MS          *float64 `json:"p99_ms"`
	ColdStarts     *int64   `json:"cold_starts"`
	HostWarmStarts *int64   `json:"host_warm_starts"`
	GPUWarmStarts  *int64   `json:"gpu_warm_starts"`
	Rejected       *int64   `json:"rejected"`
	Errors         *int64   `json:"errors"` // 5xx, the gateway's own too
	Instances      int      `json:"instances"`
	GPUSeconds     *float64 `json:"gpu_seconds"`   // time that its instances were busy, starts that failed left out
	Why            string   `json:"why,omitempty"` // why what waits does
}

// Instance is how an instance stands.
type Instance struct {
	ID         string   `json:"id"`
	Function   string   `json:"function"`
	GPU        string   `json:"gpu"`       // several are joined by commas
	State      string   `json:"state"`     // starting, idle, running, offloading, prefetching, stopping, faulted
	Residency  string   `json:"residency"` // where its memory is: gpu or host; empty if that is not known
	InFlight   *int     `json:"in_flight"`
	MemUsedMiB *float64 `json:"mem_used_mib"`
	Address    string   `json:"address"`
	IdleS      *float64 `json:"idle_s"` // null unless it is idle

	// Fault is the CUDA error that ended its use of CUDA, with the call that returned it;
	// empty unless it is faulted.
	Fault string `json:"fault,omitempty"`

	// Its slice: the height and width of its rectangle.
	SMPct        float64 `json:"sm_pct"`
	QuotaRequest float64 `json:"quota_request"`
	QuotaLimit   float64 `json:"quota_limit"`
}
