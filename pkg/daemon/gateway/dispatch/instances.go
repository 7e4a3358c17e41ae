package dispatch

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Instances are the instances that the policy knows: those that this gateway has started, and those that it
// found running or that another process is starting. Dispatcher.mu guards them.
type Instances struct {
	d           *Dispatcher
	byID        instanceSet
	lastAdopted residency.ID               // ID of the latest adopted instance; IDs count down
	lastNumber  int64                      // N in the ID NAME.N of the latest own instance or job
	faults      map[string]faultedInstance // instances of plans that faulted but still run, by ID
}

// newInstances returns the instances of a dispatcher that has none.
func newInstances(d *Dispatcher) Instances {
	return Instances{d: d, byID: instanceSet{}, lastAdopted: residency.None, faults: map[string]faultedInstance{}}
}

// instanceSet is a set of instances.
type instanceSet map[residency.ID]*Instance

// countAlive returns the number of starting and ready instances that are still needed, instances of plans
// included. Locked.
func (s instanceSet) countAlive() (n int) {
	for _, i := range s {
		if i.alive() {
			n++
		}
	}
	return n
}

// warm returns the instance for a probe: the instance with the fewest calls among those
// that are ready and have their memory on the GPU. It returns nil if there is no such
// instance. Locked.
func (s instanceSet) warm() (best *Instance) {
	for _, i := range s {
		if i.state == instanceReady && !i.parked && !i.outdated() && (best == nil || len(i.attempts) < len(best.attempts)) {
			best = i
		}
	}
	return best
}

// put adds an instance, updates the largest batch of its function, and sends the policy the memory that it
// occupies on further GPUs. Locked.
func (s *Instances) put(i *Instance) {
	s.byID[i.id] = i
	i.function.instances[i.id] = i
	i.function.setMaxBatch()
	i.sendFurtherMemory()
}

// delete removes an instance, with the same updates. Locked.
func (s *Instances) delete(i *Instance) {
	delete(s.byID, i.id)
	delete(i.function.instances, i.id)
	i.function.setMaxBatch()
	i.sendFurtherMemory()
}

// ResumeIDs continues numbering the gateway's own instances and jobs after the highest number in the
// records.
func (s *Instances) ResumeIDs(records []instance.Record) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, r := range records {
		if r.Owner == instance.Gateway {
			s.lastNumber = max(s.lastNumber, numberIn(r.ID))
		}
	}
}

// Own returns the records of the gateway's own instances that are ready.
func (s *Instances) Own() (out []instance.Record) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, i := range s.byID {
		if i.own && i.state == instanceReady {
			out = append(out, *i.record)
		}
	}
	return out
}

// Serves reports whether this gateway serves the function and the first GPU of an instance.
func (s *Instances) Serves(r *instance.Record) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.serves(r)
}

// serves is Serves. Locked.
func (s *Instances) serves(r *instance.Record) bool {
	gpus := s.d.GPUs.numbers(r.GPUs)
	return s.d.Function(r.Function) != nil && len(gpus) > 0 && gpus[0] >= 0
}

// Adopt adds an instance that was found running, or an announced instance that has become ready. to is where
// its memory is. The gateway must serve it (Serves). Adopt returns nil if
// the instance cannot be used: its function was removed or, for a gateway's own instance,
// has changed.
func (s *Instances) Adopt(r instance.Record, to residency.Start) *Instance {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	f, own := s.d.Function(r.Function), r.Owner == instance.Gateway
	if f == nil || f.removed || own && !isVersion(&r, f.definition) {
		return nil
	}
	var warm time.Duration
	if rate := planRate(&f.definition, &r); rate > 0 { // a first guess, until it is measured
		warm = time.Duration(min(float64(time.Second)*float64(max(f.Calls().MaxBatch(&r), 1))/rate, float64(time.Hour)))
	}
	f.contract = r.Contract
	if i := s.announcedAs(r.ID, f, &r); i != nil && !own {
		i.record, i.state, i.idleSince = &r, instanceReady, s.d.policy.now()
		s.d.policy.step(&queue.Ready{Instance: i.id, Function: f.number, Warm: warm, Batch: planBatch(&r)})
		return i
	}
	i := s.add(f, r, instanceReady)
	i.worked, i.parks, i.parked = true, own && s.d.cfg.Park != "", own && s.d.cfg.AdoptParked
	s.d.policy.step(adopted(i, to, warm))
	i.reportSlice()
	return i
}

