// Package scale decides how many instances a function has, and in which configuration: by Dilu's
// lazy scaling (NewLazy; section 3.4.2), by FaST-GShare's heuristic (NewHeuristic; section 3.4.1), or by
// following the load at once (NewEager). A Scaler serves one function. The gateway and the simulator
// report every instance of the function to it and, once per second, the load; with each load the scaler
// decides which instances to start or stop, within bounds.
//
// # Bounds
//
// A rule decides how many instances the load needs; Bounds limit their number. After a decision there are
// at least Min and at most Max.
//
// Without an idle time, the rule alone decides about the last instance, as published. Lazy scaling
// compares the load with the throughput of one instance less, so it keeps one instance for ever. Algorithm
// 1 of FaST-GShare stops all throughput that a load does not need: all of it, if one second brings no
// request. So does eager scaling. That is right on average, but wrong in production: a function that is
// called every other second would start cold each time, and a function under lazy scaling would never
// leave the GPU. So with an idle time, no rule decides about the last instance. It stays as long as a
// request came within the idle time, however quiet a single second was; after that, all instances beyond
// Min stop, whatever the rule remembers. A function with a starting instance is not idle, because calls
// may be waiting for that instance.
package scale

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Instance is a deployed instance, starting or serving.
type Instance struct {
	ID string
	// Request is the configuration that it has for certain. Limit is the one up to which it may use
	// the GPU while there is room (vertical scaling); it equals Request if the instance never does.
	Request, Limit profile.Row
	// Pinned reports that the instance belongs to another controller, such as a plan: its throughput
	// counts, but no scaler stops it.
	Pinned bool
}

// Bounds limit the number of instances of a function.
type Bounds struct {
	Min  int           // fewest instances
	Max  int           // most instances; 0: no bound
	Idle time.Duration // time without load after which all instances beyond Min stop; 0: the rule decides
}

// Check returns an error if the bounds are invalid.
func (b Bounds) Check() error {
	switch {
	case b.Min < 0 || b.Min > math.MaxInt32:
		return fmt.Errorf("min %d: expected 0 to %d", b.Min, math.MaxInt32)
	case b.Max < 0 || b.Max > 0 && b.Max < b.Min:
		return fmt.Errorf("max %d: expected at least min, %d, or 0 for no bound", b.Max, b.Min)
	case b.Idle < 0:
		return fmt.Errorf("idle %v: expected 0 or more", b.Idle)
	}
	return nil
}

// Event is an input of the scaler: Load, Deployed, Ready, Terminated or Configure.
type Event interface{ event() }

// Load reports the requests per second in the second that ended now. The scaler decides after a Load,
// and only then.
type Load struct{ RPS float64 }

// Deployed reports an instance that is starting: in answer to a Start, or found running. If its ID is
// known, it replaces the instance's configuration.
type Deployed struct{ Instance Instance }

// Ready reports that an instance serves.
type Ready struct{ ID string }

// Terminated reports that an instance has stopped, was lost, or failed to start. It is not needed for an
// instance that the scaler named in a Stop.
type Terminated struct{ ID string }

// Configure changes the bounds.
type Configure struct{ Bounds Bounds }

func (Load) event()       {}
func (Deployed) event()   {}
func (Ready) event()      {}
func (Terminated) event() {}
func (Configure) event()  {}

// Action is an output of the scaler: Start or Stop.
type Action interface{ action() }

// Start requests Count instances like Like. If one does not start, the next load that needs it requests
// it again.
type Start struct {
	Count  int
	Like   Instance // has no ID
	Reason reason.Reason
}

// Stop requests that the instances with these IDs stop. They do not count any more; a caller that keeps
// one must report it as Deployed.
type Stop struct {
	IDs    []string
	Reason reason.Reason
}

func (Start) action() {}
func (Stop) action()  {}

// Snapshot describes the state of a function.
type Snapshot struct {
	Deployed int     // instances, including starting ones
	Ready    int     // instances that serve
	Load     float64 // the last load, in requests per second
	Bounds   Bounds
	Reason   reason.Reason // the reason for the number of instances, as of the last load
}

// rule relates the number of instances to the load. Instances are in the order of their deployment.
type rule interface {
	// observe receives the next load.
	observe(rps float64)
	// decide returns what to start or stop, the most dispensable instances first, with the reason; or
	// the reason for neither.
	decide(deployed []Instance) decision
	// acted is called after instances were started or stopped.
	acted()
	// spare returns n instances, the most dispensable first; fewer, if the others are pinned.
	spare(deployed []Instance, n int) []string
	// template returns the instance to start for Min, independent of the load; false if there is none.
	template() (Instance, bool)
}

