package queue

import (
	"fmt"
	"strings"
	"time"
)

// Config says which policy, and how it behaves. Functions and GPUs come by
// events.
type Config struct {
	Policy string
	Pool   int // instances on each GPU, or residency.Unlimited
	Options
}

// Options are the parameters of the policies.
type Options struct {
	T          time.Duration // mqfq: how far a queue may run ahead
	Alpha      float64       // mqfq: a queue stays active for Alpha times its inter-arrival time
	Limit      int           // lalb-o3: how often an invocation may be passed over
	Starvation float64       // sjf: the deficit from which a function goes first
	Penalty    float64       // cfs-affinity: mean durations that leaving a GPU costs
	// Uncorrected leaves charges as they were expected at dispatch, as in the papers
	// of MQFQ-Sticky and KaaS. Otherwise they become what was executed: a wrong
	// estimate would be unfair for ever.
	Uncorrected bool
	// Patient makes an invocation that lalb or lalb-o3 sent to a busy GPU wait for it
	// however long its work takes, as in LALB's paper. Otherwise the place of what
	// waits for overdue work is decided again.
	Patient  bool
	Prefetch bool // mqfq-sticky: an invocation at an idle queue brings its memory back
	// Utilization, unless 0, is how busy a GPU may be, 0 to 1: Used events then
	// change how many invocations run at once, up to the GPU's slots.
	Utilization float64
	Limits
}

// New makes a policy, without functions and GPUs. The error names a policy that
// does not exist.
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
