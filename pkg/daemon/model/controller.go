package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	"github.com/gfaas/gfaas/pkg/reason"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// controller carries out the actions of the policy.
type controller struct {
	*loader
	epoch    time.Time // when the daemon started; see now
	policy   *policy.Policy
	timer    *time.Timer // calls expire at the time of the policy's last WakeAt
	requests map[policy.RequestID]*request
	last     policy.RequestID     // ID of the newest request
	capacity gpu.Bytes            // bytes for copies on the GPU
	bounds   map[string]gpu.Bytes // bounds that tenants have set explicitly
	tenants  []string             // tenants with a bound
	counts   counts
}

// now returns the policy's time: the time since the daemon started.
func (ctl *controller) now() time.Duration { return time.Since(ctl.epoch) }

// loadRecords reads the records of the catalogue.
func (ctl *controller) loadRecords() error {
	ctx, cancel := context.WithTimeout(ctl.ctx, saveTime)
	defer cancel()
	records, err := ctl.cfg.Catalogue.Models(ctx)
	if err != nil {
		return fmt.Errorf("read the catalogue of models: %w", err)
	}
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	for _, r := range records {
		key := policy.Key{Tenant: r.Tenant, Name: r.Name}
		ctl.models[key] = &model{record: r}
		ctl.stepLocked(policy.Known{Key: key, Generation: r.Generation, Content: r.Content})
	}
	return nil
}

// setBounds passes the capacity and the bounds of the tenants to the policy. The caller holds the
// lock.
func (ctl *controller) setBounds() {
	shares, err := Shares(ctl.capacity, ctl.tenants, ctl.bounds)
	if err != nil {
		ctl.log.Warn("tenants", "err", err)
	}
	ctl.stepLocked(policy.Resize{Capacity: ctl.capacity}, policy.Bound{Tenants: shares})
}

// step passes events to the policy and carries out its actions.
func (ctl *controller) step(events ...policy.Event) {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	ctl.stepLocked(events...)
}

// expire runs at the time of the policy's last WakeAt.
func (ctl *controller) expire() {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if !ctl.closed {
		ctl.stepLocked()
	}
}

// stepLocked does the same as step. The caller holds the lock.
func (ctl *controller) stepLocked(events ...policy.Event) {
	for _, a := range ctl.policy.Step(ctl.now(), events, nil) {
		ctl.perform(a)
	}
}

// perform carries out one action of the policy. The caller holds the lock.
func (ctl *controller) perform(a policy.Action) {
	switch a := a.(type) {
	case policy.Begin:
		ctl.prepareCopy(a)
	case policy.Fill:
		ctl.fill(ctl.copies[a.Copy])
	case policy.Cancel:
		ctl.copies[a.Copy].cancel()
	case policy.Free:
		ctl.freeCopy(a)
	case policy.Publish:
		ctl.publish(a)
	case policy.Grant:
		ctl.grant(a)
	case policy.Refuse:
		ctl.answer(a.Request, result{err: a.Err})
	case policy.WakeAt:
		ctl.timer.Stop()
		if a.At > 0 && !ctl.closed {
			ctl.timer.Reset(max(0, a.At-ctl.now()))
		}
	}
}

// answer delivers the result of a request, if the request still exists. The caller holds the
// lock.
func (ctl *controller) answer(id policy.RequestID, res result) {
	if r := ctl.requests[id]; r != nil {
		r.result <- res
	}
}

// prepareCopy creates a copy and starts to determine its size. A store's size is known from its
// request. The caller holds the lock.
func (ctl *controller) prepareCopy(a policy.Begin) {
	c := ctl.copies[a.Copy]
	r := ctl.requests[a.Request]
	if r.store != nil {
		ctl.addCopy(r.store, a.Copy, a.Key)
		r.store.record.Content = fmt.Sprint("store:", a.Copy)
		return
	}
	if c == nil {
		c = &modelCopy{origin: ctl.originOf(a.Key, r), public: r.public}
		ctl.addCopy(c, a.Copy, a.Key)
	}
	var current *wire.Record
	if r.put && ctl.onGPU(a.Key) {
		record := ctl.models[a.Key].record
		current = &record
	}
	ctl.work.Go(func() { ctl.inspect(c, current) })
}

// inspect opens a copy's files, unless they are open, and reports the size of the copy to the
// policy. If current is not nil, it describes the model's current copy on the GPU; if the new copy
// would be equal, inspect reports that instead.
func (ctl *controller) inspect(c *modelCopy, current *wire.Record) {
	release, err := ctl.headerLimiter.acquire(c.ctx, c.key.Tenant)
	if err == nil {
		if c.source == nil {
			c.source, err = ctl.openSource(c)
		}
		release()
	}
	if err == nil {
		c.bytes.Store(c.source.bytes())
		c.allocSize = ctl.roundUp(max(c.source.image, 1))
		if current != nil {
			var same bool
			if same, err = ctl.sameContent(c, current); same {
				ctl.refresh(c, current)
				ctl.step(policy.Same{Copy: c.id, Content: current.Content})
				return
			}
		}
	}
	if err != nil {
		ctl.failCopy(c, err)
		return
	}
	ctl.step(policy.Sized{Copy: c.id, Bytes: c.allocSize, Host: c.source.host})
}

// fill allocates memory for a copy and loads it. The caller holds the lock.
func (ctl *controller) fill(c *modelCopy) {
	ctl.work.Go(func() {
		err := ctl.allocate(c)
		switch {
		case device.Full(err):
			ctl.step(policy.Full{Copy: c.id})
			return
		case err == nil && c.store:
			ctl.step(policy.Writable{Copy: c.id})
			return
		case err == nil:
			err = ctl.load(c)
		}
		if err != nil {
			ctl.failCopy(c, err)
			return
		}
		ctl.step(policy.Loaded{Copy: c.id, Content: c.record.Content})
	})
}

