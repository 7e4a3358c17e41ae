package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim/heap"
)

// weights simulates gfaas-modeld (R34): GPUs have the weights of models, which functions share, so that a start
// there takes less time. The policy learns the durations of the functions on each such GPU.
type weights struct {
	of       []int32   // by function: the number of its weights, or -1
	sharing  [][]int32 // by weights: the functions that share them
	mem      []int64   // by weights
	capacity int64     // of each GPU; 0 means no limit
	held     [][]*heldWeights
	holding  map[residency.ID]*heldWeights // by instance
	loads    heap.Heap[weightsLoad]        // by the end of the start
	uses     int64
}

// heldWeights are weights on a GPU.
type heldWeights struct {
	number  int32
	holders int   // instances that use them
	used    int64 // sequence number of the last start that did
}

// weightsLoad is a start of an instance, which loads its weights.
type weightsLoad struct {
	function, gpu int32
	instance      residency.ID
}

// newWeights returns nil if no functions share weights.
func newWeights(c *Config) *weights {
	type key struct{ tenant, model string }
	w, numbers := &weights{capacity: c.WeightsMem, held: make([][]*heldWeights, c.GPUs), holding: map[residency.ID]*heldWeights{}}, map[key]int32{}
	for i, f := range c.Functions {
		number := int32(-1)
		if f.SharedStart > 0 {
			var known bool
			if number, known = numbers[key{f.Tenant, f.Model}]; !known {
				number = int32(len(numbers))
				numbers[key{f.Tenant, f.Model}] = number
				w.sharing, w.mem = append(w.sharing, nil), append(w.mem, 0)
			}
			w.sharing[number] = append(w.sharing[number], int32(i))
			w.mem[number] = max(w.mem[number], memory(f.WeightsMiB))
		}
		w.of = append(w.of, number)
	}
	if len(numbers) == 0 {
		return nil
	}
	return w
}

// find returns the weights on a GPU, or nil.
func (w *weights) find(gpu, number int32) *heldWeights {
	for _, h := range w.held[gpu] {
		if h.number == number {
			return h
		}
	}
	return nil
}

// usesWeights records that an invocation runs. If that starts its instance, the start ends at a time.
func (r *run) usesWeights(a *queue.Action, until time.Duration) {
	w, starts := r.weights, a.Start == residency.Cold || a.Start == residency.HostWarm && queue.OneAtATime(r.config.Policy)
	if w == nil || !starts || w.of[a.Function] < 0 || w.holding[a.Instance] != nil {
		return
	}
	if h := w.find(a.GPU, w.of[a.Function]); h != nil {
		w.hold(h, a.Instance)
		return
	}
	w.uses++
	w.loads.Push(until, w.uses, weightsLoad{a.Function, a.GPU, a.Instance})
}

func (w *weights) hold(h *heldWeights, instance residency.ID) {
	w.uses++
	h.used = w.uses
	h.holders++
	w.holding[instance] = h
}

// loadWeights applies the starts that have ended.
func (r *run) loadWeights() {
	w := r.weights
	for w != nil && w.loads.Len() > 0 && w.loads.At() <= r.now {
		l := w.loads.Pop()
		number := w.of[l.function]
		h := w.find(l.gpu, number)
		if h == nil && r.makeRoom(l.gpu, w.mem[number]) {
			h = &heldWeights{number: number}
			w.held[l.gpu] = append(w.held[l.gpu], h)
			r.learnShared(number, l.gpu, true)
		}
		if h != nil {
			w.hold(h, l.instance)
		}
	}
}

// makeRoom evicts the least recently used weights without holders until there is room for more. It returns false,
// and evicts none, if that is not enough.
func (r *run) makeRoom(gpu int32, mem int64) bool {
	w := r.weights
	if w.capacity == 0 {
		return true
	}
	free, idle := w.capacity, []*heldWeights(nil)
	for _, h := range w.held[gpu] {
		free -= w.mem[h.number]
		if h.holders == 0 {
			idle = append(idle, h)
		}
	}
	slices.SortFunc(idle, func(a, b *heldWeights) int { return cmp.Compare(a.used, b.used) })
	evicted := 0
	for ; free < mem && evicted < len(idle); evicted++ {
		free += w.mem[idle[evicted].number]
	}
	if free < mem {
		return false
	}
	for _, h := range idle[:evicted] {
		w.held[gpu] = slices.DeleteFunc(w.held[gpu], func(other *heldWeights) bool { return other == h })
		r.learnShared(h.number, gpu, false)
	}
	return true
}

// learnShared reports to the policy that a GPU has weights, or no longer.
func (r *run) learnShared(number, gpu int32, has bool) {
	for _, f := range r.weights.sharing[number] {
		learned := &queue.Learned{Function: f, Only: gpu + 1}
		if spec := &r.config.Functions[f]; has {
			learned.Spec = queue.Function{Warm: spec.Warm, Cold: spec.Warm + spec.SharedStart, Load: spec.Load}
			if queue.OneAtATime(r.config.Policy) { // a miss is a start (R18)
				learned.Spec.Load = spec.SharedStart
			}
		}
		r.events = append(r.events, learned)
	}
}

// releaseWeights records that an instance was removed.
func (r *run) releaseWeights(instance residency.ID) {
	if r.weights == nil {
		return
	}
	if h := r.weights.holding[instance]; h != nil {
		h.holders--
		delete(r.weights.holding, instance)
	}
}
