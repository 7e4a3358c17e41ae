package model

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// room is an amount of memory on the GPU and on the host.
type room struct{ bytes, host gpu.Bytes }

// memory accounts for the memory of all copies, within the capacity, MaxHost and the bounds of tenants.
// In its methods, the tenant "" stands for all tenants together.
type memory struct {
	capacity gpu.Bytes
	bounds   map[string]gpu.Bytes // by tenant
	copies   []*modelCopy         // in the order of creation
}

// find returns the copy with that ID, or nil.
func (m *memory) find(id CopyID) *modelCopy {
	i := slices.IndexFunc(m.copies, func(c *modelCopy) bool { return c.id == id })
	if i < 0 {
		return nil
	}
	return m.copies[i]
}

// used returns the memory of a tenant's copies.
func (m *memory) used(tenant string) room {
	return m.sum(tenant, func(*modelCopy) bool { return true })
}

// held returns the memory of a tenant's copies that cannot be evicted.
func (m *memory) held(tenant string) room {
	return m.sum(tenant, func(c *modelCopy) bool { return !c.evictable() })
}

// sum returns the memory of a tenant's copies that match.
func (m *memory) sum(tenant string, matches func(*modelCopy) bool) (sum room) {
	for _, c := range m.copies {
		if c.usesCapacity() && c.belongsTo(tenant) && matches(c) {
			sum.bytes += c.bytes
			sum.host += c.host
		}
	}
	return sum
}

// limit returns how much memory a tenant's copies may use. The limit on host memory is the same fraction
// of MaxHost as the other one is of the capacity.
func (m *memory) limit(tenant string) room {
	bound, bounded := m.bounds[tenant]
	if !bounded || bound >= m.capacity {
		return room{m.capacity, MaxHost}
	}
	return room{bound, gpu.Bytes(float64(MaxHost) * (float64(bound) / float64(m.capacity)))}
}

// fits reports whether there is room for a copy; with evicting, after evicting all that can be.
func (m *memory) fits(c *modelCopy, evicting bool) bool {
	return m.fitsLimit("", c, evicting) && m.fitsBound(c, evicting)
}

// fitsBound reports the same for the bound of the copy's tenant alone.
func (m *memory) fitsBound(c *modelCopy, evicting bool) bool {
	_, bounded := m.bounds[c.key.Tenant]
	return !bounded || m.fitsLimit(c.key.Tenant, c, evicting)
}

// fitsLimit reports the same for the limit of a tenant.
func (m *memory) fitsLimit(tenant string, c *modelCopy, evicting bool) bool {
	used, limit := m.used(tenant), m.limit(tenant)
	if evicting {
		used = m.held(tenant)
	}
	return used.bytes+c.bytes <= limit.bytes && used.host+c.host <= limit.host
}

// leastRecentlyUsed returns the least recently used evictable copy of a tenant, or nil.
func (m *memory) leastRecentlyUsed(tenant string) (oldest *modelCopy) {
	for _, c := range m.copies {
		if c.evictable() && c.belongsTo(tenant) && (oldest == nil || c.lastUsed < oldest.lastUsed) {
			oldest = c
		}
	}
	return oldest
}

// loading returns the models of which a copy is being loaded. Requests for other models, for which there is
// no room next to it, wait for it without a time limit, because it is not held and may be evicted later.
func (m *memory) loading() map[Key]bool {
	keys := map[Key]bool{}
	for _, c := range m.copies {
		if c.usesCapacity() && c.state != ready && c.store == 0 {
			keys[c.key] = true
		}
	}
	return keys
}

// modelCopy is a copy of a model.
type modelCopy struct {
	id           CopyID
	key          Key
	state        state
	bytes        gpu.Bytes
	host         gpu.Bytes
	store        RequestID // the request that writes its weights; 0: it is loaded from a file
	generation   int64
	retired      bool // a newer copy has replaced it
	refs         int
	lastUsed     time.Duration // when it was last granted or released
	waiters      []RequestID   // in order of arrival
	firstIsPut   bool          // the first waiter is a Put
	comparedWith *modelCopy    // the model's newest copy when the size was last requested
}

// usesCapacity reports whether the copy counts against the capacity.
func (c *modelCopy) usesCapacity() bool {
	return c.bytes > 0 && (c.state == filling || c.state == ready || c.state == cancelled)
}

// evictable reports whether the copy can be evicted.
func (c *modelCopy) evictable() bool { return c.state == ready && c.refs == 0 }

// belongsTo reports whether the copy is one of the tenant's; all are for "".
func (c *modelCopy) belongsTo(tenant string) bool { return tenant == "" || c.key.Tenant == tenant }

func (c *modelCopy) removeWaiter(id RequestID) {
	c.waiters = slices.DeleteFunc(c.waiters, func(other RequestID) bool { return other == id })
}
