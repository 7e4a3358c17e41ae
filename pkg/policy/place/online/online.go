// Package online places instances one by one as they come, and takes them away
// as they go, with no knowledge of what comes next: Dilu's scheduler (section
// 3.3) and what it is compared with.
package online

import (
	"fmt"
	"math"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
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
	siblings Reason = "beside what runs beside its siblings"
	active   Reason = "on the GPUs in use that it fills best"
	emptiest Reason = "on the GPUs in use with the most memory left"
	tooFew   Reason = "too few GPUs of a node in use have room"
	noRoom   Reason = "no GPU in use has room"
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

// rule is how a fit scheduler counts and what it prefers. All schedulers here
// are Algorithm 1 of Dilu with some of its parts.
type rule struct {
	// share is what an instance counts for on a GPU, as fractions of its SMs.
	share func(Request) (request, limit float64)
	omega int64 // most that requests sum to, in billionths of a GPU
	gamma int64 // most that limits sum to
	alpha int64 // weight of SMs left over, in millionths
	beta  int64 // weight of memory left over

	affinity bool // first beside what runs beside siblings
	worst    bool // large models go where most memory is left
}

// DiluOptions are the parameters of Dilu's Algorithm 1.
type DiluOptions struct {
	Omega float64 // most that the requests of a GPU's instances sum to
	Gamma float64 // most that their limits sum to
	Alpha float64 // weight of SMs left over in the score, at most 1
	Beta  float64 // weight of memory left over, at most 1
}

// DiluDefaults are those of the paper (section 3.3) and, for the weights, of
// its public code.
func DiluDefaults() DiluOptions { return DiluOptions{Omega: 1, Gamma: 1.5, Alpha: 0.6, Beta: 0.4} }

// Validate says which parameter is out of range, if one is. Limits far above a
// GPU are none.
func (o DiluOptions) Validate() error {
	const most = 100
	for _, p := range []struct {
		name  string
		value float64
		above bool // must exceed 0
		most  float64
	}{{"omega", o.Omega, true, most}, {"gamma", o.Gamma, true, most}, {"alpha", o.Alpha, false, 1}, {"beta", o.Beta, false, 1}} {
		switch {
		case p.above && !(p.value > 0 && p.value <= p.most):
			return fmt.Errorf("%s %v: expected more than 0 and at most %v", p.name, p.value, p.most)
		case !(p.value >= 0 && p.value <= p.most):
			return fmt.Errorf("%s %v: expected 0 to %v", p.name, p.value, p.most)
		}
	}
	return nil
}

// Dilu fits instances by what they request, while limits may exceed the GPU
// (section 3.3, Algorithm 1): first beside what runs beside the function's
// other instances, then on GPUs in use, then on a new one; of several the one
// with the least α(1 − Σ request) + β(1 − Σ memory / M). A large model that
// takes several fragments takes those with the most memory left.
func Dilu(devices []plan.Device, o DiluOptions) *Fleet { return newFleet(devices, o.rule()) }

// DiluElastic is Dilu with as many GPUs as it takes, each like the one given
// and all on one node.
func DiluElastic(like plan.Device, o DiluOptions) *Fleet {
	f := newFleet(nil, o.rule())
	f.like = &like
	return f
}

func (o DiluOptions) rule() rule {
	return rule{
		share: func(r Request) (float64, float64) { return r.SMRequest, r.SMLimit },
		omega: share(o.Omega), gamma: share(o.Gamma), alpha: weight(o.Alpha), beta: weight(o.Beta),
		affinity: true, worst: true,
	}
}

// Exclusive gives every instance whole GPUs.
func Exclusive(devices []plan.Device) *Fleet {
	return newFleet(devices, rule{share: func(Request) (float64, float64) { return 1, 1 }, omega: one, gamma: one, alpha: weight(1)})
}

// INFless fits instances by their limits, which never exceed the GPU: the
// paper's INFless+ by limits, best fit over SMs and memory.
func INFless(devices []plan.Device) *Fleet {
	o := DiluDefaults()
	return newFleet(devices, rule{share: byLimit, omega: one, gamma: one, alpha: weight(o.Alpha), beta: weight(o.Beta)})
}

// FaST gives every instance its limit of SMs for the whole window, as Dilu
// compares with FaST-GShare (section 5.1): its rectangles are then as wide as
// the GPU's, and best area fit is best fit by SMs alone.
func FaST(devices []plan.Device) *Fleet {
	return newFleet(devices, rule{share: byLimit, omega: one, gamma: one, alpha: weight(1)})
}

func byLimit(r Request) (request, limit float64) { return r.SMLimit, r.SMLimit }

// one is all SMs of a GPU in billionths, in which sums are exact.
const one = 1_000_000_000

func share(fraction float64) int64 { return int64(math.Round(fraction * one)) }

// weight is a weight of the score in millionths.
func weight(v float64) int64 { return int64(math.Round(v * 1_000_000)) }
