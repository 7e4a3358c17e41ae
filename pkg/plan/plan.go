// Package plan reads and writes what a placement is made from and what it
// comes to: demand, inventory, plan, and rectangles to be packed (docs/files.md).
package plan

// Plan says what runs where.
type Plan struct {
	Version     int        `json:"version"`
	Algorithm   string     `json:"algorithm"`
	Model       string     `json:"model"` // rect or tokens
	GPUsUsed    int        `json:"gpus_used"`
	Bound       int        `json:"bound"` // proven lower bound on GPUs for this demand
	BoundMethod string     `json:"bound_method"`
	GPUs        []GPU      `json:"gpus"`
	Demand      []Served   `json:"demand"`
	Unplaced    []Unplaced `json:"unplaced"`
}

// GPU is one GPU of a plan and what it hosts.
type GPU struct {
	Node      string     `json:"node"`
	Index     int        `json:"index"`
	MemMiB    float64    `json:"mem_mib"`
	Instances []Instance `json:"instances"`
	Models    []Model    `json:"models,omitempty"`   // with shared weights
	Schedule  []Interval `json:"schedule,omitempty"` // with model "tokens"
}

// Instance is one instance on one GPU. X is where its share of the window
// starts (fraction) and Y its lowest SM percentage; both are absent under the
// model "tokens".
type Instance struct {
	ID           string   `json:"id"`
	Function     string   `json:"function"`
	SMPct        float64  `json:"sm_pct"`
	QuotaRequest float64  `json:"quota_request"`
	QuotaLimit   float64  `json:"quota_limit"`
	Batch        int      `json:"batch"`
	RPS          float64  `json:"rps"`
	MemMiB       float64  `json:"mem_mib"`
	X            *float64 `json:"x,omitempty"`
	Y            *float64 `json:"y,omitempty"`
}

// Model is a set of weights kept once on a GPU for all its instances.
type Model struct {
	Name   string  `json:"name"`
	MemMiB float64 `json:"mem_mib"`
}

// Interval is one entry of a GPU's timetable: the instances that may hold a
// token together for that fraction of the window.
type Interval struct {
	Duration  float64  `json:"duration"`
	Instances []string `json:"instances"`
}

// Served is a function's demand and what the plan gives it.
type Served struct {
	Function  string  `json:"function"`
	RPS       float64 `json:"rps"`
	ServedRPS float64 `json:"served_rps"`
}

// Unplaced is demand the plan could not serve, and why.
type Unplaced struct {
	Function string  `json:"function"`
	RPS      float64 `json:"rps"`
	Reason   string  `json:"reason"`
}

// Demand is a function's wanted rate.
type Demand struct {
	Function string
	RPS      float64 // requests a second
	SLOMS    float64 // objective for the p95 latency; 0 is none
	Line     int     // line in the file it came from
}

// Device is one GPU of an inventory. What the file does not say is empty or 0.
type Device struct {
	Node       string
	Index      int     // on its node, from 0
	MemMiB     float64 // all of it
	UUID       string
	Model      string
	SMs        int     // streaming multiprocessors
	UsedMemMiB float64 // by others: not to be planned with
	Line       int     // line in the file it came from
}
