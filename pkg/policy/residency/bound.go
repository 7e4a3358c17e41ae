package residency

// The next methods are about a single instance, for invocations that are bound to it.

// Lives reports whether an instance has not ended and accepts invocations, now or later.
func (p *placement) Lives(index int32) bool {
	it := &p.instances[index]
	return !it.hasEnded() && !p.obsolete(it)
}

// Idle reports whether an instance has started, runs nothing and could run an invocation in a slot.
// Pinned instances are never idle in this sense.
func (p *placement) Idle(index int32) bool { return p.instances[index].isIdle() }

// PlaceOf returns the place of an invocation on an idle instance. It returns false if the instance is
// not idle, or if its GPU has no free slot or no room for it.
func (p *placement) PlaceOf(index int32) (at Place, found bool) {
	it := &p.instances[index]
	d, f := &p.gpus[it.gpu], &p.hot[it.function]
	at = Place{GPU: it.gpu, Start: GPUWarm, Index: index}
	if !it.isIdle() || d.used+d.capacityFor(p.sliceOf(f, index)) > d.capacity || !p.tenantPermits(it.gpu, f) {
		return at, false
	}
	if d.limit == 0 || it.resident {
		return at, true
	}
	at.Start = HostWarm
	return at, d.mem.running+p.memAfterReturn(index)+p.details[index].residual <= d.limit
}
