package dispatch

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Serves reports whether this gateway serves the function and the first GPU of an instance.
func (d *Dispatcher) Serves(r *instance.Record) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serves(r)
}

// serves is Serves. Locked.
func (d *Dispatcher) serves(r *instance.Record) bool {
	gpus := d.cfg.numbers(r.GPUs)
	return d.Function(r.Function) != nil && len(gpus) > 0 && gpus[0] >= 0
}

// numbers returns the numbers of GPUs, or -1 for a GPU that this gateway does not serve.
func (c *Config) numbers(gpus []string) (out []int32) {
	for _, name := range gpus {
		out = append(out, int32(slices.IndexFunc(c.GPUs, func(g GPU) bool { return g.Name == name })))
	}
	return out
}

// Adopt adds an instance that was found running, with its memory at to, or an announced
// instance that has become ready. The gateway must serve it (Serves). Adopt returns nil if
// the instance cannot be used: its function was removed or, for a gateway's own instance,
// has changed.
func (d *Dispatcher) Adopt(r instance.Record, to residency.Start) *Instance {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, own := d.Function(r.Function), r.Owner == instance.Gateway
	if f == nil || f.removed || own && !isVersion(&r, f.definition) {
		return nil
	}
	var warm time.Duration
	if rate := f.planRate(&r); rate > 0 { // a first guess, until it is measured
		warm = time.Duration(min(float64(time.Second)*float64(f.perInvocation(&r))/rate, float64(time.Hour)))
	}
	f.contract = r.Contract
	if i := d.announcedAs(r.ID, f, &r); i != nil && !own {
		i.record, i.state, i.idleSince = &r, instanceReady, d.policy.now()
		d.policy.step(&queue.Ready{Instance: i.id, Function: f.number, Warm: warm, Batch: planBatch(&r)})
		return i
	}
	i := d.add(f, r, instanceReady)
	i.worked, i.parks, i.parked = true, own && d.cfg.Park != "", own && d.cfg.AdoptParked
	d.policy.step(adopted(i, to, warm))
	i.reportSlice()
	return i
}

// Rebatch changes the batch of an instance of a plan, which may change while it runs.
func (d *Dispatcher) Rebatch(r instance.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range d.instances {
		if i.own || i.state != instanceReady || i.record.Handle != r.Handle || i.record.Batch == r.Batch {
			continue
		}
		changed := *i.record
		changed.Batch = r.Batch
		i.record = &changed
		i.function.setMaxBatch()
		d.policy.step(adopted(i, residency.GPUWarm, 0))
		return
	}
}

// Announce adds an instance that another process is starting. It returns nil if the gateway
// does not serve the instance. added reports whether the instance was unknown.
func (d *Dispatcher) Announce(r instance.Record) (i *Instance, added bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.serves(&r) {
		return nil, false
	}
	f := d.Function(r.Function)
	if i := d.announcedAs(r.ID, f, &r); i != nil {
		i.record = &r
		return i, false
	}
	i = d.add(f, r, instanceStarts)
	d.policy.step(adopted(i, residency.GPUWarm, 0))
	return i, true
}

// add adds an instance that this gateway did not start. Locked.
func (d *Dispatcher) add(f *Function, r instance.Record, state instanceState) *Instance {
	d.lastAdopted--
	gpus := d.cfg.numbers(r.GPUs)
	i := &Instance{d: d, id: d.lastAdopted, gpu: gpus[0], mem: max(f.spec.Mem, int64(r.Slice.Mem)), function: f, version: f.version, definition: f.definition, own: r.Owner == instance.Gateway,
		record: &r, state: state, idleSince: d.policy.now(), memory: newInstanceMemory()}
	i.config = f.configOf(&r, int(gpus[0]))
	i.further = slices.DeleteFunc(gpus[1:], func(n int32) bool { return n < 0 })
	d.instances[i.id] = i
	f.instances++
	i.reportPlaced()
	f.setMaxBatch()
	i.shareMemory()
	return i
}

// RetractMissing forgets the announced instances whose IDs are not listed.
func (d *Dispatcher) RetractMissing(listed map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range d.instances {
		if i.announced() && !listed[i.record.ID] {
			i.lose()
		}
	}
}

// announced reports whether another process is starting the instance. Locked.
func (i *Instance) announced() bool { return !i.own && i.state == instanceStarts }

// announcedAs returns the announced instance with that ID, or nil. If the instance has
// another function or GPU than given, announcedAs loses it. Locked.
func (d *Dispatcher) announcedAs(id string, f *Function, r *instance.Record) *Instance {
	for _, i := range d.instances {
		if !i.announced() || i.record.ID != id {
			continue
		}
		if i.function == f && i.gpu == d.cfg.numbers(r.GPUs)[0] {
			return i
		}
		i.lose()
	}
	return nil
}

// IsAnnounced reports whether another process is starting the instance.
func (i *Instance) IsAnnounced() bool {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	return i.announced()
}

// Retract forgets the announced instance with that ID, which will not become ready.
func (d *Dispatcher) Retract(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.announcedAs(id, nil, nil)
}

// standing is an instance of a plan that has faulted and still runs.
type standing struct {
	instance *Instance
	fault    wire.InstanceFault
}

// Faulted forgets an instance that can no longer use CUDA. It returns the instance, and a
// function that cuts its remaining calls some time later. It returns nil if no ready
// instance has that ID, or if the fault is older than the instance.
func (d *Dispatcher) Faulted(f wire.InstanceFault) (i *Instance, cut func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, other := range d.instances {
		if other.record.ID == f.Instance && other.state == instanceReady && !f.Time.Before(other.record.Handle.Started) {
			i = other
		}
	}
	if i == nil {
		return nil, nil
	}
	if i.own {
		d.memory.dying(i)
	} else {
		d.faults[i.record.ID] = standing{i, f}
	}
	i.forget()
	i.function.hold(i)
	d.policy.step(lost(i, memorySufficed))
	attempts := slices.Clone(i.attempts)
	return i, func() { cutLater(attempts, i) }
}

// FaultsGone deletes the faults of instances that have since been removed or restarted.
func (d *Dispatcher) FaultsGone(records []instance.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, f := range d.faults {
		if !slices.ContainsFunc(records, func(r instance.Record) bool { return r.ID == id && r.Handle == f.instance.record.Handle }) {
			delete(d.faults, id)
		}
	}
}
