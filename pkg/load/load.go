// Package load sends requests to one instance and measures what it sustains.
//
// Three loads are known. A closed loop keeps N requests outstanding, as N
// patient clients do. An open loop sends at the times of a Poisson process,
// whatever the instance does, as the world does; each latency counts from the
// time the request was due, not from the time it could be sent, so that a
// stall is charged to every request it delayed (no coordinated omission). The
// third load, max, is the closed loop with the fewest workers that saturate
// the instance.
package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/number"
)

// Target sends one request and waits for its whole answer. It is called from
// many goroutines at once and returns soon after its context is done.
type Target func(ctx context.Context) error

// WithTimeout returns a target that fails if send does not return within limit.
func WithTimeout(limit time.Duration, send Target) Target {
	return func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := send(limited)
		if err != nil && ctx.Err() == nil && limited.Err() != nil {
			return fmt.Errorf("no whole answer within %v", limit)
		}
		return err
	}
}

// defaultOutstanding bounds the requests under way at once where Options does
// not.
const defaultOutstanding = 512

// leastDrain is the shortest time that Options leave for answers after the
// measured period, unless they say otherwise.
const leastDrain = 10 * time.Second

// earlyDrain is what there is of it when the period was ended early: somebody waits.
const earlyDrain = time.Second

var errEarly = errors.New("ended before anything was measured")

// Options says how to load a target.
type Options struct {
	Spec     Spec
	Warmup   time.Duration // loaded but not measured, at least; may be 0
	Duration time.Duration // the measured period after the warm-up, at least
	// Precision is how well the throughput must be known: half the width of
	// its 95% confidence interval, over itself. Of an open loop, whose
	// throughput is given, it is the p95, within four times this. The trial
	// goes on until that is so and the front of the period is no warm-up any
	// more, for at most four times Duration after Warmup. 0 measures Duration
	// right after Warmup, whatever is seen.
	Precision float64
	// Objective is what Result.Misses counts by; 0 counts failures alone.
	Objective time.Duration
	// Until, where there is one, ends the measured period early when it ends
	// itself: what was measured so far is the result. Requests under way then
	// have a second to be answered.
	Until context.Context
	// Persist loads a target on of which every request fails; otherwise Run fails
	// when requests do over and over with no success between.
	Persist bool
	// drain is how long after the period requests that were due in it may
	// still finish; 0 is the length of the period, and at least 10 s.
	drain time.Duration
	Seed  uint64 // of the Poisson process
	// maxOutstanding bounds the requests under way at once in an open loop,
	// and the workers that max tries; 0 is 512.
	maxOutstanding int
}

// Longest is how long Run takes at the most, the search of max aside: a request that
// takes longer it never sees answered.
func (o Options) Longest() time.Duration {
	return o.Warmup + longestPeriods*o.Duration + o.patience()
}

// patience is how long answers may come after the measured period.
func (o Options) patience() time.Duration {
	if o.drain != 0 {
		return o.drain
	}
	return max(o.Duration, leastDrain)
}

// Result is what was measured. Requests belong to it by the time they were
// due: those due in the measured period, and only those, give latencies and
// errors. Throughput alone counts work by when it was done.
type Result struct {
	Warmup     time.Duration // what was not measured
	Duration   time.Duration // the measured period, after it
	Completed  int64         // requests answered well within the period, whenever they were due
	Samples    int64         // latencies below: well answered, or cut (see Cut)
	Errors     int64         // requests that failed, Cut and Unsent among them
	Cut        int64         // still unanswered when draining ended; their latency is at least what they had waited
	Unsent     int64         // due, but never sent: all places were taken until draining ended; in Samples like Cut
	Late       int64         // sent more than 10 ms after they were due: the sender was busy, or all places were taken
	Workers    int           // of the closed loop; 0 for an open loop
	P50        time.Duration
	P95        time.Duration
	P99        time.Duration
	LastFailed error // the last failure of a request, nil if none failed
	// Due are the requests that were due in the measured period, and Misses those
	// of them that took longer than Options.Objective or failed. P95Due is their
	// 95th percentile, a failure counting as an answer that never comes: then it
	// is Never.
	Due, Misses int64
	P95Due      time.Duration
	// Latencies are those that the percentiles are of, sorted.
	Latencies []time.Duration

	// Half the width of the 95% confidence intervals of Throughput, by the
	// means of 10 batches (answers a second), and of P95; the latter is 0 when
	// there are too few requests to tell.
	ThroughputCI float64
	P95CI        time.Duration
	// Unstable says why the figures should not be relied on: the target kept
	// changing, or they are not known well enough. It is empty when they may
	// be, and without Options.Precision.
	Unstable string

	served float64 // requests answered well, each by the part of its time that lay in the period
}