// decision is the result of a rule.
type decision struct {
	start  []Start
	stop   []string
	reason reason.Reason
}

// uniform is the part of a rule whose instances are all like unit.
type uniform struct{ unit Instance }

func (uniform) acted()                                    {}
func (uniform) spare(deployed []Instance, n int) []string { return newest(deployed, n) }
func (u uniform) template() (like Instance, has bool)     { return u.unit, true }

// scaleTo returns the decision to run target instances.
func (u uniform) scaleTo(target int, deployed []Instance, r reason.Reason) decision {
	d, n := decision{reason: r}, len(deployed)
	switch {
	case target > n:
		d.start = []Start{{Count: target - n, Like: u.unit}}
	case target < n:
		d.stop = newest(deployed, n-target)
	}
	return d
}

// Scaler decides how many instances one function has.
type Scaler struct {
	rule       rule
	bounds     Bounds
	deployed   []Instance
	ready      map[string]bool // by ID of each deployed instance
	serving    int             // number of ready instances
	hasLoad    bool            // a Load was received
	load       float64         // the last one
	lastActive time.Duration   // when the last request came, or an instance became ready
	reason     reason.Reason
}

var _ policy.Stepper[Event, Action, Snapshot] = (*Scaler)(nil)

func newScaler(r rule, b Bounds) *Scaler {
	return &Scaler{rule: r, bounds: b, ready: map[string]bool{}, reason: reason.New(noLoadYet)}
}

// Step applies the events of an instant. If there is a Load among them, it then decides once.
func (s *Scaler) Step(now time.Duration, events []Event, actions []Action) []Action {
	decideNow := false
	for _, ev := range events {
		switch ev := ev.(type) {
		case Load:
			s.rule.observe(ev.RPS)
			if s.load = ev.RPS; ev.RPS > 0 || !s.hasLoad {
				s.lastActive = now
			}
			decideNow, s.hasLoad = true, true
		case Deployed:
			s.deploy(ev.Instance)
		case Ready:
			if ready, known := s.ready[ev.ID]; known && !ready {
				s.ready[ev.ID] = true
				s.serving++
				s.lastActive = now
			}
		case Terminated:
			if _, known := s.ready[ev.ID]; known {
				s.remove([]string{ev.ID})
			}
		case Configure:
			s.bounds = ev.Bounds
		}
	}
	if !decideNow {
		return actions
	}
	if s.serving < len(s.deployed) {
		s.lastActive = now
	}
	return s.decide(now, actions)
}

// decide applies the rule within the bounds.
func (s *Scaler) decide(now time.Duration, actions []Action) []Action {
	b, before := s.bounds, len(actions)
	quiet := b.Idle > 0 && now-s.lastActive >= b.Idle
	total := len(s.deployed)
	start := func(g Start) {
		actions = append(actions, g)
		total += g.Count
	}
	stop := func(ids []string, r reason.Reason) {
		if len(ids) == 0 {
			return
		}
		actions = append(actions, Stop{IDs: ids, Reason: r})
		s.remove(ids)
		total -= len(ids)
	}
	if quiet {
		s.reason = reason.New(idle, reason.Millis("idle_ms", b.Idle))
	} else {
		d := s.rule.decide(s.deployed)
		s.reason = d.reason
		for _, g := range d.start {
			if b.Max > 0 && g.Count > b.Max-total {
				s.reason = d.reason.With(reason.Number("max", b.Max))
				g.Count = max(0, b.Max-total)
			}
			if g.Reason = s.reason; g.Count > 0 {
				start(g)
			}
		}
		minTotal := b.Min
		if b.Idle > 0 {
			minTotal = max(minTotal, 1)
		}
		if removable := max(0, total-minTotal); len(d.stop) > removable {
			s.reason = d.reason.With(reason.Number("min", b.Min))
			if minTotal > b.Min {
				s.reason = d.reason.With(reason.Millis("one_until_idle_ms", b.Idle))
			}
			d.stop = d.stop[:removable]
		}
		stop(d.stop, s.reason)
	}
	switch {
	case total < b.Min:
		s.reason = reason.New(belowMinimum, reason.Number("min", b.Min))
		if like, ok := s.rule.template(); ok {
			start(Start{Count: b.Min - total, Like: like, Reason: s.reason})
		}
	case quiet && total > b.Min:
		stop(s.rule.spare(s.deployed, total-b.Min), s.reason)
	case b.Max > 0 && total > b.Max:
		s.reason = reason.New(aboveMaximum, reason.Number("max", b.Max))
		stop(s.rule.spare(s.deployed, total-b.Max), s.reason)
	}
	if len(actions) > before {
		s.rule.acted()
	}
	return actions
}

