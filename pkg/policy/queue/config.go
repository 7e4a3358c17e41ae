package queue

import (
	"fmt"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
)

// Config selects a policy and its parameters. Functions and GPUs are added by events.
type Config struct {
	Policy string
	Pool   int // instances on each GPU, or residency.Unlimited
	Options
}

// Options holds the parameters of all policies.
type Options struct {
	T          time.Duration // mqfq: the largest lead of a queue over the others
	Alpha      float64       // mqfq-sticky: a queue stays active for Alpha times its mean inter-arrival time
	FixedTTL   bool          // mqfq-sticky: a queue stays active for TTL, whatever its inter-arrival time
	TTL        time.Duration
	Charge     time.Duration // mqfq: unless 0, the charge of every invocation in place of its execution time
	Limit      int           // lalb-o3: how often an invocation may be passed over
	Starvation float64       // sjf: the deficit at which a function goes first
	Penalty    float64       // cfs-affinity: the cost of changing GPUs, in mean durations
	// Uncorrected charges an invocation its expected duration, as the papers of MQFQ-Sticky and
	// KaaS do. Otherwise the measured duration replaces the charge: without that, a wrong
	// estimate would stay unfair forever.
	Uncorrected bool
	// Patient keeps an invocation that lalb or lalb-o3 sent to a busy GPU in that GPU's queue, as
	// LALB's paper does. Otherwise the policy places it again when the GPU's work is overdue.
	Patient  bool
	Prefetch bool // an arrival at an idle queue moves an instance's memory back to the GPU
	Swap     bool // memory of throttled and inactive queues moves to the host ahead of need
	// Utilization, unless 0, is the highest utilization of a GPU, 0 to 1. Used events then adjust
	// the number of concurrent invocations, up to the GPU's slots.
	Utilization float64
	Limits
}

// Follows reports whether memory can follow the states of the policy's queues (Prefetch, Swap).
func (c *Config) Follows() bool { return policy.Find(kindOf(c.Policy).Parameters, swap.Key) != nil }

// New returns a policy without functions and GPUs. It returns an error if there is no policy of
// that name.
func New(c Config) (Policy, error) {
	kind := kindOf(c.Policy)
	if kind == nil {
		return nil, fmt.Errorf("there is no policy %q, expected one of %s", c.Policy, strings.Join(Names(), ", "))
	}
	e := newEngine(c)
	if c.Limits != (Limits{}) {
		return newLimits(c, e), nil
	}
	return e, nil
}
