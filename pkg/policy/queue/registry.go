package queue

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// registry adds, changes and removes functions and GPUs.
type registry struct {
	dispatcher
	totalSlots  int     // total slots of all GPUs
	withMinimum []int32 // functions with Min > 0, ascending
	shared      []int32 // functions with Inflight > 1, ascending
	retired     []int32 // removed functions with remaining state
	adaptive    *adaptive
	// waitsOutside, unless nil, reports whether invocations of a function wait outside the engine.
	waitsOutside func(function int32) bool
}

// growFunctions makes room for function f and for all functions that the events set, because there
// may be many.
func (r *registry) growFunctions(f int32, events []Event) {
	n := int(f) + 1
	if n <= len(r.functions) {
		return
	}
	for _, ev := range events {
		if set, ok := ev.(*FunctionSet); ok {
			n = max(n, int(set.Function)+1)
		}
	}
	r.functions = grown(r.functions, n)
	r.starts.failures, r.timeouts.starts = grown(r.starts.failures, n), grown(r.timeouts.starts, n)
	r.queues.grow(n)
	r.ranUntil = grown(r.ranUntil, n)
	r.pool.Grow(n)
	r.growOrder()
}

func (r *registry) growOrder() { r.order.grow(len(r.functions), len(r.slots), r.totalSlots) }

// setFunction adds or changes a function.
func (r *registry) setFunction(f int32, spec Function, actions []Action) []Action {
	if r.sequences != nil {
		spec.Inflight = 1 // a batch runs one invocation after another (R12)
	}
	old, q := r.functions[f], &r.queues.queues[f]
	r.functions[f] = spec
	q.known, q.limit = true, spec.Queue
	r.anyBatches = r.anyBatches || r.batches(f)
	r.retired = without(r.retired, f)
	r.pool.SetFunction(f, spec.resident())
	r.updateLists(f, spec.Min > 0, spec.Inflight > 1)
	r.recheck = r.recheck || spec.Mem > old.Mem && q.len > 0
	r.order.changed(f)
	actions = r.appendChanges(actions, "")
	r.update(f)
	return actions
}

// updateLists updates the lists of functions with a minimum, and with instances that several invocations
// share.
func (r *registry) updateLists(f int32, hasMinimum, shares bool) {
	r.withMinimum, r.shared = withMember(r.withMinimum, f, hasMinimum), withMember(r.shared, f, shares)
}

// withMember returns an ascending list with f in it, or without f if in is false.
func withMember(list []int32, f int32, in bool) []int32 {
	if i, found := slices.BinarySearch(list, f); found != in {
		if in {
			return slices.Insert(list, i, f)
		}
		return slices.Delete(list, i, i+1)
	}
	return list
}

func without(list []int32, f int32) []int32 {
	return slices.DeleteFunc(list, func(g int32) bool { return g == f })
}

// renew resets the failed starts of a function that was set again after its removal or has a new
// version. For a new version, renew also stops the function's instances.
func (r *registry) renew(f int32, newVersion bool) {
	if newVersion || r.starts.isClosing(f) || !r.known(f) {
		r.starts.reset(f)
	}
	if newVersion {
		r.pool.ForgetDurations(f)
		r.pool.Renew(f)
	}
}

// functionRemoved cancels the starts of a function. Waiting invocations run on started instances
// of the function, or are rejected if there are no such instances.
func (r *registry) functionRemoved(f int32, actions []Action) []Action {
	r.starts.closing = append(r.starts.closing, f)
	r.pool.BarStarts(f, true)
	r.pool.CancelStarts(f)
	return r.closeFunctions(r.appendChanges(actions, NoFunction))
}

// closeFunctions ends removed functions that have no waiting invocation, or no instance for it. It
// rejects their waiting invocations and stops their instances when they become idle.
func (r *registry) closeFunctions(actions []Action) []Action {
	for _, f := range slices.Clone(r.starts.closing) {
		if r.pool.Usable(f) && r.hasWaiting(f) {
			continue
		}
		r.queues.queues[f].known = false
		r.updateLists(f, false, false)
		r.retired = append(r.retired, f)
		actions = r.rejectAll(f, NoFunction, actions)
		r.pool.Retire(f)
		r.starts.reset(f)
		actions = r.appendChanges(actions, NoFunction)
	}
	return actions
}

// hasWaiting reports whether an invocation of a function waits.
func (r *registry) hasWaiting(f int32) bool {
	return r.queues.queues[f].len > 0 || len(r.listWaiting(f)) > 0 || r.waitsOutside != nil && r.waitsOutside(f)
}

// forgetRetired ends the state of removed functions without instances and invocations.
func (r *registry) forgetRetired(actions []Action) []Action {
	r.retired = slices.DeleteFunc(r.retired, func(f int32) bool {
		if !r.pool.HasNoInstances(f) || r.queues.queues[f].inFlight > 0 {
			return false
		}
		r.order.forget(f)
		r.starts.failures[f], r.timeouts.starts[f], r.functions[f] = failures{}, startTime{}, Function{}
		r.plans.forget(f)
		r.pool.ForgetDurations(f)
		actions = append(actions, Action{Kind: Forget, Function: f, GPU: none, Instance: residency.None,
			Reason: Reason{Code: NoFunction}})
		return true
	})
	return actions
}

func (r *registry) setGPU(ev *GPUSet) {
	gpu, slots, mem := ev.GPU, max(ev.Slots, 1), ev.Mem
	if OneAtATime(r.config.Policy) {
		slots = 1
	}
	r.recheck = true
	if r.open(gpu) && r.slots[gpu] == slots {
		r.pool.SetMem(gpu, mem)
		r.setClass(gpu, ev.Class)
		return
	}
	r.slots = grown(r.slots, int(gpu)+1)
	r.totalSlots += slots - r.slots[gpu]
	r.slots[gpu] = slots
	r.pool.SetGPU(gpu, slots, mem)
	r.setClass(gpu, ev.Class)
	if r.adaptive != nil {
		r.adaptive.set(gpu, r.slots[gpu])
	}
	r.growOrder()
}

// setClass sets the class of a GPU. The durations of its waiting invocations may change.
func (r *registry) setClass(gpu, class int32) {
	if r.pool.Class(gpu) == class {
		return
	}
	r.pool.SetClass(gpu, class)
	if !r.classes {
		return
	}
	for f := range r.functions {
		if r.known(int32(f)) {
			r.order.changed(int32(f))
		}
	}
}

func (r *registry) gpuRemoved(gpu int32, actions []Action) []Action {
	if !r.open(gpu) {
		return actions
	}
	r.totalSlots -= r.slots[gpu]
	r.slots[gpu] = 0
	r.pool.CloseGPU(gpu)
	r.recheck = true
	r.order.gpuRemoved(gpu)
	r.growOrder()
	return r.appendChanges(actions, gpuRemoved)
}
