package sim

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// stats is what the result is made of. Its size does not grow with the trace.
type stats struct {
	functions   []dist
	total       dist
	first, last time.Duration // of arrivals, of completions
	any         bool
	starts      [3]int64 // by residency.Start
	elsewhere   int64    // false misses
	service     float64
	rejected    int64
	rejects     []int64 // by function
	events      int64
}

func newStats(functions int) *stats {
	s := &stats{functions: make([]dist, functions), rejects: make([]int64, functions), total: dist{exact: 1 << 18, bits: 11}}
	for i := range s.functions {
		s.functions[i] = dist{exact: 512, bits: 7}
	}
	return s
}

func (s *stats) arrived(now time.Duration) {
	if !s.any {
		s.first, s.any = now, true
	}
}

func (s *stats) reject(function int32) {
	s.rejected++
	s.rejects[function]++
}

func (s *stats) started(a *queue.Action) {
	s.starts[a.Start]++
	if a.Elsewhere {
		s.elsewhere++
	}
}

func (s *stats) completed(v *invocation) {
	latency := v.end - v.arrived
	s.functions[v.function].add(latency)
	s.total.add(latency)
	s.service += float64(v.end - v.begin)
	s.last = v.end
}