// failCopy frees a copy that cannot be completed and reports it to the policy. The goroutine that
// works on the copy calls it last.
func (ctl *controller) failCopy(c *modelCopy, err error) {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if ctl.copies[c.id] == c {
		delete(ctl.copies, c.id)
		ctl.freeMemory(c)
	}
	if !errors.Is(err, context.Canceled) {
		ctl.counts.failures++
		ctl.log.Warn("model not loaded", "tenant", c.key.Tenant, "model", c.key.Name, "err", err)
	}
	ctl.stepLocked(policy.Failed{Copy: c.id, Err: err})
}

// publish records a copy as the model's newest one. The caller holds the lock.
func (ctl *controller) publish(a policy.Publish) {
	c := ctl.copies[a.Copy]
	c.generation, c.record.Generation = a.Generation, a.Generation
	m := ctl.models[c.key]
	if m == nil {
		m = &model{}
		ctl.models[c.key] = m
	}
	if c.record.Content == m.record.Content { // equal content remains public; for new content, the new request decides
		c.record.Public = c.record.Public || m.record.Public
	}
	m.record = c.record
	m.used = time.Now()
	if !c.store {
		m.loads++
		ctl.counts.loads++
	}
	ctl.queueSave(c.key)
}

// freeCopy frees a copy and, if it was an evicted store, forgets the model. The caller holds the
// lock.
func (ctl *controller) freeCopy(a policy.Free) {
	c := ctl.copies[a.Copy]
	delete(ctl.copies, a.Copy)
	if a.Evicted {
		ctl.counts.evictions++
		ctl.log.Info("model evicted", "tenant", c.key.Tenant, "model", c.key.Name, "generation", c.generation, "bytes", int64(c.size()), "why", a.Reason.String())
		if c.store {
			delete(ctl.models, c.key)
		}
	}
	ctl.freeMemory(c)
}

// freeMemory frees a copy and logs an error. The caller holds the lock.
func (ctl *controller) freeMemory(c *modelCopy) {
	if err := c.free(); err != nil {
		ctl.log.Error("cannot free a model's memory", "tenant", c.key.Tenant, "model", c.key.Name, "err", err)
	}
}

// grant answers a request with a copy. The caller holds the lock.
func (ctl *controller) grant(a policy.Grant) {
	c := ctl.copies[a.Copy]
	if m := ctl.models[c.key]; m != nil {
		m.used = time.Now()
	}
	if a.Hit {
		ctl.counts.hits++
	}
	ctl.answer(a.Request, result{copy: c, generation: a.Generation})
}

// release frees all copies and stages, and closes the GPU.
func (ctl *controller) release() error {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	var errs []error
	for id, c := range ctl.copies {
		errs = append(errs, c.free())
		delete(ctl.copies, id)
	}
	return errors.Join(append(errs, ctl.stages.close(), ctl.cfg.GPU.Close())...)
}

// statuses returns the models that a tenant can use, or all models for "", sorted by name and
// tenant. The caller holds the lock.
func (ctl *controller) statuses(tenant string) []wire.Status {
	byKey := map[policy.Key]*wire.Status{}
	status := func(key policy.Key) *wire.Status {
		s := byKey[key]
		if s == nil {
			s = &wire.Status{Name: key.Name, Tenant: key.Tenant, State: wire.StateFile}
			byKey[key] = s
		}
		return s
	}
	for key, m := range ctl.models {
		s, r := status(key), m.record
		s.Public, s.Bytes, s.Tensors = r.Public, r.Bytes, r.Tensors
		s.SHA256, s.Generation, s.Loads = r.SHA256, r.Generation, m.loads
		if len(r.Files) > 0 {
			s.Source = r.Files[0].Path
		}
		if !m.used.IsZero() {
			used := m.used.UTC().Truncate(time.Millisecond)
			s.LastUsed = &used
		}
	}
	for _, c := range ctl.policy.Snapshot().Copies {
		copied := ctl.copies[c.ID]
		switch {
		case copied == nil || c.State == "ready" && !c.Newest || c.State == "cancelled":
			// The copy is superseded or about to be freed.
		case c.Newest:
			s := status(c.Key)
			s.State, s.GPUBytes, s.Refs = wire.StateGPU, int64(c.Bytes), c.Refs
			s.Loaded, s.Why, s.Reason = 0, "", reason.Reason{} // undo what a copy in preparation has set
		case byKey[c.Key] == nil || byKey[c.Key].State != wire.StateGPU:
			s := status(c.Key)
			s.State, s.Loaded, s.Refs = wire.StateLoading, copied.loaded.Load(), c.Refs
			s.Why, s.Reason = c.Reason.String(), c.Reason
			if ctl.models[c.Key] == nil { // otherwise Public describes the previous copy
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

// totals returns the daemon's counters and sums. The caller holds the lock.
func (ctl *controller) totals() wire.Totals {
	now := ctl.policy.Snapshot()
	t := wire.Totals{
		GPU: ctl.cfg.GPU.UUID(), Capacity: int64(now.Capacity), Used: int64(now.Used), Models: len(ctl.models),
		Hits: ctl.counts.hits, Loads: ctl.counts.loads, Evictions: ctl.counts.evictions,
	}
	for _, c := range now.Copies {
		t.Refs += c.Refs
	}
	return t
}