func (s *Scaler) deploy(in Instance) {
	if _, known := s.ready[in.ID]; !known {
		s.deployed = append(s.deployed, in)
		s.ready[in.ID] = false
		return
	}
	at := slices.IndexFunc(s.deployed, func(o Instance) bool { return o.ID == in.ID })
	s.deployed[at] = in
}

// remove removes deployed instances.
func (s *Scaler) remove(ids []string) {
	for _, id := range ids {
		if s.ready[id] {
			s.serving--
		}
		delete(s.ready, id)
	}
	s.deployed = slices.DeleteFunc(s.deployed, func(in Instance) bool {
		_, known := s.ready[in.ID]
		return !known
	})
}

// Snapshot returns the state of the function.
func (s *Scaler) Snapshot() Snapshot {
	return Snapshot{Deployed: len(s.deployed), Ready: s.serving, Load: s.load, Bounds: s.bounds, Reason: s.reason}
}

// slack is the fraction of a load that rounding errors may hide.
const slack = 1e-9

// Unit returns the instance that lazy and eager scaling start. Its request is the smallest
// configuration whose p95 is at most slo (0: no objective): the one with the smallest quota; then,
// the smallest SM share; then, the smallest batch. Its limit is the largest quota with the same SM
// share, batch and GPU model. Unit ignores rows without throughput, and returns an error if no row
// is left. Dilu (section 3.2) requests the configuration that its profiler found for the objective.
func Unit(rows []profile.Row, slo time.Duration) (Instance, error) {
	able := slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return !(r.ThroughputRPS > 0) })
	if len(able) == 0 {
		return Instance{}, errors.New("no configuration has a throughput above 0")
	}
	if able = Meeting(able, slo); len(able) == 0 {
		return Instance{}, fmt.Errorf("no configuration has a p95 of at most %v", slo)
	}
	request := slices.MinFunc(able, smaller)
	limit := request
	for _, r := range able {
		if r.SMPct == request.SMPct && r.Batch == request.Batch && r.GPU == request.GPU && r.Quota > limit.Quota {
			limit = r
		}
	}
	return Instance{Request: request, Limit: limit}, nil
}

// Meeting returns the rows that have a throughput and a p95 of at most slo (0: no objective).
func Meeting(rows []profile.Row, slo time.Duration) []profile.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool {
		return !(r.ThroughputRPS > 0) || slo > 0 && r.P95MS > milliseconds(slo)
	})
}

// MostEfficient returns the first of the rows with the highest throughput per share of a GPU. There must be a row.
func MostEfficient(rows []profile.Row) profile.Row {
	return slices.MaxFunc(rows, func(a, b profile.Row) int { return cmp.Compare(a.Efficacy(), b.Efficacy()) })
}

// Reachable returns the rows whose batch reaches an instance. maxBatch is the largest batch that does, as
// function.Function.MaxBatch returns it. With 1, calls reach an instance one by one, and it cannot have the
// throughput of a row with a larger batch.
func Reachable(rows []profile.Row, maxBatch int) []profile.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return r.Batch > max(maxBatch, 1) })
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func smaller(a, b profile.Row) int {
	return cmp.Or(cmp.Compare(a.Quota, b.Quota), cmp.Compare(a.SMPct, b.SMPct), cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.GPU, b.GPU))
}

// instancesFor returns how many instances with that throughput sustain a load.
func instancesFor(rps, throughput float64) int {
	return int(min(math.Ceil(rps*(1-slack)/throughput), math.MaxInt32))
}

// sustained returns the throughput of all instances at their requests, in requests per second.
func sustained(deployed []Instance) float64 {
	sum := 0.0
	for _, in := range deployed {
		sum += in.Request.ThroughputRPS
	}
	return sum
}

// newest returns the n instances that were deployed last, newest first, without pinned ones.
func newest(deployed []Instance, n int) []string {
	names := make([]string, 0, n)
	for i := len(deployed) - 1; i >= 0 && len(names) < n; i-- {
		if !deployed[i].Pinned {
			names = append(names, deployed[i].ID)
		}
	}
	return names
}
