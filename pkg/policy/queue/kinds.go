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

// Kind describes a queueing policy. To add one, add an entry to kinds and a file with a type that
// implements order.
type Kind struct {
	Name string
	Help string // the invocation that the policy dispatches next; a phrase without a full stop
	// Parameters are specific to some policies. In addition, every policy has the parameters of
	// ForTenants.
	Parameters []policy.Parameter[Options]
	// OneAtATime reports whether the policy runs one invocation at a time on a GPU, regardless of
	// the concurrency (R18).
	OneAtATime bool
	// Starves reports whether an invocation may wait without bound while others arrive.
	Starves bool
	order   func(*view) order
}

// kinds lists the policies in the order of the man pages.
var kinds = []Kind{
	{
		Name: "fcfs", Help: "the oldest invocation",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(v *view) order { return newFCFS(v) },
	},
	{
		Name: "fcfs-naive", Help: "like fcfs, without a pool: every start is cold",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(v *view) order { return naive{newFCFS(v)} },
	},
	{
		Name: "batch", Help: "all waiting invocations of the function with the oldest one",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(v *view) order { return newFCFS(v) },
	},
	{
		Name: "sjf", Help: "the function with the shortest invocations; a function that was passed over too often goes first",
		Parameters: []policy.Parameter[Options]{starvation, utilization},
		order:      func(v *view) order { return newSJF(v) },
	},
	{
		Name: "eevdf", Help: "the invocation with the earliest deadline: its arrival plus its expected duration",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(v *view) order { return newEEVDF(v) },
	},
	{
		Name: "mqfq", Help: "fair queueing: the function that executed least so far",
		Parameters: []policy.Parameter[Options]{ahead, correct, utilization},
		order:      func(v *view) order { return newMQFQ(v, false) },
	},
	{
		Name: "mqfq-sticky", Help: "of the functions whose virtual time is at most t ahead of the least one, the one with the fewest invocations in flight, then the one with the most waiting invocations",
		Parameters: []policy.Parameter[Options]{ahead, alpha, correct, prefetch, utilization},
		order:      func(v *view) order { return newMQFQ(v, true) },
	},
	{
		Name: "lb", Help: "the oldest invocation on any idle GPU",
		OneAtATime: true,
		order:      func(v *view) order { return newLALB(v, 0, false) },
	},
	{
		Name: "lalb", Help: "an invocation on a GPU that has its model, even a busy one if that is faster",
		Parameters: []policy.Parameter[Options]{patient},
		OneAtATime: true,
		order:      func(v *view) order { return newLALB(v, 0, true) },
	},
	{
		Name: "lalb-o3", Help: "like lalb, but passes over invocations whose model the idle GPU does not have, each at most limit times",
		Parameters: []policy.Parameter[Options]{visits, patient},
		OneAtATime: true,
		order:      func(v *view) order { return newLALB(v, v.config.Limit, true) },
	},
	{
		Name: "cfs-affinity", Help: "the function with the least GPU time; moving it to another GPU counts as penalty times its mean duration",
		Parameters: []policy.Parameter[Options]{penalty, correct, utilization},
		order:      func(v *view) order { return newCFS(v) },
	},
	{
		Name: "exclusive", Help: "the oldest invocation, on a GPU that its function owns; each GPU belongs to one function at a time",
		order: func(v *view) order { return newExclusive(v) },
	},
	{
		Name:       "gfaas",
		Help:       "this project's policy, with mqfq's bound on unfairness: of the functions that are not too far ahead, the one that needs the least time per invocation, including starts; waits for a busy GPU if a new start would take longer, and evicts the instance with the least worth (R27)",
		Parameters: []policy.Parameter[Options]{ahead, correct, utilization},
		order:      func(v *view) order { return newGfaas(v) },
	},
}

