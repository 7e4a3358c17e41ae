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
		Name: "fcfs", Help: "the invocation that arrived first",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(v *view) order { return newFCFS(v) },
	},
	{
		Name: "fcfs-naive", Help: "like fcfs, but every invocation starts a new instance (cold)",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(v *view) order { return naive{newFCFS(v)} },
	},
	{
		Name: "batch", Help: "all waiting invocations of the function whose oldest invocation arrived first; they run one after another in one instance",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(v *view) order { return newFCFS(v) },
	},
	{
		Name: "sjf", Help: "an invocation of the function with the least warm_ms; a function that was passed over too often goes first (parameter starvation)",
		Parameters: []policy.Parameter[Options]{starvation, utilization},
		order:      func(v *view) order { return newSJF(v) },
	},
	{
		Name: "eevdf", Help: "the invocation with the earliest deadline, which is its arrival time plus its expected duration",
		Parameters: []policy.Parameter[Options]{utilization},
		order:      func(v *view) order { return newEEVDF(v) },
	},
	{
		Name: "mqfq", Help: "an invocation of the function with the least virtual time",
		Parameters: []policy.Parameter[Options]{ahead, correct, fixedCharge, utilization},
		order:      func(v *view) order { return newMQFQ(v, notSticky) },
	},
	{
		Name: "mqfq-sticky", Help: "like mqfq, but considers all functions whose virtual time exceeds the least one by no more than the parameter t; of these, it prefers the function with the fewest running invocations and, among functions with equally many, the longest queue",
		Parameters: []policy.Parameter[Options]{ahead, alpha, ttl, correct, fixedCharge, prefetch, swap, utilization},
		order:      func(v *view) order { return newMQFQ(v, sticky) },
	},
	{
		Name: "lb", Help: "the oldest invocation; it runs on an idle GPU, whether or not the GPU has its model",
		OneAtATime: true,
		order:      func(v *view) order { return newLALB(v, 0, false) },
	},
	{
		Name: "lalb", Help: "the oldest invocation; it runs on an idle GPU that has its model, or waits for a busy GPU that has it if this takes less time than loading the model; otherwise, it runs on any idle GPU, which loads the model",
		Parameters: []policy.Parameter[Options]{patient},
		OneAtATime: true,
		order:      func(v *view) order { return newLALB(v, 0, true) },
	},
	{
		Name: "lalb-o3", Help: "like lalb, but an idle GPU first runs the oldest invocation whose model it has, although others arrived earlier; an invocation is passed over a limited number of times (parameter limit)",
		Parameters: []policy.Parameter[Options]{visits, patient},
		OneAtATime: true,
		order:      func(v *view) order { return newLALB(v, v.config.Limit, true) },
	},
	{
		Name: "cfs-affinity", Help: "an invocation of the function with the least GPU time so far; if the invocation would run on another GPU than the function's previous one, a penalty is added to this time (parameter penalty)",
		Parameters: []policy.Parameter[Options]{penalty, correct, utilization},
		order:      func(v *view) order { return newCFS(v) },
	},
	{
		Name: "exclusive", Help: "the oldest invocation of the functions that own an idle GPU; each GPU belongs to one function at a time, and a function that needs a GPU takes it from the function that owns the most",
		order: func(v *view) order { return newExclusive(v) },
	},
	{
		Name:       "gfaas",
		Help:       "this project's policy, as fair as mqfq: an invocation of the function that needs the least time per invocation, including the start of an instance; functions whose virtual time is too far above the least one wait (parameter t); an invocation waits for a busy GPU if a start on another GPU would take longer; to make room, the policy evicts the idle instance whose eviction costs later invocations the least time",
		Parameters: []policy.Parameter[Options]{ahead, alpha, correct, prefetch, swap, utilization},
		order:      func(v *view) order { return newGfaas(v) },
	},
}

