package residency

// TenantLimits bounds the instances of each tenant on all GPUs together (LALB, section VI). Idle
// instances count; they make room for a start, least recently finished first. Pinned instances do
// not count. A value of 0 means no limit.
type TenantLimits struct {
	Instances int   // instances, wherever their memory is; stopping ones count until they have stopped
	Mem       int64 // bytes of GPU memory; an instance may exceed them if the tenant uses no others
}

// tenants holds the limits and what each tenant holds.
type tenants struct {
	TenantLimits
	holdings []holdings
}

// holdings holds totals of the instances of one tenant, without pinned ones.
type holdings struct {
	instances int32 // instances, including idle and stopping ones
	stopping  int32
	idle      int32
	mem       int64 // bytes on GPUs, including those of idle instances and those on their way out
	leaving   int64 // bytes on their way out, of stopping and offloading instances
	idleMem   int64 // bytes of idle instances
}

func newTenants(l TenantLimits) *tenants {
	if l == (TenantLimits{}) {
		return nil
	}
	return &tenants{TenantLimits: l}
}

// holdings returns the part of a share that counts for the tenant, except that of idle instances.
func (s *share) holdings() holdings {
	return holdings{instances: s.present + s.ending, stopping: s.ending, mem: s.used + s.leaving, leaving: s.leaving}
}

// add adds other holdings n times.
func (h *holdings) add(o holdings, n int32) {
	h.instances += n * o.instances
	h.stopping += n * o.stopping
	h.idle += n * o.idle
	h.mem += int64(n) * o.mem
	h.leaving += int64(n) * o.leaving
	h.idleMem += int64(n) * o.idleMem
}

// busy returns the numbers of instances and bytes that cannot make room for others.
func (h *holdings) busy() (instances int32, mem int64) {
	return h.instances - h.stopping - h.idle, h.mem - h.leaving - h.idleMem
}

// holdings returns the totals of a function's tenant.
func (l *ledger) holdings(function int32) *holdings { return l.tenants.of(l.hot[function].tenant) }

// of returns the totals of a tenant.
func (t *tenants) of(tenant int32) *holdings {
	for int(tenant) >= len(t.holdings) {
		t.holdings = append(t.holdings, holdings{})
	}
	return &t.holdings[tenant]
}

// memOnGPU returns the bytes that an idle instance uses on its GPU.
func (l *ledger) memOnGPU(index int32) int64 {
	if it := &l.instances[index]; it.resident {
		return l.details[index].residual + it.mem
	}
	return l.details[index].residual
}

// addIdle adds an instance to the idle ones of its tenant n times.
func (l *ledger) addIdle(index, n int32) {
	l.holdings(l.instances[index].function).add(holdings{idle: 1, idleMem: l.memOnGPU(index)}, n)
}

// setTenant moves the totals of a function's instances to another tenant.
func (l *ledger) setTenant(function, tenant int32) {
	from, all := l.holdings(function), holdings{}
	for i := range l.instances {
		it := &l.instances[i]
		if it.function != function || it.pinned || it.stage == vacant {
			continue
		}
		s := l.share(int32(i))
		all.add(s.holdings(), 1)
		if it.isIdle() {
			all.add(holdings{idle: 1, idleMem: l.memOnGPU(int32(i))}, 1)
		}
	}
	from.add(all, -1)
	l.tenants.of(tenant).add(all, 1)
}

// tenantAllows reports whether a tenant may have more instances and mem more bytes of GPU memory, if
// its idle instances make room.
func (l *ledger) tenantAllows(f *hotFields, mem int64, instances int32) bool {
	t := l.tenants
	busy, busyMem := t.of(f.tenant).busy()
	return (instances == 0 || t.Instances == 0 || int(busy+instances) <= t.Instances) &&
		(t.Mem == 0 || mem == 0 || busyMem == 0 || busyMem+mem <= t.Mem)
}

// tenantPermits reports whether the limits of a function's tenant permit an invocation on a GPU.
func (p *placement) tenantPermits(gpu int32, f *hotFields) bool {
	return p.tenants == nil || p.tenantRoom(gpu, f)
}

// tenantRoom implements tenantPermits if there are limits.
func (p *placement) tenantRoom(gpu int32, f *hotFields) bool {
	d, index := &p.gpus[gpu], p.rows.on(f, gpu)
	switch {
	case index == none:
		return p.tenantAllows(f, d.countedMem(f), 1)
	case p.instances[index].resident:
		return true
	}
	return p.tenantAllows(f, p.memAfterReturn(index)+p.details[index].residual, 0)
}

