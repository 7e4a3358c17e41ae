package placement

import (
	"errors"
	"strconv"

	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
)

// Kind is a placement that users can choose. To add one, add an entry to kinds and a file with its
// Placer.
type Kind struct {
	Name string
	Help string // where an instance goes
	// Scaled reports whether the placer chooses the GPU of each instance of a scaled function. Otherwise
	// it only chooses the GPUs of instances that span several.
	Scaled     bool
	Parameters []policy.Parameter[Options]
	New        func([]GPU, Options) Placer
}

// Options are the parameters of all placements.
type Options struct {
	Dilu      online.DiluOptions
	Threshold int // length of a list of free rectangles above which it is rebuilt
}

// DefaultOptions returns the default parameters.
func DefaultOptions() Options {
	return Options{Dilu: online.DiluDefaults(), Threshold: maxrect.DefaultThreshold}
}

// Check returns an error if a parameter is out of range. The error begins with its name.
func (o Options) Check() error { return o.Dilu.Validate() }

// kinds lists the placements in the order of the man page. The first is the default.
var kinds = []Kind{
	{
		Name: "policy", New: newWorstFit,
		Help: "the queueing policy places an instance of one GPU: on the GPU with the fewest instances of the function and enough free memory, or where a waiting call runs soonest. An instance that spans several GPUs goes to those with the most free memory (worst fit)",
	},
	{
		Name: "dilu", Scaled: true, New: newDilu,
		Help:       "on a GPU where the sum of the requested shares stays at most omega, the sum of the shares up to the limits at most gamma, and the memory fits. First, a GPU with a friend of the function: another function that shares some GPU with it. Then another GPU in use, and last an idle GPU. Among these, the one with the lowest α(1 − Σ request) + β(1 − Σ memory / M). This is Algorithm 1 of the Dilu paper",
		Parameters: policy.Of(func(o *Options) *online.DiluOptions { return &o.Dilu }, online.DiluParameters),
	},
	{
		Name: "maxrect", Scaled: true, New: newRectangles,
		Help: "in the free rectangle of SM share × quota that the instance fills best, on all GPUs with enough free memory, so that the slices on a GPU fit side by side. This is Algorithm 2 of the FaST-GShare paper",
		Parameters: []policy.Parameter[Options]{{
			Key: "threshold", Default: strconv.Itoa(maxrect.DefaultThreshold), Help: "length of a GPU's list of free rectangles above which it is rebuilt when an instance ends; 0: always",
			Set: func(o *Options, value string) (err error) {
				if o.Threshold, err = strconv.Atoi(value); err != nil || o.Threshold < 0 {
					return errors.New("expected a whole number of at least 0")
				}
				return nil
			},
		}},
	},
}

// Kinds returns the placements in the order of the man page.
func Kinds() []Kind { return append([]Kind(nil), kinds...) }

// KindOf returns the placement with that name, and whether there is one.
func KindOf(name string) (Kind, bool) {
	for _, k := range kinds {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// Names returns the names of Kinds.
func Names() (names []string) {
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}
