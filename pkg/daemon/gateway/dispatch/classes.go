package dispatch

import (
	"maps"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// classCosts holds the durations of a function's calls on GPUs of a class.
type classCosts struct {
	durations
	sent queue.Function // the durations that the policy has; zero if it has none
}

// measured adds a measured duration on a GPU of a class. Locked.
func (v *version) measured(class int32, kind func(*durations) *mean, took time.Duration) {
	kind(&v.costs.durations).add(took)
	if class > 0 {
		kind(&v.class(class).durations).add(took)
	}
}

// measuredCall adds the duration of a warm call on a GPU of a class that executed with others. Locked.
func (v *version) measuredCall(class int32, took time.Duration, others float64) {
	c := &v.costs
	c.addWarm(took, others)
	if slope, known := c.durations.slope(); known {
		c.slope, c.fitted = slope, true
	}
	if class > 0 {
		v.class(class).addWarm(took, others)
	}
}

// class returns the costs on GPUs of a class. Locked.
func (v *version) class(class int32) *classCosts {
	if v.byClass == nil {
		v.byClass = map[int32]*classCosts{}
	}
	if v.byClass[class] == nil {
		v.byClass[class] = &classCosts{}
	}
	return v.byClass[class]
}

// warmOn returns the expected duration of a warm call on a GPU, as the policy knows it. Locked.
func (f *Function) warmOn(gpu int32) time.Duration {
	if c := f.byClass[f.d.GPUs.classOf(gpu)]; c != nil && c.sent.Warm > 0 {
		return c.sent.Warm
	}
	return f.spec.Warm
}

// relearnClasses sends the function's durations on GPUs of each class to the policy, if one differs by
// more than a tenth from the last one sent. Locked.
func (f *Function) relearnClasses() {
	fixed := f.forecast().fixed
	for _, class := range slices.Sorted(maps.Keys(f.byClass)) {
		c := f.byClass[class]
		s := f.forecast().expected(&c.durations)
		if c.sent == (queue.Function{}) && fixed || sameCosts(&s, &c.sent) {
			continue
		}
		c.sent = s
		f.d.policy.step(&queue.Learned{Function: f.number, Spec: s, Class: class})
	}
}