// Parameters of some policies.
var (
	ahead = policy.Parameter[Options]{
		Key: "t", Default: "10s", Help: "how far ahead of the others a function may run",
		Set: func(o *Options, v string) (err error) { o.T, err = parseDuration(v); return err },
	}
	alpha = policy.Parameter[Options]{
		Key: "alpha", Default: "2", Help: "for how many of its mean inter-arrival times an idle function keeps its instances",
		Set: func(o *Options, v string) (err error) { o.Alpha, err = csvfile.Number(v); return err },
	}
	visits = policy.Parameter[Options]{
		Key: "limit", Default: "25", Help: "how often an invocation may be passed over",
		Set: func(o *Options, v string) (err error) { o.Limit, err = parseCount(v); return err },
	}
	starvation = policy.Parameter[Options]{
		Key: "starvation", Default: "25", Help: "the deficit at which a function goes first: how far it is behind an equal share of the dispatches",
		Set: func(o *Options, v string) (err error) { o.Starvation, err = csvfile.Number(v); return err },
	}
	penalty = policy.Parameter[Options]{
		Key: "penalty", Default: "10", Help: "what moving to another GPU counts as, in mean durations of the function",
		Set: func(o *Options, v string) (err error) { o.Penalty, err = csvfile.Number(v); return err },
	}
	correct = policy.Parameter[Options]{
		Key: "correct", Default: "true", Help: "charge the time that was executed; false charges the expected time, as in the papers",
		Set: func(o *Options, v string) error {
			correct, err := strconv.ParseBool(v)
			o.Uncorrected = !correct
			return err
		},
	}
	patient = policy.Parameter[Options]{
		Key: "patient", Default: "false", Help: "wait for a busy GPU without regard to the time that its work takes, as in the paper",
		Set: func(o *Options, v string) (err error) { o.Patient, err = strconv.ParseBool(v); return err },
	}
	prefetch = policy.Parameter[Options]{
		Key: "prefetch", Default: "false", Help: "move an instance's memory back to the GPU when an invocation arrives at an empty queue",
		Set: func(o *Options, v string) (err error) { o.Prefetch, err = strconv.ParseBool(v); return err },
	}
	utilization = policy.Parameter[Options]{
		Key: "utilization", Help: "percentage; while a GPU is busier than that, it runs fewer than --concurrency invocations at once",
		Set: func(o *Options, v string) (err error) { o.Utilization, err = ParseShare(v); return err },
	}
)

// ForTenants holds the parameters of every policy: limits for each tenant.
var ForTenants = []policy.Parameter[Options]{
	{
		Key: "tenant-slots", Help: "most invocations of a tenant that run at once",
		Set: func(o *Options, v string) (err error) { o.Limits.Slots, err = parseCount(v); return err },
	},
	{
		Key: "tenant-mem", Help: "most GPU memory of a tenant, like 8GiB",
		Set: func(o *Options, v string) error {
			b, err := gpu.ParseMemory(v)
			o.Limits.Mem = int64(b)
			return err
		},
	},
	{
		Key: "tenant-time", Help: "most of the GPUs' time in every 10 s that a tenant may have, in percent",
		Set: func(o *Options, v string) (err error) { o.Limits.Time, err = ParseShare(v); return err },
	},
}

// Defaults returns the papers' parameters.
func Defaults() Options {
	return Options{T: 10 * time.Second, Alpha: 2, Limit: 25, Starvation: 25, Penalty: 10}
}

// Kinds returns the policies in the order of the man pages.
func Kinds() []Kind { return slices.Clone(kinds) }

// Names returns the names of Kinds.
func Names() (names []string) {
	for i := range kinds {
		names = append(names, kinds[i].Name)
	}
	return names
}

// kindOf returns the policy with that name, or nil.
func kindOf(name string) *Kind {
	if i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name }); i >= 0 {
		return &kinds[i]
	}
	return nil
}

// OneAtATime reports whether the policy with that name runs one invocation at a time on a GPU,
// regardless of the concurrency (R18). It returns false for unknown names.
func OneAtATime(name string) bool {
	kind := kindOf(name)
	return kind != nil && kind.OneAtATime
}

// Parameters returns the parameters of all policies, each once.
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

// Ignored returns those keys of Parameters that the named policies do not use.
func Ignored(keys []string, names ...string) (ignored []string) {
	all := Parameters()
	for _, key := range keys {
		used := policy.Find(all, key) == nil || policy.Find(ForTenants, key) != nil ||
			key == correct.Key && slices.Contains(keys, "tenant-time") // the limits charge tenants as well
		for _, name := range names {
			kind := kindOf(name)
			used = used || kind != nil && policy.Find(kind.Parameters, key) != nil
		}
		if !used {
			ignored = append(ignored, key)
		}
	}
	return ignored
}

// parseDuration parses a duration that is not negative.
func parseDuration(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || number.Vanished(value, float64(d)) {
		return 0, fmt.Errorf("%s is not a duration, expected one like 10s", csvfile.Quote(value))
	}
	return d, nil
}

// ParseShare parses a percentage above 0 and returns it as a fraction.
func ParseShare(value string) (float64, error) {
	v, err := csvfile.Percent(value)
	return v / 100, err
}

// parseCount parses a whole number that is not negative.
func parseCount(value string) (int, error) {
	n, err := csvfile.Count(value, 0)
	return int(n), err
}
