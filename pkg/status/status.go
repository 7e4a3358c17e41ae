// Package status has the types of a gateway's status: the answer of GET /system/status, the events of
// GET /system/events, and the output of gfaas top -o json. An unknown value is null, for example if no gateway runs.
package status

import "github.com/gfaas/gfaas/pkg/reason"

// Status is the status of a gateway.
type Status struct {
	GPUs      []GPU      `json:"gpus"`            // in order of number
	Functions []Function `json:"functions"`       // in order of name
	Instances []Instance `json:"instances"`       // in order of ID
	Models    []Model    `json:"models,omitzero"` // in order of GPU and name; nil without a model daemon
}

// Model is the weights of a model on a GPU. Instances share this copy; their own memory does not include it.
type Model struct {
	GPU    string  `json:"gpu"`
	Name   string  `json:"name"`
	Tenant string  `json:"tenant"`
	State  string  `json:"state"`   // gpu or loading
	MemMiB float64 `json:"mem_mib"` // on the GPU
	Refs   int     `json:"refs"`    // requests that hold it
}

// Scale is the number of instances of a function.
type Scale struct {
	Function string `json:"function"`
	Min      int    `json:"min"` // instances to keep ready
	Max      int    `json:"max"`
	Wanted   int    `json:"wanted"`
	Ready    int    `json:"ready"`
}

// GPU is the status of a GPU.
type GPU struct {
	GPU         string   `json:"gpu"`   // as in gpu.ParseDevice; in a fleet, with the name of its node
	Slots       *int     `json:"slots"` // calls that it can run at once
	Running     *int     `json:"running"`
	BusyPct     *float64 `json:"busy_pct"`
	MemUsedMiB  *float64 `json:"mem_used_mib"`  // used by all programs on the GPU, contexts included, as its driver reports it; without a report, used by instances
	MemOtherMiB *float64 `json:"mem_other_mib"` // part of it that programs other than the gateway's instances use
	MemMiB      *float64 `json:"mem_mib"`

	// Closed reports that the gateway starts nothing on the GPU, because its node is down or draining, or
	// because the managers of the swarm have no quorum.
	Closed bool `json:"closed,omitempty"`
}

// The states of a function.
const (
	Idle     = "idle"     // no instance
	Starting = "starting" // has instances, but none is ready
	Ready    = "ready"
	Failing  = "failing" // several consecutive starts failed
)

// Function is the status of a function. Rates and latencies describe the calls answered in the last minute; other
// figures count from the start of the gateway.
type Function struct {
	Function       string   `json:"function"`
	State          string   `json:"state"` // one of the states above; for a training function with jobs, that of a job
	Waiting        *int     `json:"waiting"`
	InFlight       *int     `json:"in_flight"`
	RPS            *float64 `json:"rps"`
	PlannedRPS     *float64 `json:"planned_rps"` // throughput that plans expect from its instances; null if it has none of a plan
	P50MS          *float64 `json:"p50_ms"`
	P95MS          *float64 `json:"p95_ms"`
	P99MS          *float64 `json:"p99_ms"`
	ColdStarts     *int64   `json:"cold_starts"`
	HostWarmStarts *int64   `json:"host_warm_starts"`
	GPUWarmStarts  *int64   `json:"gpu_warm_starts"`
	FalseMisses    *int64   `json:"false_misses"` // starts other than gpu-warm, while the function's memory was on another GPU (LALB, section V)
	LoadedGPUs     *int     `json:"loaded_gpus"`  // GPUs that have its memory; more than one are duplicates (LALB, section V)
	Rejected       *int64   `json:"rejected"`
	Errors         *int64   `json:"errors"` // 5xx answers, the gateway's own included
	Instances      int      `json:"instances"`
	GPUSeconds     *float64 `json:"gpu_seconds"`   // time during which its instances were busy, failed starts excluded
	Why            string   `json:"why,omitempty"` // text form of Reason

	// Reason is the reason why its calls are waiting, or why its starts fail.
	Reason reason.Reason `json:"reason,omitzero"`
}

// Instance is the status of an instance.
type Instance struct {
	ID         string   `json:"id"`
	Function   string   `json:"function"`
	GPU        string   `json:"gpu"`       // several GPUs are joined by commas
	State      string   `json:"state"`     // starting, idle, running, offloading, prefetching, stopping, faulted; for a job, starting, running, succeeded or failed
	Residency  string   `json:"residency"` // location of its memory: gpu or host; empty if unknown
	InFlight   *int     `json:"in_flight"`
	MemUsedMiB *float64 `json:"mem_used_mib"`
	Address    string   `json:"address"`
	IdleS      *float64 `json:"idle_s"` // null unless it is idle

	// Fault is the CUDA error after which the instance could not use CUDA, and the call that returned it. It is empty unless
	// the state is faulted.
	Fault string `json:"fault,omitempty"`

	// Its slice: the height and width of its rectangle.
	SMPct        float64 `json:"sm_pct"`
	SMLimitPct   float64 `json:"sm_limit_pct,omitempty"` // omitted if it equals sm_pct
	QuotaRequest float64 `json:"quota_request"`
	QuotaLimit   float64 `json:"quota_limit"`
}
