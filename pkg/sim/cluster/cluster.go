// Package cluster plays a cluster's events to an online scheduler and counts
// the GPUs it takes (Dilu, section 5.5).
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

// Result is what came of the events under a scheduler.
type Result struct {
	Scheduler        string     `json:"scheduler"`
	GPUs             int        `json:"gpus"`              // there are
	GPUsPeak         int        `json:"gpus_peak"`         // in use at once
	GPUSeconds       float64    `json:"gpu_seconds"`       // in use, from the first event to the last
	SMFragmentation  float64    `json:"sm_fragmentation"`  // of the SMs of GPUs in use: not requested, over time
	MemFragmentation float64    `json:"mem_fragmentation"` // of their memory: not taken
	AllocatedPeak    float64    `json:"sm_allocated_peak"` // most requested at once, of the SMs of all GPUs
	Placed           int        `json:"placed"`
	Rejected         int        `json:"rejected"`
	Decision         Statistics `json:"decision_us"`
}

// Statistics of how long decisions took, in microseconds.
type Statistics struct {
	Mean float64 `json:"mean"`
	P99  float64 `json:"p99"`
}

// World is what a run needs beside the events.
type World struct {
	Placer online.Placer
	Mem    []gpu.Bytes          // of each GPU, in the order of the inventory; 0: no limit
	Clock  func() time.Duration // measures decisions
	// Decided is told every decision on a start, and why; it may be nil.
	Decided func(events.Event, online.Decision)
	// Progress is told now and then how many events were played, and ends the
	// run by an error; it may be nil.
	Progress func(played int) error
}

// often is after how many events progress is told: they take milliseconds.
const often = 256

// meter adds up what GPUs hold.
type meter struct {
	World
	running       map[string]held
	instances     []int     // on each GPU
	used          int       // GPUs in use
	requested     int64     // SMs, in billionths of a GPU
	peak          int64     // most of it at once
	taken, memory gpu.Bytes // taken of GPUs in use, and all they have
	last          float64   // time of the last event
	smArea        float64   // requested × time
	takenArea     float64
	memArea       float64
	took          []time.Duration
	result        Result
}

// held is what an instance holds of each of its GPUs.
type held struct {
	gpus    []int
	request int64
	mem     gpu.Bytes
}

// billion is a whole GPU: in billionths sums are exact.
const billion = 1e9

// Run plays the events, which are in the order of time. The error is that of
// Progress.
func Run(w World, all []events.Event) (Result, error) {
	m := meter{World: w, running: map[string]held{}, instances: make([]int, len(w.Mem))}
	for i, e := range all {
		if i > 0 {
			m.pass(e.Time - m.last)
		}
		m.last = e.Time
		if e.Start {
			m.start(e)
		} else {
			m.stop(e.Instance)
		}
		if i%often == often-1 && w.Progress != nil {
			if err := w.Progress(i + 1); err != nil {
				return Result{}, err
			}
		}
	}
	return m.sum(), nil
}

// pass lets time go by.
func (m *meter) pass(seconds float64) {
	m.result.GPUSeconds += float64(m.used) * seconds
	m.smArea += float64(m.requested) / billion * seconds
	m.takenArea += float64(m.taken) * seconds
	m.memArea += float64(m.memory) * seconds
}

func (m *meter) start(e events.Event) {
	r := online.Request{
		Instance: e.Instance, Function: e.Function, GPUs: e.GPUs, SMRequest: e.SMRequest, SMLimit: e.SMLimit,
		Mem: gpu.FromMiB(e.MemMiB), Large: strings.Contains(e.Kind, events.LLM), Models: e.Models,
	}
	before := m.Clock()
	d := m.Placer.Place(r)
	m.took = append(m.took, m.Clock()-before)
	if m.Decided != nil {
		m.Decided(e, d)
	}
	if len(d.GPUs) == 0 {
		m.result.Rejected++
		return
	}
	m.result.Placed++
	h := held{d.GPUs, int64(math.Round(e.SMRequest * billion)), r.Mem}
	m.running[e.Instance] = h
	m.hold(h, 1)
	m.result.GPUsPeak = max(m.result.GPUsPeak, m.used)
	m.peak = max(m.peak, m.requested)
}

// stop ends an instance; one that was rejected has nothing to end.
func (m *meter) stop(instance string) {
	h, ok := m.running[instance]
	if !ok {
		return
	}
	delete(m.running, instance)
	m.Placer.Remove(instance)
	m.hold(h, -1)
}

// hold counts an instance in (1) or out (-1).
func (m *meter) hold(h held, n int) {
	for _, g := range h.gpus {
		was := m.instances[g] > 0
		m.instances[g] += n
		if is := m.instances[g] > 0; is != was {
			m.used += n
			m.memory += gpu.Bytes(n) * m.Mem[g]
		}
		m.requested += int64(n) * h.request
		m.taken += gpu.Bytes(n) * h.mem
	}
}

func (m *meter) sum() Result {
	r := m.result
	r.GPUs = len(m.Mem)
	if r.GPUs > 0 {
		r.AllocatedPeak = float64(m.peak) / billion / float64(r.GPUs)
	}
	r.SMFragmentation = missing(m.smArea, r.GPUSeconds)
	r.MemFragmentation = missing(m.takenArea, m.memArea)
	if len(m.took) == 0 {
		return r
	}
	slices.Sort(m.took)
	var total time.Duration
	for _, d := range m.took {
		total += d
	}
	r.Decision = Statistics{
		Mean: microseconds(total) / float64(len(m.took)),
		P99:  microseconds(m.took[(len(m.took)*99+99)/100-1]),
	}
	return r
}

// missing is the part of a whole that is not there.
func missing(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return max(0, 1-part/whole)
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
