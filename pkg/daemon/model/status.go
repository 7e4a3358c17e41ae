package model

import (
	"cmp"
	"os"
	"slices"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/model"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// statuses are all models that a tenant sees, or all there are for "", by name and
// tenant. Locked.
func (d *Daemon) statuses(tenant string) []wire.Status {
	byKey := map[policy.Key]*wire.Status{}
	status := func(key policy.Key) *wire.Status {
		s := byKey[key]
		if s == nil {
			s = &wire.Status{Name: key.Name, Tenant: key.Tenant, State: wire.StateFile}
			byKey[key] = s
		}
		return s
	}
	for key, m := range d.models {
		s, r := status(key), m.record
		s.Public, s.Bytes, s.Tensors, s.SHA256, s.Generation, s.Loads = r.Public, r.Bytes, r.Tensors, r.SHA256, r.Generation, m.loads
		if len(r.Files) > 0 {
			s.Source = r.Files[0].Path
		}
		if !m.used.IsZero() {
			used := m.used.UTC().Truncate(time.Millisecond)
			s.LastUsed = &used
		}
	}
	for _, c := range d.policy.Snapshot().Copies {
		copied := d.copies[c.ID]
		switch {
		case copied == nil || c.State == "ready" && !c.Newest || c.State == "cancelled":
		case c.Newest:
			s := status(c.Key)
			s.State, s.GPUBytes, s.Refs, s.Loaded, s.Why = wire.StateGPU, int64(c.Bytes), c.Refs, 0, ""
		case byKey[c.Key] == nil || byKey[c.Key].State != wire.StateGPU:
			s := status(c.Key)
			s.State, s.Loaded, s.Why, s.Refs = wire.StateLoading, copied.loaded.Load(), c.Why, c.Refs
			if d.models[c.Key] == nil { // else what is said of it is the one before's
				s.Public = copied.public
			}
			if bytes := copied.bytes.Load(); bytes > 0 {
				s.Bytes = bytes
			} else if copied.store {
				s.Bytes = copied.record.Bytes
			}
		}
	}
	var out []wire.Status
	for _, s := range byKey {
		if tenant == "" || s.Tenant == tenant || s.Public {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b wire.Status) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Tenant, b.Tenant))
	})
	return out
}

func (c *call) stat() (wire.Answer, []*os.File, error) {
	d := c.conn.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.Name == "" {
		t := d.totals()
		return wire.Answer{Daemon: &t}, nil, nil
	}
	key := d.keyFor(c.as, c.Name)
	for _, s := range d.statuses("") {
		if s.Name == key.Name && s.Tenant == key.Tenant {
			return wire.Answer{Model: &s}, nil, nil
		}
	}
	return wire.Answer{}, nil, wire.Errorf(wire.CodeAbsent, "there is no model %s", c.Name)
}

// totals is how the daemon stands. Locked.
func (d *Daemon) totals() wire.Totals {
	now := d.policy.Snapshot()
	t := wire.Totals{
		GPU: d.cfg.GPU.UUID(), Capacity: int64(now.Capacity), Used: int64(now.Used), Models: len(d.models),
		Hits: d.counts.hits, Loads: d.counts.loads, Evictions: d.counts.evictions,
	}
	for _, c := range now.Copies {
		t.Refs += c.Refs
	}
	return t
}

// list answers with as many models as a packet holds.
func (c *call) list() (wire.Answer, []*os.File, error) {
	d := c.conn.d
	tenant := c.conn.tenant
	if tenant == "" {
		tenant = c.Tenant
	}
	d.mu.Lock()
	all := d.statuses(tenant)
	d.mu.Unlock()
	a := wire.Answer{OK: true, ID: c.ID, Models: []wire.Status{}, More: new(bool)}
	around, err := encode(a)
	if err != nil {
		return a, nil, err
	}
	used := len(around)
	for _, s := range all {
		if c.After != "" && (s.Name < c.After || s.Name == c.After && (c.AfterOf == "" || s.Tenant <= c.AfterOf)) {
			continue
		}
		text, err := encode(s)
		if err != nil {
			return a, nil, err
		}
		if used += len(text) + 1; used > wire.MaxAnswer && len(a.Models) > 0 {
			*a.More = true
			break
		}
		a.Models = append(a.Models, s)
	}
	return a, nil, nil
}
