package scale

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Kind is a kind of scaler that users can choose. To add one, add an entry to Kinds and a
// file with its rule.
type Kind struct {
	Name       string
	Help       string // sentences
	Parameters []policy.Parameter[Options]
	// Uniform reports whether all instances are like Setup.Unit. Otherwise the scaler
	// chooses among the profile's rows.
	Uniform bool
	// Rises reports whether instances may use more than their quota request, up to their
	// quota limit.
	Rises bool
	// Estimates reports whether the scaler follows an estimate of the load.
	Estimates bool
	New       func(Setup) *Scaler
}

// Setup is the input of Kind.New.
type Setup struct {
	Rows []profile.Row // of the function, each with a throughput
	Unit Instance      // for kinds that are Uniform
	Load Estimator     // for kinds that follow an estimate
	Options
}

// Options are the settings of all scalers and estimators.
type Options struct {
	Bounds   Bounds
	Lazy     LazyOptions
	Estimate EstimatorOptions
}

// DefaultOptions returns the default settings.
func DefaultOptions() Options {
	return Options{Lazy: DefaultLazy(), Estimate: DefaultEstimator()}
}

// Kinds returns the kinds of scaler in the order in which the man pages list them.
func Kinds() []Kind {
	return []Kind{
		{
			Name: "lazy", Uniform: true, Rises: true,
			Help: "keeps the number of instances while the load changes only for a short time. It remembers the load of the last seconds (their number is the parameter window). It starts instances if the load was too high in at least a certain number of these seconds (the parameter named out), and stops some if fewer instances would have sufficed in more than another number of them (the parameter named in). For this, the capacity of an instance is its throughput with the smallest quota in the profile that meets the slo. While the load exceeds this capacity, the instance may use more GPU time, up to the largest quota in the profile with the same sm_pct. If even the largest quota does not suffice for some consecutive seconds (parameter surge), instances are started at once. This is the rule of the Dilu paper, except for surge, which the paper does not have.",
			Parameters: []policy.Parameter[Options]{
				policy.Value("window", "40", "length of the window in seconds", whole,
					func(o *Options) *int { return &o.Lazy.Window }),
				policy.Value("out", "20", "start instances if the load was too high in at least this number of seconds of the window", whole,
					func(o *Options) *int { return &o.Lazy.Out }),
				policy.Value("in", "30", "stop instances if fewer would have sufficed in more than this number of seconds of the window", whole,
					func(o *Options) *int { return &o.Lazy.In }),
				policy.Value("surge", "1", "start instances at once after this number of consecutive seconds in which even the largest quota did not suffice; 0: never, as in the paper", whole,
					func(o *Options) *int { return &o.Lazy.Surge }),
			},
			New: func(s Setup) *Scaler { return NewLazy(s.Unit, s.Lazy, s.Bounds) },
		},
		{
			Name: "eager", Uniform: true, Estimates: true,
			Help: "runs as many instances as the estimated load needs, each with the smallest quota in the profile that meets the slo, and adjusts their number every second.",
			New:  func(s Setup) *Scaler { return NewEager(s.Unit, s.Load, s.Bounds) },
		},
		{
			Name: "infless", Uniform: true,
			Help: "starts instances as soon as the load needs them, each with the smallest quota in the profile that meets the slo. An instance that the load no longer needs stays for some time, in case the load needs it again. This time is the 99th percentile of the pauses after which instances were needed again in the past. More exactly, it is the mean of two percentiles: that of all pauses, and that of the last 10. Before the first pause has ended, it is a minute. This is the rule of INFless, a baseline of the Dilu paper, without the part that starts instances in advance.",
			New:  func(s Setup) *Scaler { return NewINFless(s.Unit, s.Bounds) },
		},
		{
			Name: "heuristic", Estimates: true,
			Help: "serves the estimated load with those configurations in the profile that have the highest throughput per share of a GPU. If fewer instances suffice, it first stops those with the lowest throughput per share. This is the rule of the FaST-GShare paper.",
			New:  func(s Setup) *Scaler { return NewHeuristic(s.Rows, s.Load, s.Bounds) },
		},
	}
}

