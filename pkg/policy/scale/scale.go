// Package scale decides how many instances a function has, and of which
// configuration: as Dilu does (NewLazy; section 3.4.2), as FaST-GShare does
// (NewHeuristic; section 3.4.1), or at once and both ways (NewEager). A Scaler is
// for one function. It is told of every instance of it that there is, and once a
// second what load there was, and then says what to start and what to stop,
// within bounds.
//
// # Bounds
//
// A rule says what the load needs; Bounds say how far it is followed. There are
// never fewer than Min instances after a decision, nor more than Max.
//
// Without an idle time a rule decides alone about the last instances, as it is
// printed. Lazy scaling compares with what one instance fewer sustains, so that
// it keeps one for ever. Algorithm 1 of FaST-GShare stops whatever a load leaves
// over, all of it when one second brings nothing; so does eager scaling. That is
// right on average and wrong live: a function that is called every other second
// would start cold each time, and one that lazy scaling serves would never leave
// the GPU. So with an idle time no rule decides about the last instance: it
// stays while anything has come within that time, however quiet a second was,
// and when nothing has, all beyond Min stop, whatever a rule remembers. An
// instance that still starts is not idle: what it was started for may wait.
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
)

// Instance is one that is deployed, starting or serving.
type Instance struct {
	ID string
	// Request is the configuration it holds for certain, Limit the one it may
	// rise to at once while the GPU has room (vertical scaling; the same when it
	// never rises).
	Request, Limit profile.Row
}

// Bounds are what a function may have at any load.
type Bounds struct {
	Min  int           // instances that are kept
	Max  int           // most instances; 0 is no bound
	Idle time.Duration // without any load, after which all beyond Min stop; 0 is by the rule alone
}

// Check says what is wrong with the bounds.
func (b Bounds) Check() error {
	switch {
	case b.Min < 0 || b.Min > math.MaxInt32:
		return fmt.Errorf("min %d: expected a number of instances", b.Min)
	case b.Max < 0 || b.Max > 0 && b.Max < b.Min:
		return fmt.Errorf("max %d: expected at least min, %d, or 0 for no bound", b.Max, b.Min)
	case b.Idle < 0:
		return fmt.Errorf("idle %v: expected 0 or more", b.Idle)
	}
	return nil
}

// Event is something that happened: Load, Deployed, Ready, Gone or Configure.
type Event interface{ event() }

// Load is how many requests a second came in the second that ended now. The
// scaler decides when it is told one, and only then.
type Load struct{ RPS float64 }

// Deployed says that an instance is there and starts: one that the scaler asked
// for, in answer to its Start, or one that runs already. It is a new one, or
// says anew what a known one is.
type Deployed struct{ Instance Instance }

// Ready says that an instance serves.
type Ready struct{ ID string }

// Gone says that an instance has stopped, was lost or failed to start. One that
// the scaler named in a Stop is gone for it already.
type Gone struct{ ID string }

// Configure changes the bounds.
type Configure struct{ Bounds Bounds }

func (Load) event()      {}
func (Deployed) event()  {}
func (Ready) event()     {}
func (Gone) event()      {}
func (Configure) event() {}

// Action is something to do: Start or Stop.
type Action interface{ action() }

// Start starts Count instances like Like. What does not come to be is asked for
// again with the next load that needs it.
type Start struct {
	Count  int
	Like   Instance // without ID
	Reason string
}

// Stop stops the instances of these ids, which count no longer. Who keeps one
// tells that it is Deployed.
type Stop struct {
	IDs    []string
	Reason string
}

func (Start) action() {}
func (Stop) action()  {}

// Snapshot is how a function stands.
type Snapshot struct {
	Deployed int     // instances, starting ones included
	Ready    int     // of them that serve
	Load     float64 // the last that was told, in requests a second
	Bounds   Bounds
	Why      string // why there are not more or fewer, as of the last load
}

// rule is how a number of instances follows a load. Instances are in the order
// in which they were deployed.
type rule interface {
	// observe hears the next load.
	observe(rps float64)
	// decide says what to start or what to stop, what can best be missed first,
	// and why; or why neither.
	decide(deployed []Instance) decision
	// acted hears that something was started or stopped.
	acted()
	// spare names n instances in the order in which they can be missed.
	spare(deployed []Instance, n int) []string
	// another is what is started when no load says what, if there is anything.
	another() (Instance, bool)
}

// decision is what a rule wants.
type decision struct {
	start []Start
	stop  []string
	why   string
}

// Scaler decides how many instances one function has.
type Scaler struct {
	rule     rule
	bounds   Bounds
	deployed []Instance
	ready    map[string]bool // of each that is deployed
	serving  int             // of them that are ready
	heard    bool            // a load has been told
	load     float64         // the last
	busy     time.Duration   // when something came last, or became ready
	why      string
}

var _ policy.Stepper[Event, Action, Snapshot] = (*Scaler)(nil)

