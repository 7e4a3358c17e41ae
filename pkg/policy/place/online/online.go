// Package online places instances one by one when they arrive and removes them when they end,
// without knowledge of later instances. It implements the scheduler of the Dilu paper (section 3.3) and
// the schedulers to which the paper compares it; Kinds lists them. Each is a Fleet with a rule of its
// own. A Fleet is deterministic: equal requests lead to equal decisions. Packages place and sim/cluster
// use it.
package online

import (
	"fmt"
	"math"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Request describes an instance to place. Its resources are those on each of its GPUs.
type Request struct {
	Instance  string // unique among running instances
	Function  string
	GPUs      int     // 1 or more, all on one node
	SMRequest float64 // guaranteed fraction of the SMs
	SMLimit   float64 // largest fraction of the SMs, at least SMRequest
	Mem       gpu.Bytes
	Large     bool     // the function has a large model (LLM)
	Models    []string // allowed GPU models; empty allows any
	// Except reports whether a GPU, by its index in the inventory, cannot be used now; nil: none.
	Except func(gpu int) bool
}

func (r *Request) excepts(gpu int) bool { return r.Except != nil && r.Except(gpu) }

// Decision is the placement of an instance.
type Decision struct {
	GPUs    []int         // indexes in the inventory; empty if the instance was rejected
	NewGPUs int           // number of these GPUs that were not in use before
	Reason  reason.Reason // for a rejection: the missing resource
}

// rule holds the limits and preferences of a scheduler. Every scheduler here runs Dilu's Algorithm 1;
// the schedulers other than Dilu's set limits to the whole GPU and leave out preferences.
type rule struct {
	// share returns the resources that the scheduler reserves for an instance on a GPU, as fractions of
	// the GPU's SMs.
	share func(Request) (request, limit float64)
	omega int64 // limit of the sum of requests, in billionths of a GPU
	gamma int64 // limit of the sum of limits, in billionths of a GPU
	alpha int64 // weight of free SMs in the score, in millionths
	beta  int64 // weight of free memory in the score, in millionths

	affinity bool // prefer GPUs with affinity (see type affinity)
	worstFit bool // place large models on the GPUs with the most free memory
}

// DiluOptions are the parameters of Dilu's Algorithm 1.
type DiluOptions struct {
	Omega float64 // limit of the sum of requests on a GPU
	Gamma float64 // limit of the sum of limits on a GPU
	Alpha float64 // weight of free SMs in the score, at most 1
	Beta  float64 // weight of free memory in the score, at most 1
	// NoAffinity and NoComplement leave out a principle of section 3.3, as in the paper's ablation
	// (section 5.4): affinity (1), and complementary resources (2), which are best fit by SMs and
	// memory, and worst fit for large models. The first GPU with room is then chosen.
	NoAffinity, NoComplement bool
}

// DiluDefaults returns the paper's parameters (section 3.3), with the weights of its public code.
func DiluDefaults() DiluOptions { return DiluOptions{Omega: 1, Gamma: 1.5, Alpha: 0.6, Beta: 0.4} }

// Validate returns an error if a parameter is out of range. The error begins with the parameter's
// name. Omega and gamma are at most 100.
func (o DiluOptions) Validate() error {
	const limit = 100
	for _, p := range []struct {
		name     string
		value    float64
		positive bool // the value must exceed 0
		limit    float64
	}{{"omega", o.Omega, true, limit}, {"gamma", o.Gamma, true, limit}, {"alpha", o.Alpha, false, 1}, {"beta", o.Beta, false, 1}} {
		switch {
		case p.positive && !(p.value > 0 && p.value <= p.limit):
			return fmt.Errorf("%s %v: expected more than 0 and at most %v", p.name, p.value, p.limit)
		case !(p.value >= 0 && p.value <= p.limit):
			return fmt.Errorf("%s %v: expected 0 to %v", p.name, p.value, p.limit)
		}
	}
	return nil
}

// Dilu returns a fleet that packs instances by their SM requests, while the sum of limits may exceed the
// GPU (section 3.3, Algorithm 1). It prefers GPUs in use with functions that already share GPUs with the
// instance's function, then other GPUs in use, then GPUs that are not in use; among GPUs of equal
// preference, the one with the least α(1 − Σ request) + β(1 − Σ memory / M). An instance with a large
// model that needs several GPUs gets those with the most free memory.
func Dilu(devices []plan.Device, o DiluOptions) *Fleet { return newFleet(devices, o.rule()) }

// DiluElastic returns a fleet like Dilu's that has one node and no GPUs at first. It adds GPUs with the
// memory and model of template whenever an instance needs them.
func DiluElastic(template plan.Device, o DiluOptions) *Fleet {
	f := newFleet(nil, o.rule())
	f.template = &template
	return f
}

func (o DiluOptions) rule() rule {
	if o.NoComplement {
		o.Alpha, o.Beta = 0, 0
	}
	return rule{
		share: func(r Request) (float64, float64) { return r.SMRequest, r.SMLimit },
		omega: share(o.Omega), gamma: share(o.Gamma), alpha: weight(o.Alpha), beta: weight(o.Beta),
		affinity: !o.NoAffinity, worstFit: !o.NoComplement,
	}
}

// Exclusive returns a fleet that gives every instance whole GPUs.
func Exclusive(devices []plan.Device) *Fleet {
	return newFleet(devices, rule{share: func(Request) (float64, float64) { return 1, 1 }, omega: billion, gamma: billion, alpha: weight(1)})
}

// INFless returns a fleet that packs instances by their SM limits, whose sum never exceeds the GPU, with
// best fit over SMs and memory. The Dilu paper calls it INFless+ by limits.
func INFless(devices []plan.Device) *Fleet {
	o := DiluDefaults()
	return newFleet(devices, rule{share: byLimit, omega: billion, gamma: billion, alpha: weight(o.Alpha), beta: weight(o.Beta)})
}

// INFlessRequests returns a fleet like INFless's that packs instances by their SM requests. The Dilu
// paper calls it INFless+-r: instances get no more than their requests.
func INFlessRequests(devices []plan.Device) *Fleet {
	o := DiluDefaults()
	byRequest := func(r Request) (request, limit float64) { return r.SMRequest, r.SMRequest }
	return newFleet(devices, rule{share: byRequest, omega: billion, gamma: billion, alpha: weight(o.Alpha), beta: weight(o.Beta)})
}

// FaST returns a fleet that gives every instance the SMs of its limit for the whole window, as in
// Dilu's comparison with FaST-GShare (section 5.1). Rectangles are then as wide as the window, and
// best area fit equals best fit by SMs.
func FaST(devices []plan.Device) *Fleet {
	return newFleet(devices, rule{share: byLimit, omega: billion, gamma: billion, alpha: weight(1)})
}

// byLimit reserves the limit of an instance.
func byLimit(r Request) (request, limit float64) { return r.SMLimit, r.SMLimit }

// billion is the unit of fractions of the SMs and of memory: they are integers, in billionths, so that sums are exact.
const billion = 1_000_000_000

// share converts a fraction of the SMs to billionths.
func share(fraction float64) int64 { return int64(math.Round(fraction * billion)) }

// weight converts a weight of the score to millionths.
func weight(v float64) int64 { return int64(math.Round(v * 1_000_000)) }
