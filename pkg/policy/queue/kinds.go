package queue

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy"
)

// Kind is a queueing policy that users can choose. A new one is an entry of kinds and a
// file with its order.
type Kind struct {
	Name string
	Help string // a phrase, without a full stop
	// Parameters are those that only some policies use. Every policy has those of
	// ForTenants besides.
	Parameters []policy.Parameter[Options]
	// OneAtATime reports whether it runs one invocation at a time on a GPU, whatever the
	// concurrency (R18).
	OneAtATime bool
	// Starves reports whether an invocation may wait for as long as others come.
	Starves bool
	order   func(*engine) order
}

// kinds are the policies in the order of the manual.
var kinds = []Kind{
	{
		Name: "fcfs", Help: "the oldest invocation",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(e *engine) order { return newFCFS(e) },
	},
	{
		Name: "fcfs-naive", Help: "the same without a pool: every start is cold",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(e *engine) order { return naive{newFCFS(e)} },
	},
	{
		Name: "batch", Help: "all that waits for the function whose invocation is the oldest",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(e *engine) order { return newFCFS(e) },
	},
	{
		Name: "sjf", Help: "the shortest function; one passed over too often goes before it",
		Parameters: []policy.Parameter[Options]{starvation, utilization},
		order:      func(e *engine) order { return newSJF(e) },
	},
	{
		Name: "eevdf", Help: "the earliest deadline: arrival plus the duration to expect",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(e *engine) order { return newEEVDF(e) },
	},
	{
		Name: "mqfq", Help: "fair queueing: the function that executed least so far",
		Parameters: []policy.Parameter[Options]{ahead, correct, utilization},
		order:      func(e *engine) order { return newMQFQ(e, false) },
	},
	{
		Name: "mqfq-sticky", Help: "the same, but of the functions within t of it the one with fewest in flight, then the most waiting",
		Parameters: []policy.Parameter[Options]{ahead, alpha, correct, prefetch, utilization},
		order:      func(e *engine) order { return newMQFQ(e, true) },
	},
	{
		Name: "lb", Help: "the oldest invocation on any idle GPU",
		OneAtATime: true,
		order:      func(e *engine) order { return newLALB(e, 0, false) },
	},
	{
		Name: "lalb", Help: "on a GPU that has its model, even a busy one if that is faster",
		Parameters: []policy.Parameter[Options]{patient},
		OneAtATime: true,
		order:      func(e *engine) order { return newLALB(e, 0, true) },
	},
	{
		Name: "lalb-o3", Help: "the same, passing over invocations whose model the idle GPU does not have, each at most limit times",
		Parameters: []policy.Parameter[Options]{visits, patient},
		OneAtATime: true,
		order:      func(e *engine) order { return newLALB(e, e.config.Limit, true) },
	},
	{
		Name: "cfs-affinity", Help: "the function with the least GPU time; leaving a GPU costs penalty mean durations",
		Parameters: []policy.Parameter[Options]{penalty, correct, utilization},
		order:      func(e *engine) order { return newCFS(e) },
	},
	{
		Name: "exclusive", Help: "each GPU belongs to one function at a time",
		order: func(e *engine) order { return newExclusive(e) },
	},
	{
		Name:       "gfaas",
		Help:       "ours: as fair as mqfq at the same t, but of the functions allowed the one that takes least time an invocation; waits for a busy GPU rather than start anew, and evicts what is missed least",
		Parameters: []policy.Parameter[Options]{ahead, correct, utilization},
		order:      func(e *engine) order { return newGfaas(e) },
	},
}