func newScaler(r rule, b Bounds) *Scaler {
	return &Scaler{rule: r, bounds: b, ready: map[string]bool{}, why: "no load has been told"}
}

// Step applies what happened at an instant. With a Load among it, it then
// decides, once.
func (s *Scaler) Step(now time.Duration, events []Event, actions []Action) []Action {
	told := false
	for _, ev := range events {
		switch ev := ev.(type) {
		case Load:
			s.rule.observe(ev.RPS)
			if s.load = ev.RPS; ev.RPS > 0 || !s.heard {
				s.busy = now
			}
			told, s.heard = true, true
		case Deployed:
			s.deploy(ev.Instance)
		case Ready:
			if ready, known := s.ready[ev.ID]; known && !ready {
				s.ready[ev.ID] = true
				s.serving++
				s.busy = now
			}
		case Gone:
			if _, known := s.ready[ev.ID]; known {
				s.remove([]string{ev.ID})
			}
		case Configure:
			s.bounds = ev.Bounds
		}
	}
	if !told {
		return actions
	}
	if s.serving < len(s.deployed) {
		s.busy = now
	}
	return s.decide(now, actions)
}

// decide has the rule followed within the bounds.
func (s *Scaler) decide(now time.Duration, actions []Action) []Action {
	b, before := s.bounds, len(actions)
	quiet := b.Idle > 0 && now-s.busy >= b.Idle
	total := len(s.deployed)
	start := func(g Start) {
		actions = append(actions, g)
		total += g.Count
	}
	stop := func(ids []string, why string) {
		actions = append(actions, Stop{IDs: ids, Reason: why})
		s.remove(ids)
		total -= len(ids)
	}
	if quiet {
		s.why = fmt.Sprintf("nothing has come for %v", b.Idle)
	} else {
		d := s.rule.decide(s.deployed)
		s.why = d.why
		for _, g := range d.start {
			if b.Max > 0 && g.Count > b.Max-total {
				s.why = fmt.Sprintf("%s; at most %d are allowed", d.why, b.Max)
				g.Count = max(0, b.Max-total)
			}
			if g.Reason = s.why; g.Count > 0 {
				start(g)
			}
		}
		least := b.Min
		if b.Idle > 0 {
			least = max(least, 1)
		}
		if most := max(0, total-least); len(d.stop) > most {
			s.why = fmt.Sprintf("%s; at least %d stay", d.why, b.Min)
			if least > b.Min {
				s.why = fmt.Sprintf("%s; one stays until nothing has come for %v", d.why, b.Idle)
			}
			d.stop = d.stop[:most]
		}
		if len(d.stop) > 0 {
			stop(d.stop, s.why)
		}
	}
	switch {
	case total < b.Min:
		s.why = fmt.Sprintf("at least %d are kept", b.Min)
		if like, ok := s.rule.another(); ok {
			start(Start{Count: b.Min - total, Like: like, Reason: s.why})
		}
	case quiet && total > b.Min:
		stop(s.rule.spare(s.deployed, total-b.Min), s.why)
	case b.Max > 0 && total > b.Max:
		s.why = fmt.Sprintf("at most %d are allowed", b.Max)
		stop(s.rule.spare(s.deployed, total-b.Max), s.why)
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

// remove takes instances that are deployed out of the count.
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

// Snapshot is how the function stands.
func (s *Scaler) Snapshot() Snapshot {
	return Snapshot{Deployed: len(s.deployed), Ready: s.serving, Load: s.load, Bounds: s.bounds, Why: s.why}
}

// slack is the part of a load that may be missing because of rounding.
const slack = 1e-9

// Unit is what lazy and eager scaling start: the configuration of the smallest
// quota, which may rise to the largest quota of the same SM share, batch and
// model of GPU. Of several rows of the smallest quota it is the one of the
// smallest SM share, then of the smallest batch. Rows that sustain nothing are
// passed over.
func Unit(rows []profile.Row) (Instance, error) {
	able := slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return !(r.ThroughputRPS > 0) })
	if len(able) == 0 {
		return Instance{}, errors.New("no configuration sustains any request")
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

func smaller(a, b profile.Row) int {
	return cmp.Or(cmp.Compare(a.Quota, b.Quota), cmp.Compare(a.SMPct, b.SMPct), cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.GPU, b.GPU))
}

// need is how many instances of a throughput sustain a load.
func need(rps, throughput float64) int {
	return int(min(math.Ceil(rps*(1-slack)/throughput), math.MaxInt32))
}

// sustained is what the requests of instances sustain together, in requests a
// second.
func sustained(deployed []Instance) float64 {
	sum := 0.0
	for _, in := range deployed {
		sum += in.Request.ThroughputRPS
	}
	return sum
}

// newest names the n instances that were deployed last, newest first.
func newest(deployed []Instance, n int) []string {
	names := make([]string, 0, n)
	for i := len(deployed) - 1; i >= len(deployed)-n; i-- {
		names = append(names, deployed[i].ID)
	}
	return names
}
