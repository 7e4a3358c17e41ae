package dispatch

import (
	"cmp"
	"maps"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/status"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// gfaas-modeld holds the weights of a model on a GPU for all instances of a tenant there. A start is
// cheaper on a GPU that has them already. The gateway measures such starts apart from others, and
// reports to the policy on which GPUs they apply.

// weightsOn names the weights of a tenant's model on a GPU.
type weightsOn struct {
	gpu           int32
	tenant, model string
}

// weightsKey returns the name of a function's weights on a GPU. If the model daemon does not hold them, it
// is zero.
func weightsKey(fn *function.Function, gpu int32) weightsOn {
	if fn.Model == nil || fn.Model.File == "" || fn.Spans() {
		return weightsOn{}
	}
	return weightsOn{gpu, cmp.Or(fn.Tenant, function.DefaultTenant), fn.Model.Name}
}

// SetWeights stores a report of the model daemons: the models that they hold on GPUs.
func (d *Dispatcher) SetWeights(models []status.Model) {
	d.mu.Lock()
	defer d.mu.Unlock()
	weights := map[weightsOn]bool{}
	for _, m := range models {
		gpu := d.GPUs.number(m.GPU)
		if gpu >= 0 && m.State == wire.StateGPU {
			weights[weightsOn{gpu, cmp.Or(m.Tenant, function.DefaultTenant), m.Name}] = true
		}
	}
	if maps.Equal(weights, d.weights) {
		return
	}
	d.weights = weights
	for _, f := range d.inOrder() {
		if !f.removed {
			f.relearnShared()
		}
	}
}

// relearnShared sends the policy the function's durations on each GPU that has its weights, if a start with
// them was measured, and if one differs by more than a tenth from the last one sent. Locked.
func (f *Function) relearnShared() {
	if len(f.sentOn) == 0 && (weightsKey(&f.definition, 0) == weightsOn{} || f.costs.shared.n == 0) || f.forecast().fixed {
		return
	}
	for gpu := range int32(len(f.d.GPUs.list)) {
		sent, has := f.sentOn[gpu]
		if !f.d.weights[weightsKey(&f.definition, gpu)] {
			if has {
				delete(f.sentOn, gpu)
				f.d.policy.step(&queue.Learned{Function: f.number, Only: gpu + 1})
			}
			continue
		}
		s := f.sharedOn(gpu)
		if has && sameCosts(&s, &sent) {
			continue
		}
		if f.sentOn == nil {
			f.sentOn = map[int32]queue.Function{}
		}
		f.sentOn[gpu] = s
		f.d.policy.step(&queue.Learned{Function: f.number, Spec: s, Only: gpu + 1})
	}
}

// sharedOn returns the expected durations on a GPU that has the function's weights. Locked.
func (f *Function) sharedOn(gpu int32) queue.Function {
	var on durations
	if class := f.byClass[f.d.GPUs.classOf(gpu)]; class != nil {
		on = class.durations
	}
	if on.start = on.shared; on.start.n == 0 {
		on.start = f.costs.shared
	}
	return f.forecast().expected(&on)
}
