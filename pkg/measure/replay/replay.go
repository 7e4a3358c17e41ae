// Package replay sends the calls of a trace through a gateway, at the times in the trace divided by a speed
// factor, and measures the answers. Run returns a Result with latencies, kinds of start and the usage of the
// GPUs. The command gfaas replay calls it.
package replay

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/trace"
)

// maxCalls limits the calls in flight. When the limit is reached, the next call waits; its latency and LateMS
// include the waiting time.
const maxCalls = 4096

// Gateway is the gateway that receives the calls. An error with a method Answered() bool
// that returns true means that the gateway answered and refused the request.
type Gateway interface {
	Status(ctx context.Context) (status.Status, error)
	Policy(ctx context.Context) (string, error)
	// Call sends a call and reads the answer to its end. It returns the status of the answer
	// and how the instance was started.
	Call(ctx context.Context, function string, body []byte) (status int, start string, err error)
}

// Request is a trace to replay.
type Request struct {
	Gateway Gateway
	Rows    []trace.Row   // in order of time, at least one
	Names   []string      // names of the functions; Row.Function is an index
	Speed   float64       // factor by which the replay is faster than the trace
	Body    []byte        // body of each call
	Timeout time.Duration // limit on each call

	// Progress is called before the first call. The replay calls add after each call, from
	// several goroutines, and finish after the last call.
	Progress func() (add, finish func())
}

// player sends calls and records their outcomes.
type player struct {
	Request
	add func() // from Progress

	mu        sync.Mutex
	functions []outcomes
	starts    map[string]int64 // answers by kind of start
	late      time.Duration    // longest delay of a call's start
	rejected  int64
	errors    int64
	first     error     // first of the counted errors
	last      time.Time // end of the last call
	begun     time.Time
}

// outcomes collects the outcomes of one function's calls.
type outcomes struct {
	calls     int64
	latencies []time.Duration // of completed calls
}

// Run replays the trace. failed is the first error counted in Result.Errors, or nil. If the
// gateway does not report the usage of the GPUs afterwards, Run calls note and leaves those
// figures out of the result. err is set if the replay could not be completed.
func Run(ctx context.Context, r Request, note func(error)) (result *Result, failed, err error) {
	p := &player{Request: r, functions: make([]outcomes, len(r.Names)), starts: map[string]int64{}}
	before, err := p.usage(ctx)
	if err != nil {
		return nil, nil, err
	}
	started := time.Now()
	add, finish := r.Progress()
	p.add = add
	p.play(ctx)
	finish()
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	after, err := p.usage(ctx)
	if err != nil {
		note(err)
		after.known = false
	}
	result = p.result(before, after)
	result.WallMS = milliseconds(time.Since(started))
	return result, p.first, nil
}

// play sends the calls at their times and waits for the answers.
func (p *player) play(ctx context.Context) {
	p.begun = time.Now()
	p.last = p.begun
	slots := make(chan struct{}, maxCalls) // holds one element for each call in flight
	var sent sync.WaitGroup
	defer sent.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for _, row := range p.Rows {
		due := p.begun.Add(time.Duration(float64(row.At-p.Rows[0].At) / p.Speed))
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		late := time.Since(due)
		sent.Go(func() {
			defer func() { <-slots }()
			status, start, err := p.call(ctx, row.Function)
			p.record(row.Function, due, late, status, start, err)
		})
	}
}

func (p *player) call(ctx context.Context, function int32) (status int, start string, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	return p.Gateway.Call(ctx, p.Names[function], p.Body)
}

func (p *player) record(function int32, due time.Time, late time.Duration, status int, start string, err error) {
	now := time.Now()
	p.add()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.functions[function].calls++
	p.late = max(p.late, late)
	p.last = now
	if start != "" {
		p.starts[start]++
	}
	switch {
	case status == http.StatusTooManyRequests:
		p.rejected++
	case err != nil:
		p.errors++
		if p.first == nil {
			p.first = err
		}
	default:
		p.functions[function].latencies = append(p.functions[function].latencies, now.Sub(due))
	}
}

// usage is the usage of the GPUs that the gateway reports.
type usage struct {
	known      bool // the gateway has reported the usage; if false, the rest is not valid
	policy     string
	slots      int                // calls that all GPUs together can run at once
	gpuSeconds map[string]float64 // by function: total seconds during which its instances were busy
}

