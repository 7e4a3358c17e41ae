// Package scaling runs a scaler against a series of loads on a virtual clock:
// how often it starts cold, how many requests find nothing that could serve
// them, and what it costs.
package scaling

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
)

// maxInstances is the most instances a run may have deployed at once.
const maxInstances = 100_000

// Result is what a run came to. Ratios are of requests.
type Result struct {
	Scaler            string  `json:"scaler"`
	ColdStarts        int     `json:"cold_starts"`
	SLOViolationRatio float64 `json:"slo_violation_ratio"`
	InstanceSeconds   float64 `json:"instance_seconds"` // deployed, starting included
	MaxInstances      int     `json:"max_instances"`
}

// Decision is one action of the scaler. Second is when, in whole seconds since
// the first of the series; Instances how many are deployed after it.
type Decision struct {
	Second    int     `json:"second"`
	RPS       float64 `json:"rps"`
	Start     int     `json:"start"`
	Stop      int     `json:"stop"`
	Instances int     `json:"instances"`
	Reason    string  `json:"reason"`
}

// Options say what is run. First are the instances there are to begin with;
// Cold is how long an instance of a configuration takes until it serves;
// Decided, when not nil, hears every action; Progress, when not nil, now and then
// how many seconds have passed, and its error ends the run.
type Options struct {
	Scaler   *scale.Scaler
	First    []scale.Instance
	Cold     func(profile.Row) time.Duration
	Decided  func(Decision)
	Progress func(second int) error
}

// often is after how many seconds progress is told: with the most instances
// they take less than one.
const often = 64

// deployed is an instance and when it serves, counted from the first second.
type deployed struct {
	scale.Instance
	ready time.Duration
	told  bool // the scaler knows that it is ready
}

type run struct {
	Options
	now    time.Duration // the end of the second that is being looked at
	all    []deployed    // oldest first
	serial int
	events []scale.Event // that the scaler is yet to be told
	result Result
}

// Run feeds the loads, one a second and evenly spread over it, to the scaler.
// It hears a second's load when the second ends, and at once what becomes of
// instances; what it starts serves after its cold start. A request beyond what
// serving instances sustain at their limits violates the objective.
func Run(loads []float64, o Options) (Result, error) {
	r := run{Options: o}
	for _, in := range o.First {
		r.add(in, 0)
	}
	r.tell()
	var asked, late float64
	for second, rps := range loads {
		r.now = time.Duration(second) * time.Second
		asked += rps
		late += r.violations(rps)
		r.result.MaxInstances = max(r.result.MaxInstances, len(r.all))
		r.result.InstanceSeconds += float64(len(r.all))
		r.now += time.Second
		r.serve()
		if r.Progress != nil && second%often == often-1 {
			if err := r.Progress(second + 1); err != nil {
				return Result{}, err
			}
		}
		if second == len(loads)-1 {
			break // nothing comes after
		}
		for _, a := range o.Scaler.Step(r.now, []scale.Event{scale.Load{RPS: rps}}, nil) {
			if err := r.apply(second, rps, a); err != nil {
				return Result{}, err
			}
		}
		r.tell()
	}
	if asked > 0 {
		r.result.SLOViolationRatio = late / asked
	}
	return r.result, nil
}

// First are the instances that a scaler starts for a first load.
func First(scaler *scale.Scaler, rps float64) ([]scale.Instance, error) {
	var out []scale.Instance
	for _, a := range scaler.Step(0, []scale.Event{scale.Load{RPS: rps}}, nil) {
		start, _ := a.(scale.Start) // there is nothing to stop
		if start.Count > maxInstances-len(out) {
			return nil, &LoadError{RPS: rps}
		}
		out = append(out, slices.Repeat([]scale.Instance{start.Like}, start.Count)...)
	}
	return out, nil
}

// LoadError says of which second the load takes too many instances; seconds count from
// 0, the first of the loads.
type LoadError struct {
	Second int
	RPS    float64
}

func (e *LoadError) Error() string {
	return fmt.Sprintf("%s rps need more than %d instances", number.Plain(e.RPS), maxInstances)
}

// violations are the requests of the second that begins now for which nothing
// serves. What becomes ready within the second serves the rest of it.
func (r *run) violations(rps float64) float64 {
	var capacity float64
	var joining []deployed
	for _, d := range r.all {
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
		late += beyond(rps, capacity) * (d.ready - from).Seconds()
		capacity, from = capacity+d.Limit.ThroughputRPS, d.ready
	}
	return late + beyond(rps, capacity)*(r.now+time.Second-from).Seconds()
}

// beyond is the part of a load that is not served, rounding aside.
func beyond(rps, capacity float64) float64 {
	if rps <= capacity*(1+1e-9) {
		return 0
	}
	return rps - capacity
}

func (r *run) apply(second int, rps float64, a scale.Action) error {
	d := Decision{Second: second + 1, RPS: rps}
	switch a := a.(type) {
	case scale.Start:
		if a.Count > maxInstances-len(r.all) {
			return &LoadError{second, rps}
		}
		for range a.Count {
			r.add(a.Like, r.now+r.Cold(a.Like.Request))
		}
		r.result.ColdStarts += a.Count
		d.Start, d.Reason = a.Count, a.Reason
	case scale.Stop:
		gone := map[string]bool{}
		for _, id := range a.IDs {
			gone[id] = true
			r.events = append(r.events, scale.Gone{ID: id})
		}
		r.all = slices.DeleteFunc(r.all, func(d deployed) bool { return gone[d.ID] })
		d.Stop, d.Reason = len(a.IDs), a.Reason
	}
	if d.Instances = len(r.all); r.Decided != nil {
		r.Decided(d)
	}
	return nil
}

func (r *run) add(in scale.Instance, ready time.Duration) {
	in.ID = strconv.Itoa(r.serial)
	r.serial++
	d := deployed{Instance: in, ready: ready, told: ready <= r.now}
	r.all = append(r.all, d)
	r.events = append(r.events, scale.Deployed{Instance: in})
	if d.told {
		r.events = append(r.events, scale.Ready{ID: in.ID})
	}
}

// tell tells the scaler what has just become of instances: it decides about
// nothing but a load.
func (r *run) tell() {
	r.Scaler.Step(r.now, r.events, nil)
	r.events = r.events[:0]
}

// serve tells the scaler what has become ready by now, each at its time.
func (r *run) serve() {
	var ready []deployed
	for i, d := range r.all {
		if !d.told && d.ready <= r.now {
			r.all[i].told = true
			ready = append(ready, d)
		}
	}
	slices.SortStableFunc(ready, func(a, b deployed) int { return cmp.Compare(a.ready, b.ready) })
	for _, d := range ready {
		r.Scaler.Step(d.ready, []scale.Event{scale.Ready{ID: d.ID}}, nil)
	}
}
