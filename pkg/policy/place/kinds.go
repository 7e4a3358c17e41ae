package place

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
)

// Kind is a placement algorithm that users can choose. To add one, add an entry to kinds
// and a file with its function.
type Kind struct {
	Name string
	Help string // a phrase without a full stop
	// Parameters are the parameters that only some algorithms use.
	Parameters   []policy.Parameter[Options]
	SharesModels bool // it can keep a model's weights once on each GPU
	SpansGPUs    bool // it can place instances that span several GPUs
	// limits returns the input with the limits that the algorithm gives to rows without limits.
	// If it is nil, their limits equal their requests.
	limits func(Input) Input
	// plan returns a plan and the reasons for its configurations. If the kind does not
	// plan for Options.Model, Plan converts the plan.
	plan func(Input, Options) (plan.Plan, []string, error)
}

// Options are the settings of all algorithms.
type Options struct {
	JointOptions
	TieBreak TieBreak
	Order    Order              // empty means the algorithm's default
	Dilu     online.DiluOptions // Omega at most 1, because a plan's rectangles do not overlap
}

// kinds lists the algorithms in the order of the man page. The first is the default.
var kinds = []Kind{
	{
		Name: "joint", Help: "chooses configurations and places together, for all functions, with a proven bound (default)", SharesModels: true, SpansGPUs: true,
		plan: func(in Input, o Options) (plan.Plan, []string, error) { return Joint(in, o.JointOptions) },
	},
	{
		Name: "fast", Help: "FaST-GShare: chooses the configurations of each function separately, and packs them with the maximal rectangles algorithm", SharesModels: true,
		Parameters: []policy.Parameter[Options]{tieBreak, order},
		plan: func(in Input, o Options) (plan.Plan, []string, error) {
			p, err := Fast(in, o)
			return p, nil, err
		},
	},
	{
		Name: "dilu", Help: "Dilu: uses one configuration for each function, and places one instance after the other; the SM limits of the instances on a GPU may sum to more than 100%", SpansGPUs: true,
		Parameters: append([]policy.Parameter[Options]{order}, policy.Of(func(o *Options) *online.DiluOptions { return &o.Dilu }, online.DiluParameters)...), limits: Input.withLimits,
		plan: func(in Input, o Options) (plan.Plan, []string, error) {
			p, err := Dilu(in, o)
			return p, nil, err
		},
	},
}

// Parameters that only some algorithms use.
var (
	tieBreak = policy.Parameter[Options]{
		Key: "tie-break", Help: "quota to prefer if configurations are equally efficient", Values: []string{string(LargerQuota), string(SmallerQuota)},
		Set: func(o *Options, value string) error { o.TieBreak = TieBreak(value); return nil },
	}
	order = policy.Parameter[Options]{
		Key: "order", Help: "order in which instances are placed, largest first or as in the demand (default for dilu)", Values: []string{string(Largest), string(Arrival)},
		Set: func(o *Options, value string) error { o.Order = Order(value); return nil },
	}
)

// Kinds returns the algorithms in the order of the man page.
func Kinds() []Kind { return slices.Clone(kinds) }

// Parameters returns the parameters of all algorithms, each once. Their help begins with the
// names of the algorithms that use them.
func Parameters() (all []policy.Parameter[Options]) {
	for _, k := range kinds {
		for _, p := range k.Parameters {
			if policy.Find(all, p.Key) == nil {
				p.Help = "for " + strings.Join(namesOf(func(k Kind) bool { return k.Has(p.Key) }), " and ") + ": " + p.Help
				all = append(all, p)
			}
		}
	}
	return all
}

// Spanning returns the names of the algorithms that place instances that span GPUs.
func Spanning() []string { return namesOf(func(k Kind) bool { return k.SpansGPUs }) }

// Names returns the names of Kinds.
func Names() []string { return namesOf(func(Kind) bool { return true }) }

func namesOf(matches func(Kind) bool) (names []string) {
	for _, k := range filter(kinds, matches) {
		names = append(names, k.Name)
	}
	return names
}

// DefaultOptions returns the default settings.
func DefaultOptions() Options {
	return Options{JointOptions: JointOptions{Model: plan.ModelRect}, TieBreak: LargerQuota, Dilu: online.DiluDefaults()}
}

// Check returns an error if a setting is out of range. The error begins with its key.
func (o Options) Check() error {
	if o.Dilu.Omega > 1 {
		return fmt.Errorf("omega %v: expected at most 1, because the rectangles of a plan do not overlap", o.Dilu.Omega)
	}
	return o.Dilu.Validate()
}

// Has reports whether the algorithm has a parameter with that key.
func (k Kind) Has(key string) bool { return policy.Find(k.Parameters, key) != nil }

// WithLimits returns the input with the limits that the algorithm gives to rows without limits. Plan
// calls it; other uses of the input, such as Incremental, need the same limits.
func (k Kind) WithLimits(in Input) Input {
	if k.limits == nil {
		return in
	}
	return k.limits(in)
}

// Plan plans with the algorithm. It returns the plan and the reasons for its
// configurations, if the algorithm gives any.
func (k Kind) Plan(in Input, o Options) (plan.Plan, []string, error) {
	p, reasons, err := k.plan(k.WithLimits(in), o)
	if p.Model == plan.ModelRect && o.Model == plan.ModelTokens {
		p = Timetabled(p)
	}
	return p, reasons, err
}