// Never is the latency of a request that failed, where failures count as such.
const Never = time.Duration(math.MaxInt64)

// Throughput is the requests a second that were answered well. In a closed
// loop a request counts by the part of its time that lies in the period: the
// answers to requests that share a GPU come in bunches, and a bunch that falls
// just inside or outside of the period would move the plain count by as many
// requests as there are workers. In an open loop, where waiting can pile up
// beyond the period, the answers within it count.
func (r Result) Throughput() float64 {
	if r.Workers > 0 {
		return r.served / r.Duration.Seconds()
	}
	return float64(r.Completed) / r.Duration.Seconds()
}

// Run loads the target as the options say. It fails when the context ends, when
// Options.Until does before anything was measured, and, without Options.Persist,
// when requests fail over and over with no success between.
func Run(ctx context.Context, t Target, o Options) (Result, error) {
	if o.Duration <= 0 || o.Warmup < 0 || o.Precision < 0 {
		return Result{}, fmt.Errorf("load for %v after a warm-up of %v: expected more than 0 and at least 0", o.Duration, o.Warmup)
	}
	if o.maxOutstanding == 0 {
		o.maxOutstanding = defaultOutstanding
	}
	o.drain = o.patience()
	if o.Until == nil {
		o.Until = context.Background()
	}
	switch o.Spec.Kind {
	case Closed:
		return closed(ctx, t, o, o.Spec.Workers)
	case Poisson:
		return open(ctx, t, o)
	case Max:
		n, err := saturate(ctx, t, o)
		if err != nil {
			return Result{}, err
		}
		return closed(ctx, t, o, n)
	}
	return Result{}, errors.New("no load was named")
}

// Kind is a way to load an instance.
type Kind int

// The loads that Run knows.
const (
	Closed  Kind = iota + 1 // a fixed number of workers, each waiting for its answer
	Poisson                 // arrivals of a Poisson process
	Max                     // the closed loop that just saturates the instance
)

// Limits of what ParseSpec accepts.
const (
	maxWorkers = 10_000
	maxRPS     = 1_000_000
)

// Spec names a load.
type Spec struct {
	Kind    Kind
	Workers int     // of Closed
	RPS     float64 // of Poisson, requests a second
}

// ParseSpec reads closed:N, poisson:RPS or max.
func ParseSpec(s string) (Spec, error) {
	kind, value, given := strings.Cut(s, ":")
	switch {
	case s == "max":
		return Spec{Kind: Max}, nil
	case kind == "closed" && given:
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxWorkers {
			return Spec{}, fmt.Errorf("load %q: expected closed:N with N from 1 to %d", s, maxWorkers)
		}
		return Spec{Kind: Closed, Workers: n}, nil
	case kind == "poisson" && given:
		rps, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(rps) || rps <= 0 || rps > maxRPS {
			return Spec{}, fmt.Errorf("load %q: expected poisson:RPS with RPS above 0 and at most %d", s, maxRPS)
		}
		return Spec{Kind: Poisson, RPS: rps}, nil
	}
	return Spec{}, fmt.Errorf("load %q is not known: expected closed:N, poisson:RPS or max", s)
}

// String prints the load as ParseSpec reads it.
func (s Spec) String() string {
	switch s.Kind {
	case Closed:
		return "closed:" + strconv.Itoa(s.Workers)
	case Poisson:
		return "poisson:" + number.Significant(s.RPS, -1)
	case Max:
		return "max"
	}
	return ""
}