// TenantAllows reports whether the limits of a function's tenant permit to start another instance of
// the function, if the tenant's idle instances make room.
func (p *placement) TenantAllows(function int32) bool {
	f := &p.hot[function]
	return p.tenants == nil || p.tenantAllows(f, f.countedMem, 1)
}

// WaitsForTenant reports whether a GPU has room for an invocation of the function that the limits of
// its tenant forbid.
func (p *placement) WaitsForTenant(function int32) bool {
	return p.tenants != nil && p.tenantForbids(function)
}

// tenantForbids implements WaitsForTenant if there are limits.
func (p *placement) tenantForbids(function int32) bool {
	f := &p.hot[function]
	for gpu := range p.gpus {
		if p.room(int32(gpu), f) && !p.tenantRoom(int32(gpu), f) {
			return true
		}
	}
	return false
}

// tenantFits reports whether a tenant may have another instance with mem bytes, if that evicts nothing.
func (l *ledger) tenantFits(function int32, mem int64) bool {
	return l.tenants == nil || l.tenantFitsMem(function, mem) &&
		(l.tenants.Instances == 0 || int(l.holdings(function).instances) < l.tenants.Instances)
}

// tenantFitsMem reports whether a tenant may have mem more bytes, if that evicts nothing.
func (l *ledger) tenantFitsMem(function int32, mem int64) bool {
	if l.tenants == nil || l.tenants.Mem == 0 {
		return true
	}
	used := l.holdings(function).mem
	return used == 0 || used+mem <= l.tenants.Mem
}

// waitsForTenant reports whether an instance has to wait until others of its tenant have stopped, or
// their memory has moved to the host. mem are bytes that the totals do not include yet.
func (l *ledger) waitsForTenant(function int32, mem int64) bool {
	return l.tenants != nil && l.tenantLeaves(function, mem)
}

// tenantLeaves implements waitsForTenant if there are limits.
func (l *ledger) tenantLeaves(function int32, mem int64) bool {
	t, h := l.tenants, l.holdings(function)
	return t.Instances > 0 && h.stopping > 0 && int(h.instances) > t.Instances ||
		t.Mem > 0 && h.leaving > 0 && h.mem+mem > t.Mem
}

// exceedsTenant reports whether a queued instance can no longer have room within the limits of its
// tenant, because busy instances of the tenant use more than at the time when it was queued.
func (l *ledger) exceedsTenant(index int32) bool {
	t, h := l.tenants, l.holdings(l.instances[index].function)
	instances, mem := h.busy()
	return t.Instances > 0 && int(instances) > t.Instances || t.Mem > 0 && mem > t.Mem && mem > l.size(index)
}

// makeTenantRoom evicts idle instances of a tenant, least recently finished first, until as many more
// instances and bytes are within its limits, or no instance is left to evict. It spares one instance.
func (m *memory) makeTenantRoom(function int32, mem int64, instances int, spare int32) {
	t, h := m.tenants, m.holdings(function)
	for t.Instances > 0 && int(h.instances-h.stopping)+instances > t.Instances {
		index := m.firstOfTenant(function, spare, false)
		if index == none {
			break
		}
		m.remove(index)
		m.changes[len(m.changes)-1].ForTenant = true
	}
	for t.Mem > 0 && h.mem-h.leaving+mem > t.Mem {
		index := m.firstOfTenant(function, spare, true)
		if index == none {
			break
		}
		it := &m.instances[index]
		if m.config.NoHost || it.moveFailed || !m.movable(&m.gpus[it.gpu], it) {
			m.remove(index)
		} else {
			m.offload(index)
		}
		m.changes[len(m.changes)-1].ForTenant = true
	}
}

// trimTenant evicts idle instances of a tenant that exceed its limits, but not the given one.
func (m *memory) trimTenant(function, spare int32) { m.makeTenantRoom(function, 0, 0, spare) }

// firstOfTenant returns the idle instance of a tenant that finished least recently, or none. Those
// needed for a minimum come last. If onGPU is set, it returns only instances with memory on their GPU.
func (m *memory) firstOfTenant(function, spare int32, onGPU bool) int32 {
	first, firstNeeded := none, false
	for i := range m.instances {
		it, index := &m.instances[i], int32(i)
		if !it.isIdle() || index == spare || m.hot[it.function].tenant != m.hot[function].tenant || onGPU && m.memOnGPU(index) == 0 {
			continue
		}
		needed := m.neededForMin(it.function)
		if first == none || firstNeeded && !needed || firstNeeded == needed && it.finished < m.instances[first].finished {
			first, firstNeeded = index, needed
		}
	}
	return first
}
