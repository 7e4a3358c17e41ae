// Package cluster replays the events of a cluster, starts and stops of instances, to an online
// scheduler, and counts the GPUs that it uses (Dilu, section 5.5). Run takes a World and the
// events and returns a Result; pkg/command/sim calls it.
package cluster

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/events"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
)

// Result holds the results of a run.
type Result struct {
	Scheduler        string     `json:"scheduler"`
	GPUs             int        `json:"gpus"`              // GPUs of the cluster
	GPUsPeak         int        `json:"gpus_peak"`         // most GPUs in use at once
	GPUSeconds       float64    `json:"gpu_seconds"`       // GPU time in use, from the first event to the last
	SMFragmentation  float64    `json:"sm_fragmentation"`  // fraction of the SMs of GPUs in use that is not requested, over time
	MemFragmentation float64    `json:"mem_fragmentation"` // fraction of the memory of GPUs in use that is not allocated, over time
	AllocatedPeak    float64    `json:"sm_allocated_peak"` // largest fraction of the SMs of all GPUs requested at once
	Placed           int        `json:"placed"`
	Rejected         int        `json:"rejected"`
	Decision         Statistics `json:"decision_us"`
}

// Statistics summarizes the durations of decisions, in microseconds.
type Statistics struct {
	Mean float64 `json:"mean"`
	P99  float64 `json:"p99"`
}

// World holds the inputs of a run except for the events.
type World struct {
	Placer *online.Fleet
	Mem    []gpu.Bytes          // by GPU, in the order of the inventory; 0 means no limit
	Clock  func() time.Duration // times the decisions
	// Decided, unless nil, is called for every decision on a start.
	Decided func(events.Event, online.Decision)
	// Progress, unless nil, is called periodically with the number of events played. Its error
	// ends the run.
	Progress func(played int) error
}

// progressInterval is the number of events between calls of Progress. They take milliseconds.
const progressInterval = 256

// meter integrates the resources in use over time.
type meter struct {
	World
	running           map[string]allocation
	instances         []int     // by GPU
	used              int       // GPUs in use
	requested         int64     // SMs requested, in billionths of a GPU
	peak              int64     // largest value of requested
	allocated, memory gpu.Bytes // memory allocated on GPUs in use, and their total memory
	last              float64   // time of the last event
	smArea            float64   // requested × time
	allocatedArea     float64
	memArea           float64
	decisionTimes     []time.Duration
	result            Result
}

// allocation describes the resources of an instance on each of its GPUs.
type allocation struct {
	gpus    []int
	request int64
	mem     gpu.Bytes
}

// billion is one GPU. Sums of billionths are exact.
const billion = 1e9

// Run plays the events, which must be in order of time. It returns the error of Progress.
func Run(w World, list []events.Event) (Result, error) {
	m := meter{World: w, running: map[string]allocation{}, instances: make([]int, len(w.Mem))}
	for i, e := range list {
		if i > 0 {
			m.advance(e.Time - m.last)
		}
		m.last = e.Time
		if e.Start {
			m.start(e)
		} else {
			m.stop(e.Instance)
		}
		if i%progressInterval == progressInterval-1 && w.Progress != nil {
			if err := w.Progress(i + 1); err != nil {
				return Result{}, err
			}
		}
	}
	return m.summarize(), nil
}

// advance advances the time.
func (m *meter) advance(seconds float64) {
	m.result.GPUSeconds += float64(m.used) * seconds
	m.smArea += float64(m.requested) / billion * seconds
	m.allocatedArea += float64(m.allocated) * seconds
	m.memArea += float64(m.memory) * seconds
}

func (m *meter) start(e events.Event) {
	r := online.Request{
		Instance: e.Instance, Function: e.Function, GPUs: e.GPUs, SMRequest: e.SMRequest, SMLimit: e.SMLimit,
		Mem: gpu.FromMiB(e.MemMiB), Large: strings.Contains(e.Kind, events.LLM), Models: e.Models,
	}
	before := m.Clock()
	d := m.Placer.Place(r)
	m.decisionTimes = append(m.decisionTimes, m.Clock()-before)
	if m.Decided != nil {
		m.Decided(e, d)
	}
	if len(d.GPUs) == 0 {
		m.result.Rejected++
		return
	}
	m.result.Placed++
	h := allocation{d.GPUs, int64(math.Round(e.SMRequest * billion)), r.Mem}
	m.running[e.Instance] = h
	m.addAllocation(h, 1)
	m.result.GPUsPeak = max(m.result.GPUsPeak, m.used)
	m.peak = max(m.peak, m.requested)
}

// stop ends an instance. It ignores instances that were rejected.
func (m *meter) stop(instance string) {
	h, ok := m.running[instance]
	if !ok {
		return
	}
	delete(m.running, instance)
	m.Placer.Remove(instance)
	m.addAllocation(h, -1)
}

// addAllocation adds an instance (n = 1) or subtracts it (n = -1).
func (m *meter) addAllocation(h allocation, n int) {
	for _, g := range h.gpus {
		was := m.instances[g] > 0
		m.instances[g] += n
		if is := m.instances[g] > 0; is != was {
			m.used += n
			m.memory += gpu.Bytes(n) * m.Mem[g]
		}
		m.requested += int64(n) * h.request
		m.allocated += gpu.Bytes(n) * h.mem
	}
}

func (m *meter) summarize() Result {
	r := m.result
	r.GPUs = len(m.Mem)
	if r.GPUs > 0 {
		r.AllocatedPeak = float64(m.peak) / billion / float64(r.GPUs)
	}
	r.SMFragmentation = unusedFraction(m.smArea, r.GPUSeconds)
	r.MemFragmentation = unusedFraction(m.allocatedArea, m.memArea)
	if len(m.decisionTimes) == 0 {
		return r
	}
	slices.Sort(m.decisionTimes)
	var total time.Duration
	for _, d := range m.decisionTimes {
		total += d
	}
	r.Decision = Statistics{
		Mean: microseconds(total) / float64(len(m.decisionTimes)),
		P99:  microseconds(m.decisionTimes[(len(m.decisionTimes)*99+99)/100-1]),
	}
	return r
}

// unusedFraction returns 1 - used/whole, but at least 0.
func unusedFraction(used, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return max(0, 1-used/whole)
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
