// Package online places instances one by one as they come, and takes them away
// as they go, with no knowledge of what comes next: Dilu's scheduler (section
// 3.3) and what it is compared with.
package online

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Request is an instance that wants GPUs. What it wants, it wants of each.
type Request struct {
	Instance  string // unique among those that run
	Function  string
	GPUs      int     // 1 or more, all on one node
	SMRequest float64 // fraction of the SMs it must have
	SMLimit   float64 // fraction it may use, at least SMRequest
	Mem       gpu.Bytes
	Large     bool     // a large model (LLM)
	Models    []string // of GPU that will do; none: any
}

// Reason says why a decision is as it is.
type Reason string

// What decided, in the order in which Dilu's Algorithm 1 tries.
const (
	Affinity Reason = "beside what runs beside its siblings"
	Active   Reason = "on the GPUs in use that it fills best"
	Emptiest Reason = "on the GPUs in use with the most memory left"
	TooFew   Reason = "too few GPUs of a node in use have room"
	Fresh    Reason = "no GPU in use has room"
)

// Decision is where an instance goes.
type Decision struct {
	GPUs   []int  // by their place in the inventory; none: it was rejected
	Fresh  int    // how many of them were not in use before
	Reason Reason // for a rejection: what is missing
}

// Placer decides where instances go. Place must not be called for an instance
// that runs; Remove says whether the instance ran.
type Placer interface {
	Place(Request) Decision
	Remove(instance string) bool
}

// missing is the reason for a rejection. The need is as the scheduler counts.
func missing(r Request, n need, widest int) Reason {
	what := fmt.Sprintf("%d GPUs", r.GPUs)
	if r.GPUs == 1 {
		what = "a GPU"
	}
	if r.GPUs > widest {
		return Reason(fmt.Sprintf("no node has %s: the largest has %d", what, widest))
	}
	where := ""
	if len(r.Models) > 0 {
		where = " of a model that will do"
	}
	mem := ""
	if r.Mem > 0 {
		mem = fmt.Sprintf(" and %s of memory", r.Mem)
	}
	return Reason(fmt.Sprintf("no node has %s%s with room for %g of the SMs (limit %g)%s",
		what, where, float64(n.request)/one, float64(n.limit)/one, mem))
}
