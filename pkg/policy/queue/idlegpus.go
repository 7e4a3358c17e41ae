package queue

import "slices"

// idleGPUs holds the idle GPUs of lalb, by gpuQueue.key (R19). Within a step, GPUs for which there
// is no invocation are set aside.
type idleGPUs struct {
	*gpuQueues
	heap       heap
	aside      []int32
	asideUpTo  key     // idle GPUs up to this key count as aside,
	idledSince []int32 // except for these, which became idle since
	failed     []item  // scratch of the last search in heap
}

// firstKey precedes the keys of all GPUs.
var firstKey = key{a: -1}

func (s *idleGPUs) add(g int32) {
	k := s.gpus[g].key(g)
	if !s.asideUpTo.less(&k) {
		s.idledSince = append(s.idledSince, g)
	}
	s.heap.set(g, k)
}

// addIdle adds those of the GPUs that are idle and open.
func (s *idleGPUs) addIdle(gpus ...int32) {
	for _, g := range gpus {
		if w := &s.gpus[g]; w.open && !w.busy {
			s.add(g)
		}
	}
}

// setAside sets a GPU aside.
func (s *idleGPUs) setAside(g int32) {
	s.heap.remove(g)
	s.aside = append(s.aside, g)
}

// setAsideBefore sets the GPUs that precede a key aside, at the next call of first.
func (s *idleGPUs) setAsideBefore(k key) {
	if k.c--; s.asideUpTo.less(&k) {
		s.asideUpTo = k
	}
}

// isAside reports whether an idle GPU counts as aside.
func (s *idleGPUs) isAside(g int32) bool {
	k := s.gpus[g].key(g)
	return !s.asideUpTo.less(&k) && !slices.Contains(s.idledSince, g)
}

// first returns the first GPU that is not aside, or none, and the number of GPUs examined.
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
		s.asideUpTo = firstKey
		s.addIdle(s.idledSince...)
		s.idledSince = s.idledSince[:0]
	}
	if s.heap.len() == 0 {
		return none, visits
	}
	return s.heap.min().function, visits
}

// find returns the first GPU that is not aside and that passes, or none.
func (s *idleGPUs) find(passes func(g int32) bool) int32 {
	least, found, failed := s.heap.first(func(g int32) bool { return !s.isAside(g) && passes(g) }, s.failed[:0])
	if s.failed = failed; !found {
		return none
	}
	return least.function
}

// restoreAside makes the GPUs that were set aside eligible again.
func (s *idleGPUs) restoreAside() {
	s.asideUpTo, s.idledSince = firstKey, s.idledSince[:0]
	s.addIdle(s.aside...)
	s.aside = s.aside[:0]
}

// remove removes a GPU that is closed.
func (s *idleGPUs) remove(g int32) {
	s.heap.remove(g)
	s.aside = without(s.aside, g)
}