// Parameters that only some policies use.
var (
	ahead = policy.Parameter[Options]{
		Key: "t", Default: "10s", Help: "how far ahead a function may run",
		Set: func(o *Options, v string) (err error) { o.T, err = duration(v); return err },
	}
	alpha = policy.Parameter[Options]{
		Key: "alpha", Default: "2", Help: "how many mean inter-arrival times an idle function keeps its containers",
		Set: func(o *Options, v string) (err error) { o.Alpha, err = csvfile.Number(v); return err },
	}
	visits = policy.Parameter[Options]{
		Key: "limit", Default: "25", Help: "how often an invocation may be passed over",
		Set: func(o *Options, v string) (err error) { o.Limit, err = whole(v); return err },
	}
	starvation = policy.Parameter[Options]{
		Key: "starvation", Default: "25", Help: "the deficit from which a function goes first",
		Set: func(o *Options, v string) (err error) { o.Starvation, err = csvfile.Number(v); return err },
	}
	penalty = policy.Parameter[Options]{
		Key: "penalty", Default: "10", Help: "mean durations that leaving a GPU costs",
		Set: func(o *Options, v string) (err error) { o.Penalty, err = csvfile.Number(v); return err },
	}
	correct = policy.Parameter[Options]{
		Key: "correct", Default: "true", Help: "charge what was executed; false charges what was expected, as in the papers",
		Set: func(o *Options, v string) error {
			correct, err := strconv.ParseBool(v)
			o.Uncorrected = !correct
			return err
		},
	}
	patient = policy.Parameter[Options]{
		Key: "patient", Default: "false", Help: "wait for a busy GPU however long its work takes, as in the paper",
		Set: func(o *Options, v string) (err error) { o.Patient, err = strconv.ParseBool(v); return err },
	}
	prefetch = policy.Parameter[Options]{
		Key: "prefetch", Default: "false", Help: "bring memory back when invocations come to an idle function",
		Set: func(o *Options, v string) (err error) { o.Prefetch, err = strconv.ParseBool(v); return err },
	}
	utilization = policy.Parameter[Options]{
		Key: "utilization", Help: "percent; while a GPU is busier than that, it runs fewer than --concurrency at once",
		Set: func(o *Options, v string) (err error) { o.Utilization, err = Share(v); return err },
	}
)

// ForTenants are the parameters of every policy: what each tenant may have.
var ForTenants = []policy.Parameter[Options]{
	{
		Key: "tenant-slots", Help: "invocations of a tenant at once",
		Set: func(o *Options, v string) (err error) { o.Limits.Slots, err = whole(v); return err },
	},
	{
		Key: "tenant-mem", Help: "memory of a tenant, like 8GiB",
		Set: func(o *Options, v string) error {
			b, err := gpu.ParseMemory(v)
			o.Limits.Mem = int64(b)
			return err
		},
	},
	{
		Key: "tenant-time", Help: "percent of the GPUs' time in every 10 s that a tenant may have",
		Set: func(o *Options, v string) (err error) { o.Limits.Time, err = Share(v); return err },
	},
}

// Defaults returns the parameters as published.
func Defaults() Options {
	return Options{T: 10 * time.Second, Alpha: 2, Limit: 25, Starvation: 25, Penalty: 10}
}

// Kinds returns the policies in the order of the manual.
func Kinds() []Kind { return slices.Clone(kinds) }

// Names returns the names of Kinds.
func Names() (names []string) {
	for i := range kinds {
		names = append(names, kinds[i].Name)
	}
	return names
}

// kindOf returns the policy of that name, or nil.
func kindOf(name string) *Kind {
	if i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name }); i >= 0 {
		return &kinds[i]
	}
	return nil
}

// OneAtATime reports whether the policy of that name runs one invocation at a time on a GPU,
// whatever the concurrency (R18).
func OneAtATime(name string) bool {
	kind := kindOf(name)
	return kind != nil && kind.OneAtATime
}

// Parameters returns those of all policies, each once.
func Parameters() (all []policy.Parameter[Options]) {
	for i := range kinds {
		for _, p := range kinds[i].Parameters {
			if policy.Find(all, p.Key) == nil {
				all = append(all, p)
			}
		}
	}
	return append(all, ForTenants...)
}

// Ignored returns those of the keys of Parameters that none of the policies uses.
func Ignored(keys []string, names ...string) (out []string) {
	all := Parameters()
	for _, key := range keys {
		used := policy.Find(all, key) == nil || policy.Find(ForTenants, key) != nil ||
			key == correct.Key && slices.Contains(keys, "tenant-time") // which charges, too
		for _, name := range names {
			kind := kindOf(name)
			used = used || kind != nil && policy.Find(kind.Parameters, key) != nil
		}
		if !used {
			out = append(out, key)
		}
	}
	return out
}

// duration parses a duration that is not negative.
func duration(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || number.Vanished(value, float64(d)) {
		return 0, fmt.Errorf("%s is not a duration, expected one like 10s", csvfile.Quote(value))
	}
	return d, nil
}

// Share parses a percentage above 0 and returns it as a fraction.
func Share(value string) (float64, error) {
	v, err := csvfile.Percent(value)
	return v / 100, err
}

// whole parses a whole number that is not negative.
func whole(value string) (int, error) {
	n, err := csvfile.Count(value, 0)
	return int(n), err
}
