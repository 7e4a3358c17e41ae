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

// Defaults are the parameters as published.
func Defaults() Options {
	return Options{T: 10 * time.Second, Alpha: 2, Limit: 25, Starvation: 25, Penalty: 10}
}

// Names are the policies there are, in the order of the manual.
func Names() []string {
	return []string{"fcfs", "fcfs-naive", "batch", "sjf", "eevdf", "mqfq", "mqfq-sticky", "lb", "lalb", "lalb-o3",
		"cfs-affinity", "exclusive", "gfaas"}
}

// orders makes the order of each policy.
var orders = map[string]func(*engine) order{
	"fcfs":         func(e *engine) order { return newFCFS(e) },
	"fcfs-naive":   func(e *engine) order { return naive{newFCFS(e)} },
	"batch":        func(e *engine) order { return newFCFS(e) },
	"sjf":          func(e *engine) order { return newSJF(e) },
	"eevdf":        func(e *engine) order { return newEEVDF(e) },
	"mqfq":         func(e *engine) order { return newMQFQ(e, false) },
	"mqfq-sticky":  func(e *engine) order { return newMQFQ(e, true) },
	"lb":           func(e *engine) order { return newLALB(e, 0, false) },
	"lalb":         func(e *engine) order { return newLALB(e, 0, true) },
	"lalb-o3":      func(e *engine) order { return newLALB(e, e.config.Limit, true) },
	"cfs-affinity": func(e *engine) order { return newCFS(e) },
	"exclusive":    func(e *engine) order { return newExclusive(e) },
	"gfaas":        func(e *engine) order { return newGfaas(e) },
}

// New makes a policy, without functions and GPUs. The error names a policy that
// does not exist.
func New(c Config) (Policy, error) {
	if orders[c.Policy] == nil {
		return nil, fmt.Errorf("there is no policy %q, expected one of %s", c.Policy, strings.Join(Names(), ", "))
	}
	e := newEngine(c)
	if c.Limits != (Limits{}) {
		return newLimits(c, e), nil
	}
	return e, nil
}

// OneAtATime says whether a policy runs one invocation at a time on a GPU
// whatever the concurrency (R18).
func OneAtATime(policy string) bool { return policy == "lb" || policy == "lalb" || policy == "lalb-o3" }