// KindOf returns the kind of scaler with that name, and whether there is one.
func KindOf(name string) (Kind, bool) {
	for _, k := range Kinds() {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// Names returns the names of Kinds.
func Names() (names []string) {
	for _, k := range Kinds() {
		names = append(names, k.Name)
	}
	return names
}

// ForBounds are the parameters of every scaler.
var ForBounds = []policy.Parameter[Options]{
	policy.Value("min", "0", "least number of running instances", whole,
		func(o *Options) *int { return &o.Bounds.Min }),
	policy.Value("max", "0", "largest number of running instances; 0: no limit", whole,
		func(o *Options) *int { return &o.Bounds.Max }),
	{Key: "idle", Default: "0", Help: "seconds without requests after which all instances beyond min stop; until then, at least one keeps running", Set: func(o *Options, value string) error {
		seconds, err := whole(value)
		const most = 1<<31 - 1
		o.Bounds.Idle = time.Duration(min(seconds, most)) * time.Second
		return err
	}},
}

// Check returns an error if a setting is out of range.
func (o Options) Check() error {
	if err := o.Lazy.Check(); err != nil {
		return err
	}
	return o.Bounds.Check()
}

// whole parses a whole number.
func whole(value string) (int, error) {
	n, err := strconv.Atoi(value)
	return n, asNumber(err)
}

// positive parses a number above 0.
func positive(value string) (float64, error) {
	v, err := csvfile.Positive(value)
	return v, asNumber(err)
}

func asNumber(err error) error {
	if err != nil {
		return errors.New("expected a number")
	}
	return nil
}

// EstimatorKind is a kind of Estimator that users can choose. To add one, add an entry to
// EstimatorKinds and a type that implements Estimator.
type EstimatorKind struct {
	Name       string
	Help       string // a noun phrase
	Parameters []policy.Parameter[Options]
	New        func(EstimatorOptions) (Estimator, error)
}

// EstimatorKinds returns the kinds of estimator in the order in which the man pages list
// them.
func EstimatorKinds() []EstimatorKind {
	return []EstimatorKind{
		{Name: "last", Help: "the load of the last second", New: func(EstimatorOptions) (Estimator, error) { return Last{}, nil }},
		{
			Name: "window", Help: "the highest load of the last seconds", New: newWindow,
			Parameters: []policy.Parameter[Options]{policy.Value("window", "10", "number of seconds", whole,
				func(o *Options) *int { return &o.Estimate.Window })},
		},
		{
			Name: "ewma", Help: "an exponential moving average of the load", New: newEWMA,
			Parameters: []policy.Parameter[Options]{policy.Value("alpha", "0.3", "weight of the latest second", positive,
				func(o *Options) *float64 { return &o.Estimate.Alpha })},
		},
		{
			Name: "kalman", Help: "the output of a Kalman filter", New: newKalman,
			Parameters: []policy.Parameter[Options]{
				policy.Value("process", "1", "variance of the change of the load in a second", positive,
					func(o *Options) *float64 { return &o.Estimate.Process }),
				policy.Value("noise", "10", "variance of the measured load around the true load", positive,
					func(o *Options) *float64 { return &o.Estimate.Noise }),
			},
		},
	}
}

// estimatorKind returns the kind of estimator with that name. The error lists the names.
func estimatorKind(name string) (EstimatorKind, error) {
	for _, k := range EstimatorKinds() {
		if k.Name == name {
			return k, nil
		}
	}
	return EstimatorKind{}, fmt.Errorf("unknown estimator %q, expected %s", name, strings.Join(Estimators(), ", "))
}

// Estimating returns the names of the scalers that follow an estimate of the load.
func Estimating() (names []string) {
	for _, k := range Kinds() {
		if k.Estimates {
			names = append(names, k.Name)
		}
	}
	return names
}

// ParametersOf returns the parameters of a scaler with an estimator, bounds included.
func ParametersOf(scaler, estimator string) []policy.Parameter[Options] {
	return append(slices.Clone(ForBounds), RuleParameters(scaler, estimator)...)
}

// RuleParameters returns the parameters of a scaler with an estimator, without bounds.
func RuleParameters(scaler, estimator string) (all []policy.Parameter[Options]) {
	kind, _ := KindOf(scaler)
	all = append(all, kind.Parameters...)
	if kind.Estimates {
		if e, err := estimatorKind(estimator); err == nil {
			all = append(all, e.Parameters...)
		}
	}
	return all
}
