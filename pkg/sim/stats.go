package sim

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// stats accumulates the values of the result. Its size does not depend on the length of the
// trace.
type stats struct {
	functions   []dist
	total       dist
	first, last time.Duration // first arrival, last completion
	starts      [3]int64      // by residency.Start
	falseMisses int64
	service     float64
	rejected    int64
	rejects     []int64 // by function
	events      int64
}

func newStats(functions int) *stats {
	s := &stats{functions: make([]dist, functions), rejects: make([]int64, functions), total: dist{maxValues: 1 << 18, bits: 11}}
	for i := range s.functions {
		s.functions[i] = dist{maxValues: 512, bits: 7}
	}
	return s
}

func (s *stats) reject(function int32) {
	s.rejected++
	s.rejects[function]++
}

func (s *stats) started(a *queue.Action) {
	s.starts[a.Start]++
	if a.FalseMiss {
		s.falseMisses++
	}
}

func (s *stats) completed(v *invocation) {
	latency := v.end - v.arrived
	s.functions[v.function].add(latency)
	s.total.add(latency)
	s.service += float64(v.end - v.dispatched)
	s.last = v.end
}
