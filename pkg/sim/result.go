package sim

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// Result is what came out, as gfaas-sim queue -o json prints it. Times are in
// milliseconds; docs/simulation.md (What is told) defines the rest.
type Result struct {
	Policy         string           `json:"policy"`
	Invocations    int64            `json:"invocations"`
	Completed      int64            `json:"completed"`
	MakespanMS     float64          `json:"makespan_ms"`
	LatencyMS      Latency          `json:"latency_ms"`
	ColdStarts     int64            `json:"cold_starts"`
	HostWarmStarts int64            `json:"host_warm_starts"`
	GPUWarmStarts  int64            `json:"gpu_warm_starts"`
	MissRatio      float64          `json:"miss_ratio"`       // of the invocations
	FalseMissRatio float64          `json:"false_miss_ratio"` // of the misses
	GPUUtilization float64          `json:"gpu_utilization"`  // 0 to 1
	Rejected       int64            `json:"rejected"`
	Functions      []FunctionResult `json:"functions"`
	Fairness       Fairness         `json:"fairness"`
	Events         int64            `json:"events"`
	WallMS         float64          `json:"wall_ms"` // that the run itself took
	Curve          []float64        `json:"-"`       // latency at the quantiles asked for
}

// Latency is the distribution of completion minus arrival over all
// invocations that completed.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// FunctionResult is what one function got. A function without invocations is
// not listed.
type FunctionResult struct {
	Function    string  `json:"function"`
	Invocations int64   `json:"invocations"`
	MeanMS      float64 `json:"mean_ms"`
	P99MS       float64 `json:"p99_ms"`
	Variance    float64 `json:"variance"`   // of the latency, in ms²
	ServiceMS   float64 `json:"service_ms"` // in a slot, starting and loading included
}

// Fairness compares functions that wait throughout a window of 30 s: the
// largest difference of execution time over weight, and the most that MQFQ
// allows at this T.
type Fairness struct {
	MaxGapMS float64 `json:"max_gap_ms"`
	BoundMS  float64 `json:"bound_ms"`
}

func (r *run) result() *Result {
	s := r.stats
	out := &Result{
		Policy: r.config.Policy, Invocations: r.ids, Completed: s.total.n(), Rejected: s.rejected, Events: s.events,
		ColdStarts: s.starts[0], HostWarmStarts: s.starts[1], GPUWarmStarts: s.starts[2],
		Functions: []FunctionResult{},
		Fairness:  Fairness{MaxGapMS: r.gap.most / 1e6, BoundMS: r.gap.bound(r.config) / 1e6},
	}
	out.LatencyMS = Latency{Mean: s.total.mean() / 1e6, P50: ms(s.total.quantile(0.50)), P95: ms(s.total.quantile(0.95)),
		P99: ms(s.total.quantile(0.99)), Max: ms(s.total.max())}
	for _, q := range r.config.Curve {
		out.Curve = append(out.Curve, ms(s.total.quantile(q)))
	}
	misses := s.starts[0] + s.starts[1]
	out.MissRatio = ratio(misses, r.ids)
	out.FalseMissRatio = ratio(s.elsewhere, misses)
	if s.total.n() > 0 {
		makespan := s.last - s.first
		out.MakespanMS = ms(makespan)
		if makespan > 0 {
			// A sum of centuries is rounded.
			out.GPUUtilization = min(s.service/(float64(makespan)*float64(slots(r.config))), 1)
		}
	}
	for i, f := range r.config.Functions {
		d := &s.functions[i]
		arrived := d.n() + s.rejects[i]
		if arrived == 0 {
			continue
		}
		out.Functions = append(out.Functions, FunctionResult{Function: f.Name, Invocations: arrived,
			MeanMS: d.mean() / 1e6, P99MS: ms(d.quantile(0.99)), Variance: d.variance() / 1e12, ServiceMS: r.gap.functions[i].service / 1e6})
	}
	return out
}

// slots is how many invocations run at once at most.
func slots(c Config) int {
	if queue.OneAtATime(c.Policy) {
		return c.GPUs
	}
	return c.GPUs * c.Concurrency
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
