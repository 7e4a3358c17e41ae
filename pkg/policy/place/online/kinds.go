package online

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy"
)

// Kind is a scheduler that users can choose. To add one, add an entry to kinds and a function
// that returns its Fleet.
type Kind struct {
	Name string
	Help string // which instances may share a GPU, and which GPU is preferred
	New  func([]plan.Device, DiluOptions) *Fleet
}

// kinds lists the schedulers in the order of the man page. The first is the default. In the
// formulas, Σ is the sum over the instances on a GPU, request and limit are their SM request and
// SM limit as fractions of the GPU, and M is the memory of the GPU. α and β are DiluOptions.Alpha
// and Beta for dilu, and their defaults for infless.
var kinds = []Kind{
	{
		Name: "dilu", Help: "places an instance on a GPU if the sum of SM requests stays at most --omega, the sum of SM limits at most --gamma, and the memory fits. First, it considers the GPUs that host a friend of the instance's function: another function that shares some GPU with it. Then, it considers the other GPUs in use, and last the idle GPUs. Of the GPUs considered together, it takes the one with the lowest α(1 − Σ request) + β(1 − Σ memory / M) (section 3.3 of the Dilu paper)",
		New: Dilu,
	},
	{
		Name: "exclusive", Help: "gives each instance whole GPUs, on the node with the fewest idle GPUs among the nodes that have enough of them",
		New: func(d []plan.Device, _ DiluOptions) *Fleet { return Exclusive(d) },
	},
	{
		Name: "infless", Help: "places an instance on a GPU if the sum of SM limits stays at most 1 and the memory fits; prefers GPUs in use, and among these the one with the lowest α(1 − Σ limit) + β(1 − Σ memory / M)",
		New: func(d []plan.Device, _ DiluOptions) *Fleet { return INFless(d) },
	},
	{
		Name: "infless-requests", Help: "like infless, but with SM requests in place of SM limits",
		New: func(d []plan.Device, _ DiluOptions) *Fleet { return INFlessRequests(d) },
	},
	{
		Name: "fast", Help: "places an instance on a GPU if the sum of SM limits stays at most 1 and the memory fits; prefers GPUs in use, and among these the one with the fewest remaining SMs",
		New: func(d []plan.Device, _ DiluOptions) *Fleet { return FaST(d) },
	},
}

// Kinds returns the schedulers in the order of the man page.
func Kinds() []Kind { return slices.Clone(kinds) }

// Names returns the names of Kinds.
func Names() (names []string) {
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// DiluParameters are the parameters of Dilu's scheduler.
var DiluParameters = []policy.Parameter[DiluOptions]{
	policy.Value("omega", "1", "limit on the sum of the SM requests on a GPU", policy.Number,
		func(o *DiluOptions) *float64 { return &o.Omega }),
	policy.Value("gamma", "1.5", "limit on the sum of the SM limits on a GPU", policy.Number,
		func(o *DiluOptions) *float64 { return &o.Gamma }),
	policy.Value("alpha", "0.6", "weight α of the unrequested SMs of a GPU, 0 to 1", policy.Number,
		func(o *DiluOptions) *float64 { return &o.Alpha }),
	policy.Value("beta", "0.4", "weight β of the free memory of a GPU, 0 to 1", policy.Number,
		func(o *DiluOptions) *float64 { return &o.Beta }),
}
