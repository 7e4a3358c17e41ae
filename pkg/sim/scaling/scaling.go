// Package scaling runs a scaler of pkg/policy/scale against a series of loads on a virtual clock.
// It counts cold starts, requests beyond the capacity, and instance time. NewOptions and Run are
// called by pkg/command/sim.
package scaling

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// maxInstances limits the instances deployed at once.
const maxInstances = 100_000

// Result holds the results of a run. Ratios refer to requests.
type Result struct {
	Scaler            string  `json:"scaler"`
	ColdStarts        int     `json:"cold_starts"`
	SLOViolationRatio float64 `json:"slo_violation_ratio"`
	InstanceSeconds   float64 `json:"instance_seconds"` // deployed time, including starts
	MaxInstances      int     `json:"max_instances"`
	GPUSeconds        float64 `json:"gpu_seconds"` // deployed time, weighted with the requested share of a GPU: SM share × quota
}

// Decision is one action of the scaler. Second is its time in whole seconds since the first load,
// and Instances the number of deployed instances after it.
type Decision struct {
	Second    int     `json:"second"`
	RPS       float64 `json:"rps"`
	Start     int     `json:"start"`
	Stop      int     `json:"stop"`
	Instances int     `json:"instances"`
	Reason    string  `json:"reason"` // text form of Cause

	Cause reason.Reason `json:"cause"`
}

// Options describes a run. First holds the initial instances. Cold returns the cold-start time of
// an instance with that configuration. Decided, unless nil, is called for every action. Progress,
// unless nil, is called periodically with the number of simulated seconds; its error ends the
// run.
type Options struct {
	Scaler   *scale.Scaler
	First    []scale.Instance
	Cold     func(profile.Row) time.Duration
	Decided  func(Decision)
	Progress func(second int) error
}

// progressInterval is the number of simulated seconds between calls of Progress. Even with
// maxInstances, they take less than a second.
const progressInterval = 64

// deployed is an instance and the time at which it is ready, relative to the first second.
type deployed struct {
	scale.Instance
	ready    time.Duration
	reported bool // Ready was reported to the scaler
}

type run struct {
	Options
	now       time.Duration // the end of the current second
	instances []deployed    // oldest first
	serial    int
	events    []scale.Event // events to report to the scaler
	result    Result
}

// Run reports the loads to the scaler, one per second, and measures the result. Requests are
// evenly spread over each second. The scaler receives a load at the end of its second, and events
// of instances at once. New instances serve after their cold start. Requests beyond the limits of
// the serving instances violate the objective.
func Run(loads []float64, o Options) (Result, error) {
	r := run{Options: o}
	for _, in := range o.First {
		r.add(in, 0)
	}
	r.reportEvents()
	var requested, violations float64
	for second, rps := range loads {
		r.now = time.Duration(second) * time.Second
		requested += rps
		violations += r.violations(rps)
		r.result.MaxInstances = max(r.result.MaxInstances, len(r.instances))
		r.result.InstanceSeconds += float64(len(r.instances))
		r.result.GPUSeconds += r.requested()
		r.now += time.Second
		r.reportReady()
		if r.Progress != nil && second%progressInterval == progressInterval-1 {
			if err := r.Progress(second + 1); err != nil {
				return Result{}, err
			}
		}
		if second == len(loads)-1 {
			break // the scaler's actions would have no effect
		}
		for _, a := range o.Scaler.Step(r.now, []scale.Event{scale.Load{RPS: rps}}, nil) {
			if err := r.apply(second, rps, a); err != nil {
				return Result{}, err
			}
		}
		r.reportEvents()
	}
	if requested > 0 {
		r.result.SLOViolationRatio = violations / requested
	}
	r.result.GPUSeconds = math.Round(r.result.GPUSeconds*1e9) / 1e9 // without the rounding errors of the sum
	return r.result, nil
}

// requested returns the sum of the shares of a GPU that the deployed instances request.
func (r *run) requested() (sum float64) {
	for _, d := range r.instances {
		sum += d.Request.SMPct / 100 * d.Request.Quota
	}
	return sum
}

