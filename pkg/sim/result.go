package sim

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// Result holds the results of a run, as gfaas-sim queue -o json prints them. Times are in
// milliseconds. docs/simulation.md (Results) defines the fields.
type Result struct {
	Policy         string           `json:"policy"`
	Invocations    int64            `json:"invocations"`
	Completed      int64            `json:"completed"`
	MakespanMS     float64          `json:"makespan_ms"`
	LatencyMS      Latency          `json:"latency_ms"`
	ColdStarts     int64            `json:"cold_starts"`
	HostWarmStarts int64            `json:"host_warm_starts"`
	GPUWarmStarts  int64            `json:"gpu_warm_starts"`
	MissRatio      float64          `json:"miss_ratio"`       // over the invocations
	FalseMissRatio float64          `json:"false_miss_ratio"` // over the misses
	GPUUtilization float64          `json:"gpu_utilization"`  // 0 to 1
	Rejected       int64            `json:"rejected"`
	Functions      []FunctionResult `json:"functions"`
	Fairness       Fairness         `json:"fairness"`
	Events         int64            `json:"events"`
	WallMS         float64          `json:"wall_ms"` // real time of the run
	Curve          []float64        `json:"-"`       // latencies at Config.Curve
}

// Latency describes the distribution of completion minus arrival over all completed invocations.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// FunctionResult holds the results of one function. Functions without invocations are omitted.
type FunctionResult struct {
	Function    string  `json:"function"`
	Invocations int64   `json:"invocations"`
	MeanMS      float64 `json:"mean_ms"`
	P99MS       float64 `json:"p99_ms"`
	Variance    float64 `json:"variance"`   // of the latency, in ms²
	ServiceMS   float64 `json:"service_ms"` // slot time, including starting and loading
}

// Fairness compares the functions that wait throughout a window of 30 s: the largest difference
// of execution time over weight, and the bound of MQFQ with this T.
type Fairness struct {
	MaxGapMS float64 `json:"max_gap_ms"`
	BoundMS  float64 `json:"bound_ms"`
}

func (r *run) result() *Result {
	s := r.stats
	result := &Result{
		Policy: r.config.Policy, Invocations: r.ids, Completed: s.total.n(), Rejected: s.rejected, Events: s.events,
		ColdStarts: s.starts[0], HostWarmStarts: s.starts[1], GPUWarmStarts: s.starts[2],
		Functions: []FunctionResult{},
		Fairness:  Fairness{MaxGapMS: r.gap.largest / 1e6, BoundMS: r.gap.bound(r.config) / 1e6},
	}
	result.LatencyMS = Latency{Mean: s.total.mean() / 1e6, P50: ms(s.total.quantile(0.50)), P95: ms(s.total.quantile(0.95)),
		P99: ms(s.total.quantile(0.99)), Max: ms(s.total.max())}
	for _, q := range r.config.Curve {
		result.Curve = append(result.Curve, ms(s.total.quantile(q)))
	}
	misses := s.starts[0] + s.starts[1]
	result.MissRatio = ratio(misses, r.ids)
	result.FalseMissRatio = ratio(s.falseMisses, misses)
	if s.total.n() > 0 {
		makespan := s.last - s.first
		result.MakespanMS = ms(makespan)
		if makespan > 0 {
			// the sum may be rounded up over very long runs
			result.GPUUtilization = min(s.service/(float64(makespan)*float64(slots(r.config))), 1)
		}
	}
	for i, f := range r.config.Functions {
		d := &s.functions[i]
		arrived := d.n() + s.rejects[i]
		if arrived == 0 {
			continue
		}
		result.Functions = append(result.Functions, FunctionResult{Function: f.Name, Invocations: arrived,
			MeanMS: d.mean() / 1e6, P99MS: ms(d.quantile(0.99)), Variance: d.variance() / 1e12, ServiceMS: r.gap.functions[i].service / 1e6})
	}
	return result
}

// slots returns the largest number of concurrent invocations.
func slots(c Config) int {
	if queue.OneAtATime(c.Policy) {
		return c.GPUs
	}
	return c.GPUs * c.Concurrency
}

func ratio(n, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(n) / float64(whole)
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
