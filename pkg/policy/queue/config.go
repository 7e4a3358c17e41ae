package queue

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// Config is the machine, the functions and what the policies can be told.
type Config struct {
	Policy      string
	Functions   []Function
	GPUs        int
	Mem         int64 // bytes of memory of each GPU; 0 is no limit
	Concurrency int   // invocations that a GPU runs at once (D); lb and lalb run one
	Pool        int   // containers on each GPU, or residency.Unlimited
	Options
}

// Options are the parameters of the policies.
type Options struct {
	T          time.Duration // mqfq: how far a queue may run ahead
	Alpha      float64       // mqfq: a queue stays active for Alpha times its inter-arrival time
	Limit      int           // lalb-o3: how often an invocation may be passed over
	Starvation float64       // sjf: the deficit from which a function goes first
	Penalty    float64       // cfs-affinity: mean durations that leaving a GPU costs
	Correct    bool          // mqfq: charge what was executed instead of what was expected
	Prefetch   bool          // mqfq-sticky: an invocation at an idle queue brings its memory back
	// Utilization, unless 0, is how busy a GPU may be, 0 to 1: Used events then
	// change how many invocations run at once, up to Concurrency.
	Utilization float64
	Limits
}

// Defaults are the parameters as published.
func Defaults() Options {
	return Options{T: 10 * time.Second, Alpha: 2, Limit: 25, Starvation: 25, Penalty: 10}
}

// builders makes each policy; names lists them in the order of the manual.
var builders = map[string]func(Config) Policy{
	"fcfs":         ordered(func(_ Config, e *engine) order { return newFCFS(e.queues) }),
	"fcfs-naive":   newNaive,
	"batch":        newBatch,
	"sjf":          ordered(func(c Config, e *engine) order { return newSJF(c, e.queues) }),
	"eevdf":        ordered(func(_ Config, e *engine) order { return newEEVDF(e) }),
	"mqfq":         ordered(func(c Config, e *engine) order { return newMQFQ(c, e.queues, false) }),
	"mqfq-sticky":  ordered(func(c Config, e *engine) order { return newMQFQ(c, e.queues, true) }),
	"lb":           func(c Config) Policy { return newLB(c) },
	"lalb":         func(c Config) Policy { return newLALB(c, 0) },
	"lalb-o3":      func(c Config) Policy { return newLALB(c, c.Limit) },
	"cfs-affinity": ordered(func(c Config, e *engine) order { return newCFS(c, e) }),
	"exclusive":    newExclusive,
	"gfaas":        ordered(func(c Config, e *engine) order { return newGfaas(c, e) }),
}

// Names are the policies there are.
func Names() []string {
	return []string{"fcfs", "fcfs-naive", "batch", "sjf", "eevdf", "mqfq", "mqfq-sticky", "lb", "lalb", "lalb-o3",
		"cfs-affinity", "exclusive", "gfaas"}
}

// New makes a policy. The error names a policy that does not exist.
func New(c Config) (Policy, error) {
	build, known := builders[c.Policy]
	if !known {
		return nil, fmt.Errorf("there is no policy %q, expected one of %s", c.Policy, strings.Join(Names(), ", "))
	}
	c.Functions = slices.Clone(c.Functions)
	return limited(c, build(c)), nil
}

// ordered makes an engine with that order.
func ordered(build func(Config, *engine) order) func(Config) Policy {
	return func(c Config) Policy { return newEngine(c, build) }
}

func newEngine(c Config, build func(Config, *engine) order) *engine {
	e := &engine{functions: c.Functions, queues: newWaiting(len(c.Functions))}
	e.order = build(c, e)
	shape := c.shape()
	if q, ok := e.order.(*mqfq); ok && q.sticky {
		shape.Keep = q.keep
	}
	if o, ok := e.order.(*gfaas); ok {
		shape.Worth = o.worth
	}
	e.follower, _ = e.order.(follower)
	if c.Utilization > 0 {
		e.adaptive = newAdaptive(c)
	}
	e.prefetch = c.Prefetch && shape.Keep != nil
	e.pool = residency.New(shape)
	return e
}

// shape is the machine as a pool of containers knows it.
func (c Config) shape() residency.Config {
	shape := residency.Config{GPUs: c.GPUs, Slots: c.Concurrency, Pool: c.Pool, Mem: c.Mem,
		Function: make([]residency.Function, len(c.Functions))}
	for i := range c.Functions {
		shape.Function[i] = residency.Function{Duration: c.Functions[i].expected(), Mem: c.Functions[i].Mem}
	}
	return shape
}

// newNaive is fcfs without a pool: every start is cold (R11).
func newNaive(c Config) Policy {
	c.Pool = 0
	return newEngine(c, func(_ Config, e *engine) order { return newFCFS(e.queues) })
}

func newBatch(c Config) Policy {
	e := newEngine(c, func(_ Config, e *engine) order { return newFCFS(e.queues) })
	e.batches = &batches{}
	return e
}

// OneAtATime says whether a policy runs one invocation at a time on a GPU
// whatever the concurrency (R18).
func OneAtATime(policy string) bool { return policy == "lb" || policy == "lalb" || policy == "lalb-o3" }
