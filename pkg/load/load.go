// Package load sends requests to one instance and measures its throughput and latency.
//
// There are three loads. A closed loop keeps N requests outstanding, like N patient clients. An open loop sends at the
// times of a Poisson process, whatever the instance does, like independent clients; each latency counts from the time
// when the request was due, not from when it could be sent, so that a stall counts for every request that it delayed
// (no coordinated omission). The third load, max, is the closed loop with the fewest workers that saturate the
// instance. gfaas-profile and pkg/measure use the package.
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

// Sender sends one request and waits for the whole answer. It is called concurrently, and returns soon after its
// context is done.
type Sender func(ctx context.Context) error

// WithTimeout returns a Sender that fails if send does not return within limit.
func WithTimeout(limit time.Duration, send Sender) Sender {
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

// defaultOutstanding is the default of Options.maxOutstanding.
const defaultOutstanding = 512

// minDrain is the lower limit of the default of Options.drain.
const minDrain = 10 * time.Second

// earlyDrain replaces Options.drain if Options.Until ends the period early, because the caller waits for the result.
const earlyDrain = time.Second

var errEarly = errors.New("interrupted before the measured period")

// Options describes a load.
type Options struct {
	Spec     Spec
	Warmup   time.Duration // minimum time of load before the measured period; may be 0
	Duration time.Duration // minimum length of the measured period
	// Precision is the required precision of the throughput: half the width of its 95% confidence interval, as a
	// fraction of the throughput. For an open loop, whose throughput is given, it applies to p95 instead, as four
	// times this fraction. The trial continues until the precision is reached and the front of the period does not
	// differ from its end, but for at most four times Duration after Warmup. If Precision is 0, there are no such
	// conditions, and the measured period is Duration right after Warmup.
	Precision float64
	// Objective is the latency limit for Result.Misses; 0 counts failures only.
	Objective time.Duration
	// Until, if set, ends the measured period early when it is done; the result covers the time until then.
	// Requests in flight have one more second for their answer.
	Until context.Context
	// Persist continues if every request fails. Otherwise Run fails after many consecutive failures.
	Persist bool
	// drain is the time after the measured period in which requests that were due in it may still finish; 0: Duration,
	// but at least minDrain.
	drain time.Duration
	Seed  uint64 // seed of the Poisson process
	// maxOutstanding bounds the outstanding requests of an open loop and the workers of max; 0: 512.
	maxOutstanding int
	iterations     bool // the requests are the iterations of a job (Observe)
}

// Longest returns the longest duration of Run, without the search for saturation. Run never sees the answer of a request
// that takes longer.
func (o Options) Longest() time.Duration {
	return o.Warmup + longestPeriods*o.Duration + o.drainTime()
}

// drainTime returns drain or its default.
func (o Options) drainTime() time.Duration {
	if o.drain != 0 {
		return o.drain
	}
	return max(o.Duration, minDrain)
}

// Result is the result of a load. A request belongs to the measured period if it was due in
// it; the latencies and the counts are those of these requests. Completed and the throughput
// instead count requests by the time of their answers.
type Result struct {
	Warmup     time.Duration // time before the measured period
	Duration   time.Duration // length of the measured period
	Completed  int64         // successful requests that ended within the period, whenever they were due
	Samples    int64         // number of latencies below: successful, cut or unsent requests
	Errors     int64         // failed requests, including Cut and Unsent
	Cut        int64         // unanswered at the end of draining; the latency is at least the time waited so far
	Unsent     int64         // due but never sent, because maxOutstanding requests were in flight until the end of draining; counted in Samples like Cut
	Late       int64         // sent more than 10 ms after they were due, because the sender was busy or maxOutstanding requests were in flight
	Workers    int           // number of workers of a closed loop; 0 for an open loop
	P50        time.Duration
	P95        time.Duration
	P99        time.Duration
	LastFailed error // the last failure of a request; nil if none failed
	// Due is the number of requests that were due in the measured period. Misses is how
	// many of them failed or took longer than Options.Objective. P95Due is the 95th
	// percentile of their latencies, where a failure counts as Never.
	Due, Misses int64
	P95Due      time.Duration
	// Latencies holds the latencies that the percentiles are computed from, sorted.
	Latencies []time.Duration

	// ThroughputCI and P95CI are half the widths of the 95% confidence intervals of
	// Throughput (by the means of 10 batches, in answers per second) and P95. P95CI is 0 if
	// there are too few requests.
	ThroughputCI float64
	P95CI        time.Duration
	// Unstable is the reason why the figures are unreliable: too few requests were answered, some failed, the throughput
	// or latency changed during the period, or the required precision was not reached. It is empty if the figures are
	// reliable, and without Options.Precision.
	Unstable string

	served float64 // number of successful requests; each counts by the fraction of its time that lies in the period
}

// Never is the latency of a failed request in P95Due.
const Never = time.Duration(math.MaxInt64)

// Throughput returns the successful requests per second. In a closed loop, a request counts by the fraction of its time
// that lies in the period: answers of requests that share a GPU come in bunches, and a bunch just inside or outside of the
// period would change a plain count by as many requests as there are workers. In an open loop, where waiting can extend
// beyond the period, the answers within it count.
func (r Result) Throughput() float64 {
	if r.Workers > 0 {
		return r.served / r.Duration.Seconds()
	}
	return float64(r.Completed) / r.Duration.Seconds()
}

// Run sends requests with t and measures them. It fails if the context ends, if Options.Until ends before anything was
// measured, or, without Options.Persist, after many consecutive failures.
func Run(ctx context.Context, t Sender, o Options) (Result, error) {
	if err := o.complete(); err != nil {
		return Result{}, err
	}
	switch o.Spec.Kind {
	case Closed:
		return runClosed(ctx, t, o, o.Spec.Workers)
	case Poisson:
		return runOpen(ctx, t, o)
	case Max:
		n, err := saturate(ctx, t, o)
		if err != nil {
			return Result{}, err
		}
		return runClosed(ctx, t, o, n)
	}
	return Result{}, errors.New("load: the kind of load is missing")
}

// complete checks the options and sets their defaults.
func (o *Options) complete() error {
	if o.Duration <= 0 || o.Warmup < 0 || o.Precision < 0 {
		return fmt.Errorf("load: duration %v, warm-up %v, precision %v: expected more than 0, at least 0 and at least 0",
			o.Duration, o.Warmup, o.Precision)
	}
	if o.maxOutstanding == 0 {
		o.maxOutstanding = defaultOutstanding
	}
	o.drain = o.drainTime()
	if o.Until == nil {
		o.Until = context.Background()
	}
	return nil
}

// Kind is a kind of load.
type Kind int

// The kinds of load (see the package comment).
const (
	Closed  Kind = iota + 1 // a fixed number of workers, each waiting for its answer
	Poisson                 // arrivals of a Poisson process
	Max                     // the closed loop that just saturates the instance
)

// The largest values in a Spec.
const (
	maxWorkers = 10_000
	maxRPS     = 1_000_000
)

// Spec describes a load.
type Spec struct {
	Kind    Kind
	Workers int     // number of workers, for Closed
	RPS     float64 // requests per second, for Poisson
}

// ParseSpec parses closed:N, poisson:RPS or max.
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
	return Spec{}, fmt.Errorf("unknown load %q: expected closed:N, poisson:RPS or max", s)
}

// String returns the load in the form that ParseSpec accepts.
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