// First returns the instances that a scaler starts for a first load.
func First(scaler *scale.Scaler, rps float64) ([]scale.Instance, error) {
	var instances []scale.Instance
	for _, a := range scaler.Step(0, []scale.Event{scale.Load{RPS: rps}}, nil) {
		start, _ := a.(scale.Start) // there is no instance to stop
		if start.Count > maxInstances-len(instances) {
			return nil, &LoadError{RPS: rps}
		}
		instances = append(instances, slices.Repeat([]scale.Instance{start.Like}, start.Count)...)
	}
	return instances, nil
}

// LoadError reports a load that would need more than maxInstances instances. Second is its index
// in the series of loads.
type LoadError struct {
	Second int
	RPS    float64
}

func (e *LoadError) Error() string {
	return fmt.Sprintf("%s requests/s need more than %d instances", number.Plain(e.RPS), maxInstances)
}

// violations returns the number of requests without capacity in the second that begins now.
// Instances that become ready during that second serve for the rest of it.
func (r *run) violations(rps float64) float64 {
	var capacity float64
	var joining []deployed
	for _, d := range r.instances {
		switch {
		case d.ready <= r.now:
			capacity += d.Limit.ThroughputRPS
		case d.ready < r.now+time.Second:
			joining = append(joining, d)
		}
	}
	slices.SortStableFunc(joining, func(a, b deployed) int { return cmp.Compare(a.ready, b.ready) })
	late, from := 0.0, r.now
	for _, d := range joining {
		late += excess(rps, capacity) * (d.ready - from).Seconds()
		capacity, from = capacity+d.Limit.ThroughputRPS, d.ready
	}
	return late + excess(rps, capacity)*(r.now+time.Second-from).Seconds()
}

// excess returns the load that exceeds the capacity, except for rounding errors.
func excess(rps, capacity float64) float64 {
	if rps <= capacity*(1+1e-9) {
		return 0
	}
	return rps - capacity
}

func (r *run) apply(second int, rps float64, a scale.Action) error {
	d := Decision{Second: second + 1, RPS: rps}
	switch a := a.(type) {
	case scale.Start:
		if a.Count > maxInstances-len(r.instances) {
			return &LoadError{second, rps}
		}
		for range a.Count {
			r.add(a.Like, r.now+r.Cold(a.Like.Request))
		}
		r.result.ColdStarts += a.Count
		d.Start, d.Cause = a.Count, a.Reason
	case scale.Stop:
		stopped := map[string]bool{}
		for _, id := range a.IDs {
			stopped[id] = true
			r.events = append(r.events, scale.Terminated{ID: id})
		}
		r.instances = slices.DeleteFunc(r.instances, func(d deployed) bool { return stopped[d.ID] })
		d.Stop, d.Cause = len(a.IDs), a.Reason
	}
	d.Reason = d.Cause.String()
	if d.Instances = len(r.instances); r.Decided != nil {
		r.Decided(d)
	}
	return nil
}

func (r *run) add(in scale.Instance, ready time.Duration) {
	in.ID = strconv.Itoa(r.serial)
	r.serial++
	d := deployed{Instance: in, ready: ready, reported: ready <= r.now}
	r.instances = append(r.instances, d)
	r.events = append(r.events, scale.Deployed{Instance: in})
	if d.reported {
		r.events = append(r.events, scale.Ready{ID: in.ID})
	}
}

// reportEvents reports events of instances to the scaler. The scaler returns actions only in
// response to a load.
func (r *run) reportEvents() {
	r.Scaler.Step(r.now, r.events, nil)
	r.events = r.events[:0]
}

// reportReady reports to the scaler which instances became ready by now, each at its time.
func (r *run) reportReady() {
	var ready []deployed
	for i, d := range r.instances {
		if !d.reported && d.ready <= r.now {
			r.instances[i].reported = true
			ready = append(ready, d)
		}
	}
	slices.SortStableFunc(ready, func(a, b deployed) int { return cmp.Compare(a.ready, b.ready) })
	for _, d := range ready {
		r.Scaler.Step(d.ready, []scale.Event{scale.Ready{ID: d.ID}}, nil)
	}
}