// Rebatch sets the batch of a ready instance of a plan. A plan's batch may change while the instance runs.
func (s *Instances) Rebatch(r instance.Record) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, i := range s.byID {
		if i.own || i.state != instanceReady || i.record.Handle != r.Handle || i.record.Batch == r.Batch {
			continue
		}
		changed := *i.record
		changed.Batch = r.Batch
		i.record = &changed
		i.function.setMaxBatch()
		s.d.policy.step(adopted(i, residency.GPUWarm, 0))
		return
	}
}

// Announce adds an instance that another process is starting. It returns nil if the gateway
// does not serve the instance. added reports whether the instance was unknown.
func (s *Instances) Announce(r instance.Record) (i *Instance, added bool) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if !s.serves(&r) {
		return nil, false
	}
	f := s.d.Function(r.Function)
	if i := s.announcedAs(r.ID, f, &r); i != nil {
		i.record = &r
		return i, false
	}
	i = s.add(f, r, instanceStarts)
	s.d.policy.step(adopted(i, residency.GPUWarm, 0))
	return i, true
}

// add adds an instance that this gateway did not start. Locked.
func (s *Instances) add(f *Function, r instance.Record, state instanceState) *Instance {
	s.lastAdopted--
	gpus := s.d.GPUs.numbers(r.GPUs)
	i := &Instance{d: s.d, id: s.lastAdopted, gpu: gpus[0], mem: max(f.spec.Mem, int64(r.Slice.Mem)), function: f, version: f.version, definition: f.definition, own: r.Owner == instance.Gateway,
		record: &r, state: state, idleSince: s.d.policy.now(), memory: newInstanceMemory()}
	i.config = f.chooser().configOf(&r, int(gpus[0]), f.unit)
	i.further = slices.DeleteFunc(gpus[1:], func(n int32) bool { return n < 0 })
	i.reportPlaced()
	s.put(i)
	return i
}

// RetractMissing forgets the announced instances whose IDs are not listed.
func (s *Instances) RetractMissing(listed map[string]bool) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, i := range s.byID {
		if i.announced() && !listed[i.record.ID] {
			i.lose()
		}
	}
}

// announced reports whether another process is starting the instance. Locked.
func (i *Instance) announced() bool { return !i.own && i.state == instanceStarts }

// announcedAs returns the announced instance with that ID, or nil. If the instance has
// another function or GPU than given, announcedAs loses it. Locked.
func (s *Instances) announcedAs(id string, f *Function, r *instance.Record) *Instance {
	for _, i := range s.byID {
		if !i.announced() || i.record.ID != id {
			continue
		}
		if i.function == f && i.gpu == s.d.GPUs.numbers(r.GPUs)[0] {
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
func (s *Instances) Retract(id string) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.announcedAs(id, nil, nil)
}

// faultedInstance is an instance of a plan that has faulted and still runs.
type faultedInstance struct {
	instance *Instance
	fault    wire.InstanceFault
}

// Faulted forgets an instance that can no longer use CUDA. It returns the instance, and a
// function that cuts its remaining calls some time later. It returns nil if no ready
// instance has that ID, or if the fault is older than the instance.
func (s *Instances) Faulted(f wire.InstanceFault) (i *Instance, cut func()) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, other := range s.byID {
		if other.record.ID == f.Instance && other.state == instanceReady && !f.Time.Before(other.record.Handle.Started) {
			i = other
		}
	}
	if i == nil {
		return nil, nil
	}
	if i.own {
		s.d.memory.dying(i)
	} else {
		s.faults[i.record.ID] = faultedInstance{i, f}
	}
	s.d.policy.add(lost(i, memorySufficed))
	i.forget()
	i.function.delayReplacement(i)
	s.d.policy.step()
	attempts := slices.Clone(i.attempts)
	return i, func() { cutLater(attempts, i) }
}

// FaultsGone deletes the faults of instances that have since been removed or restarted.
func (s *Instances) FaultsGone(records []instance.Record) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for id, f := range s.faults {
		if !slices.ContainsFunc(records, func(r instance.Record) bool { return r.ID == id && r.Handle == f.instance.record.Handle }) {
			delete(s.faults, id)
		}
	}
}