// usage queries the gateway for the usage of the GPUs. u.known is false if the gateway refuses the query.
func (p *player) usage(ctx context.Context) (u usage, err error) {
	now, err := p.Gateway.Status(ctx)
	var answer interface{ Answered() bool }
	if errors.As(err, &answer) && answer.Answered() {
		return u, nil
	}
	if err != nil {
		return u, err
	}
	u = usage{known: true, gpuSeconds: map[string]float64{}}
	if u.policy, err = p.Gateway.Policy(ctx); err != nil {
		return u, err
	}
	for _, g := range now.GPUs {
		if g.Slots != nil {
			u.slots += *g.Slots
		}
	}
	for _, f := range now.Functions {
		if f.GPUSeconds != nil {
			u.gpuSeconds[f.Function] = *f.GPUSeconds
		}
	}
	return u, nil
}

// Result is the result of a replay. Times are in milliseconds.
type Result struct {
	Policy         string     `json:"policy"`
	Invocations    int64      `json:"invocations"`
	Completed      int64      `json:"completed"`
	MakespanMS     float64    `json:"makespan_ms"` // from the start of the replay to the end of the last call
	LatencyMS      Latency    `json:"latency_ms"`
	ColdStarts     int64      `json:"cold_starts"`
	HostWarmStarts int64      `json:"host_warm_starts"`
	GPUWarmStarts  int64      `json:"gpu_warm_starts"`
	MissRatio      float64    `json:"miss_ratio"`      // cold and host-warm starts (misses of GPU memory) divided by Invocations
	GPUUtilization *float64   `json:"gpu_utilization"` // busy time of all instances divided by MakespanMS and by the number of slots; nil: unknown
	Rejected       int64      `json:"rejected"`
	Functions      []Function `json:"functions"`
	Errors         int64      `json:"errors"`
	LateMS         float64    `json:"late_ms"` // longest delay of the start of a call
	WallMS         float64    `json:"wall_ms"` // MakespanMS and the time of the final query of the gateway
}

// Latency is the distribution of latencies.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Function is the result of one function's calls.
type Function struct {
	Function    string   `json:"function"`
	Invocations int64    `json:"invocations"`
	MeanMS      float64  `json:"mean_ms"` // of the latencies of completed calls, as are P99MS and Variance
	P99MS       float64  `json:"p99_ms"`
	Variance    float64  `json:"variance"`   // in ms²
	ServiceMS   *float64 `json:"service_ms"` // total time during which the function's instances were busy, of all calls together; nil: unknown
}

func (p *player) result(before, after usage) *Result {
	r := &Result{Policy: before.policy, Rejected: p.rejected, Errors: p.errors, LateMS: milliseconds(p.late), MakespanMS: milliseconds(p.last.Sub(p.begun)),
		ColdStarts: p.starts["cold"], HostWarmStarts: p.starts["host-warm"], GPUWarmStarts: p.starts["gpu-warm"], Functions: []Function{}}
	var all []time.Duration
	busy := 0.0
	for i, f := range p.functions {
		if f.calls == 0 {
			continue
		}
		r.Invocations += f.calls
		r.Completed += int64(len(f.latencies))
		all = append(all, f.latencies...)
		mean, variance := moments(f.latencies)
		slices.Sort(f.latencies)
		row := Function{Function: p.Names[i], Invocations: f.calls, MeanMS: mean, P99MS: milliseconds(number.Quantile(f.latencies, 0.99)), Variance: variance}
		if before.known && after.known {
			served := after.gpuSeconds[p.Names[i]] - before.gpuSeconds[p.Names[i]]
			busy += served
			row.ServiceMS = new(served * 1e3)
		}
		r.Functions = append(r.Functions, row)
	}
	mean, _ := moments(all)
	slices.Sort(all)
	quantile := func(q float64) float64 { return milliseconds(number.Quantile(all, q)) }
	r.LatencyMS = Latency{mean, quantile(0.50), quantile(0.95), quantile(0.99), quantile(1)}
	if r.Invocations > 0 {
		r.MissRatio = float64(r.ColdStarts+r.HostWarmStarts) / float64(r.Invocations)
	}
	if capacity := r.MakespanMS / 1e3 * float64(before.slots); before.known && after.known && capacity > 0 {
		r.GPUUtilization = new(busy / capacity)
	}
	return r
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// moments returns the mean and the variance, in ms and ms².
func moments(values []time.Duration) (mean, variance float64) {
	if len(values) == 0 {
		return 0, 0
	}
	for _, v := range values {
		mean += milliseconds(v)
	}
	mean /= float64(len(values))
	for _, v := range values {
		d := milliseconds(v) - mean
		variance += d * d
	}
	return mean, variance / float64(len(values))
}