// Parameters of some policies.
var (
	ahead = policy.Parameter[Options]{
		Key: "t", Default: "10s", Help: "how far the virtual time of a function may be above the least one; a function that is farther ahead waits",
		Set: func(o *Options, v string) (err error) { o.T, err = ParseDuration(v); return err },
	}
	alpha = policy.Parameter[Options]{
		Key: "alpha", Default: "2", Help: "how long a function counts as active after its last invocation, in multiples of the mean time between its arrivals; mqfq-sticky evicts instances of inactive functions first",
		Set: func(o *Options, v string) (err error) { o.Alpha, err = csvfile.Number(v); return err },
	}
	ttl = policy.Parameter[Options]{
		Key: "ttl", Help: "duration (off by default); how long every function counts as active after its last invocation, in place of alpha",
		Set: func(o *Options, v string) (err error) {
			o.TTL, err = ParseDuration(v)
			o.FixedTTL = err == nil
			return err
		},
	}
	fixedCharge = policy.Parameter[Options]{
		Key: "charge", Help: "duration (off by default); what the virtual time is charged for every invocation, in place of the time that it executes, as if all functions took equally long",
		Set: func(o *Options, v string) (err error) { o.Charge, err = ParseDuration(v); return err },
	}
	visits = policy.Parameter[Options]{
		Key: "limit", Default: "25", Help: "how many times an invocation may be passed over",
		Set: func(o *Options, v string) (err error) { o.Limit, err = parseCount(v); return err },
	}
	starvation = policy.Parameter[Options]{
		Key: "starvation", Default: "25", Help: "a function goes first when it is this number of dispatches behind its equal share of all dispatches",
		Set: func(o *Options, v string) (err error) { o.Starvation, err = csvfile.Number(v); return err },
	}
	penalty = policy.Parameter[Options]{
		Key: "penalty", Default: "10", Help: "GPU time that is added to the function's if an invocation runs on another GPU than its previous one, in multiples of the mean duration of its invocations",
		Set: func(o *Options, v string) (err error) { o.Penalty, err = csvfile.Number(v); return err },
	}
	correct = policy.Parameter[Options]{
		Key: "correct", Default: "true", Help: "true: virtual time and GPU time count the time that an invocation executed; false: they count the time that was expected at its dispatch, as in the papers",
		Set: func(o *Options, v string) error {
			correct, err := strconv.ParseBool(v)
			o.Uncorrected = !correct
			return err
		},
	}
	patient = policy.Parameter[Options]{
		Key: "patient", Default: "false", Help: "true: an invocation that waits for a busy GPU keeps waiting if the GPU takes longer than expected, as in the paper; false: the policy then decides again",
		Set: func(o *Options, v string) (err error) { o.Patient, err = strconv.ParseBool(v); return err },
	}
	prefetch = policy.Parameter[Options]{
		Key: "prefetch", Default: "false", Help: "true: when an invocation arrives at an empty queue, the memory of an idle instance of the function is moved back to the GPU before the invocation is dispatched; with swap=true, also when the function no longer waits because it is too far ahead",
		Set: func(o *Options, v string) (err error) { o.Prefetch, err = strconv.ParseBool(v); return err },
	}
	swap = policy.Parameter[Options]{
		Key: "swap", Default: "false", Help: "true: the memory of a function's idle instances is moved to the host as soon as the function is inactive or waits because it is too far ahead (parameter t); false: it is moved when an invocation needs room",
		Set: func(o *Options, v string) (err error) { o.Swap, err = strconv.ParseBool(v); return err },
	}
	utilization = policy.Parameter[Options]{
		Key: "utilization", Help: "percentage (off by default); while a GPU is busy for more of its time than this, it runs fewer than --concurrency invocations at once",
		Set: func(o *Options, v string) (err error) { o.Utilization, err = ParseShare(v); return err },
	}
)

// ForTenants holds the parameters of every policy: limits for each tenant.
var ForTenants = []policy.Parameter[Options]{
	{
		Key: "tenant-slots", Help: "maximum number of invocations of a tenant that run at the same time",
		Set: func(o *Options, v string) (err error) { o.Limits.Slots, err = parseCount(v); return err },
	},
	{
		Key: "tenant-processes", Help: "maximum number of instances of a tenant on all GPUs, including idle ones; a start stops the tenant's least recently used idle instance if there are more",
		Set: func(o *Options, v string) (err error) { o.Limits.Processes, err = parseCount(v); return err },
	},
	{
		Key: "tenant-mem", Help: "maximum GPU memory of a tenant's running invocations, like 8GiB, and of its instances, including idle ones; a start evicts the tenant's least recently used idle instances if they would use more",
		Set: func(o *Options, v string) error {
			b, err := gpu.ParseMemory(v)
			o.Limits.Mem = int64(b)
			return err
		},
	},
	{
		Key: "tenant-time", Help: "maximum percentage of the GPUs' time that a tenant may use in a period of 10 s",
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

// ParseDuration parses a duration that is not negative.
func ParseDuration(value string) (time.Duration, error) {
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
