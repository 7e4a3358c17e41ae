package queue

import "slices"

// idleGPUs holds the idle GPUs of lalb, ordered by gpuQueue.key (R19). If lalb finds no invocation
// for a GPU, it sets the GPU aside: it does not consider the GPU again until lalb.advanced calls
// restoreAside, after new events or at a later time. There are two ways to set GPUs aside:
//
//   - setAside moves one GPU from heap to aside.
//   - setAsideBefore sets aside all GPUs with lower keys than a given one, without visiting them. It
//     only raises asideUpTo. The GPUs stay in heap until first is called, which moves them.
type idleGPUs struct {
	*gpuQueues
	heap      heap    // idle GPUs, except for those that were moved to aside
	aside     []int32 // GPUs that were moved from heap; some of them may be busy by now
	asideUpTo key     // GPUs in heap with keys up to this one are set aside, too, except for those in idledSince
	// idledSince holds the GPUs that became idle after setAsideBefore was called, with keys up to
	// asideUpTo. They may have work, and are not set aside.
	idledSince []int32
	failed     []item // buffer for the search in find
}

// firstKey is lower than the keys of all GPUs. As asideUpTo, it sets no GPU aside.
var firstKey = key{a: -1}

// add adds a GPU that is idle and open. The GPU is not set aside.
func (s *idleGPUs) add(g int32) {
	k := s.gpus[g].key(g)
	if !s.asideUpTo.less(&k) {
		s.idledSince = append(s.idledSince, g)
	}
	s.heap.set(g, k)
}

// addIdle calls add for those of the GPUs that are idle and open. A GPU that is closed takes no work.
func (s *idleGPUs) addIdle(gpus ...int32) {
	for _, g := range gpus {
		if w := &s.gpus[g]; w.open && !w.busy {
			s.add(g)
		}
	}
}

// setAside sets one GPU aside.
func (s *idleGPUs) setAside(g int32) {
	s.heap.remove(g)
	s.aside = append(s.aside, g)
}

// setAsideBefore sets aside all idle GPUs with keys lower than k.
func (s *idleGPUs) setAsideBefore(k key) {
	k.c-- // c is the number of the GPU: this is the highest key below k
	if s.asideUpTo.less(&k) {
		s.asideUpTo = k
	}
}

// isAside reports whether a GPU in heap is set aside.
func (s *idleGPUs) isAside(g int32) bool {
	k := s.gpus[g].key(g)
	return !s.asideUpTo.less(&k) && !slices.Contains(s.idledSince, g)
}

// first returns the idle GPU with the lowest key that is not set aside, or none if there is no such
// GPU. Before that, it moves the GPUs up to asideUpTo from heap to aside; visits is the number of GPUs
// that it examines for this.
func (s *idleGPUs) first() (gpu int32, visits int64) {
	if s.asideUpTo != firstKey {
		for s.heap.len() > 0 && !s.asideUpTo.less(&s.heap.items[0].key) {
			g := s.heap.min().function
			visits++
			s.heap.remove(g)
			if !slices.Contains(s.idledSince, g) {
				s.aside = append(s.aside, g)
			}
		}
		s.asideUpTo = firstKey // add does not append to idledSince from now on
		s.addIdle(s.idledSince...)
		s.idledSince = s.idledSince[:0]
	}
	if s.heap.len() == 0 {
		return none, visits
	}
	return s.heap.min().function, visits
}

// find returns the idle GPU with the lowest key that is not set aside and for which passes returns
// true, or none if there is no such GPU.
func (s *idleGPUs) find(passes func(g int32) bool) int32 {
	least, found, failed := s.heap.first(func(g int32) bool { return !s.isAside(g) && passes(g) }, s.failed[:0])
	if s.failed = failed; !found {
		return none
	}
	return least.function
}

// restoreAside ends the exclusion of all GPUs that were set aside.
func (s *idleGPUs) restoreAside() {
	s.asideUpTo, s.idledSince = firstKey, s.idledSince[:0]
	s.addIdle(s.aside...)
	s.aside = s.aside[:0]
}

// remove removes a GPU that was closed.
func (s *idleGPUs) remove(g int32) {
	s.heap.remove(g)
	s.aside = without(s.aside, g)
}
