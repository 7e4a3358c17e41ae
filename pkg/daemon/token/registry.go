package token

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	instances "github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/number"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// reconnectTime is how long after its start the daemon keeps instances whose owner has ended, so that their
// processes can connect again.
const reconnectTime = 2 * time.Second

// registry holds the registered instances. The core's lock guards it.
type registry struct {
	*core
	gpus    *schedulers
	records records
	grants  *grants
	accept  func(*instanceSocket) // accepts connections at a socket in the background
	opened  time.Time

	changes sync.Mutex // serializes registrations, changes and removals; taken before the core's lock

	instances map[string]*instance
	used      time.Time // when an instance or a registration last existed
	orphans   []tree    // to be killed
}

// load registers the instances of the previous daemon.
func (r *registry) load() error {
	all, err := r.records.load()
	if err == nil && r.cfg.Grants != nil {
		var granted []*instance
		granted, err = r.grants.load()
		// A registration at the control socket takes precedence.
		all = append(all, slices.DeleteFunc(granted, func(g *instance) bool {
			return slices.ContainsFunc(all, func(i *instance) bool { return i.reg.Instance == g.reg.Instance })
		})...)
	}
	for _, inst := range all {
		r.add(inst)
		r.log.Info("instance restored", "instance", inst.reg.Instance, "gpu", inst.reg.GPU)
	}
	return err
}

// openSockets opens the sockets of the registered instances and removes the folders of unknown
// instances.
func (r *registry) openSockets() {
	folders, err := os.ReadDir(r.lineage.clientDir)
	if err != nil {
		r.log.Error("cannot list the folders of instances", "err", err)
	}
	for _, f := range folders {
		if f.IsDir() && instances.ValidID(f.Name()) && r.instances[f.Name()] == nil {
			removeFolder(filepath.Join(r.lineage.clientDir, f.Name()))
		}
	}
	for id, inst := range r.instances {
		if inst.grant != nil {
			continue
		}
		if inst.socket, err = openSocket(&r.cfg, id); err != nil {
			r.log.Error("cannot open the socket of an instance", "instance", id, "err", err)
			continue
		}
		r.accept(inst.socket)
	}
}

// sorted returns the instances, ordered by ID.
func (r *registry) sorted() []*instance {
	return slices.SortedFunc(maps.Values(r.instances), func(a, b *instance) int { return strings.Compare(a.reg.Instance, b.reg.Instance) })
}

// sessions iterates over the sessions of all instances.
func (r *registry) sessions() iter.Seq[*session] {
	return func(yield func(*session) bool) {
		for _, i := range r.instances {
			for c := range i.sessions() {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// lastUse returns when the daemon last had an instance, and whether a process is connected.
func (r *registry) lastUse() (last time.Time, connected bool) {
	_ = r.locked(func() {
		if len(r.instances) > 0 {
			r.used = time.Now()
		}
		last = r.used
		for range r.sessions() {
			connected = true
		}
	})
	return last, connected
}

// errIdentity does not reveal whether the instance or the secret is wrong.
var errIdentity = errors.New("instance and secret do not match a registration")

// identify returns the instance of a process that has connected to a socket. It returns errIdentity if the secret is
// wrong, or the socket is not the instance's.
func (r *registry) identify(at origin, id, secret wire.Name) (*instance, error) {
	inst, known := r.instances[id.String()]
	want := [sha256.Size]byte{}
	if known {
		want = inst.secret
	}
	got := sha256.Sum256([]byte(secret.String()))
	if subtle.ConstantTimeCompare(got[:], want[:]) == 0 || !known || !at.serves(inst) {
		return nil, errIdentity
	}
	return inst, nil
}

// containing returns the instance, other than except, that contains a process with these ancestors, or "".
// Processes that the daemon itself has started are in no instance.
func (r *registry) containing(lineage []ancestor, except string) string {
	for n, a := range lineage {
		if a.PID == os.Getpid() {
			return ""
		}
		if a.instance != except && r.instances[a.instance] != nil {
			return a.instance
		}
		for c := range r.sessions() {
			if c.pid == a.PID && c.start == a.Start && c.instance != except && a.PID != os.Getppid() { // the parent of this daemon may have started many daemons
				return c.instance
			}
		}
		for id, i := range r.instances {
			if n > 0 && i.reg.OwnerPID == a.PID && i.ownerStart == a.Start && id != except {
				return id
			}
		}
	}
	return ""
}

// add registers an instance, or replaces a registered one. The caller has called checkRegistration.
func (r *registry) add(inst *instance) {
	id := inst.reg.Instance
	if old, ok := r.instances[id]; ok {
		if old.secret != inst.secret { // another instance with the same name
			if old.orphaned() {
				r.orphan(old)
			}
			old.clearFindings()
		}
		old.reg, old.secret, old.ownerStart, old.grant = inst.reg, inst.secret, inst.ownerStart, inst.grant
		if old.socket == nil {
			old.socket = inst.socket
		}
		inst = old
	}
	inst.watched = inst.watched || !inst.ownerDead()
	r.instances[id] = inst
	if inst.grant != nil {
		r.grants.accepted[id] = inst.grant
	}
	inst.allocate(r.gpus)
}

// checkRegistration returns an error if an instance cannot be registered now.
func (r *registry) checkRegistration(inst *instance) error {
	if inst.grant != nil {
		if err := r.grants.check(inst.reg.Instance, inst.grant); err != nil {
			return err
		}
	}
	old, ok := r.instances[inst.reg.Instance]
	switch {
	case !ok:
		return nil
	case old.reg.OwnerPID != 0 && old.secret != inst.secret && !old.ownerDead():
		return fmt.Errorf("the name %s is in use by the instance of process %d", inst.reg.Instance, old.reg.OwnerPID)
	case old.connected() > 0 && old.secret != inst.secret:
		return fmt.Errorf("the name %s is in use by an instance whose processes have not ended (number of processes: %d)", inst.reg.Instance, old.connected())
	case old.connected() > 0 && !old.sameGPUs(inst.reg.Allocations()):
		return fmt.Errorf("the GPU of instance %s cannot change until its processes have ended (number of processes: %d)", inst.reg.Instance, old.connected())
	}
	return nil
}

// remove removes an instance and its record. Its processes continue behind closed gates.
func (r *registry) remove(inst *instance, reason string) {
	id := inst.reg.Instance
	for c := range inst.sessions() {
		c.hangUp()
		r.removeSession(c)
	}
	inst.deallocate()
	inst.socket.remove()
	delete(r.instances, id)
	r.used = time.Now()
	r.log.Info("instance removed", "instance", id, "why", reason)
	if inst.grant == nil {
		r.records.remove(id)
	}
}

// addSession adds a session to the free slot c.slot.
func (r *registry) addSession(c *session, memUsed uint64) {
	c.alloc.addSession(c)
	r.joins.info("client joined", "instance", c.instance, "gpu", c.alloc.GPU, "pid", c.pid, "slot", c.slot, "mem_used", memUsed)
}

// removeSession removes a session. It does nothing if the session was removed before.
func (r *registry) removeSession(c *session) {
	if c.joined() {
		last := c.alloc.removeSession(c)
		r.joins.info("client left", "instance", c.instance, "gpu", c.alloc.GPU, "pid", c.pid, "launches", last.launches)
	}
}

// orphan adds the instance's processes to the orphans, only once per instance.
func (r *registry) orphan(i *instance) {
	i.watched = false
	r.orphans = append(r.orphans, i.tree())
}

// reap removes instances that have no process and whose owner has ended. It returns the processes to
// kill because their owner has ended, including orphans recorded earlier.
func (r *registry) reap() []tree {
	if r.changes.TryLock() { // otherwise a record may be being written
		defer r.changes.Unlock()
		for _, inst := range r.sorted() {
			if inst.orphaned() {
				r.orphan(inst)
			}
			if time.Since(r.opened) < reconnectTime {
				continue
			}
			if inst.grant != nil {
				if r.grants.reap(inst) {
					r.remove(inst, "its last process has ended")
					if err := r.grants.end(inst.reg.Instance, inst.grant, false); err != nil { // the next daemon restores it, and ends it again
						r.log.Error("cannot save the end of a registration", "instance", inst.reg.Instance, "err", err)
					}
				}
			} else if inst.connected() == 0 && inst.findings.outside == 0 && inst.ownerDead() {
				r.remove(inst, "its owner has ended")
			}
		}
		r.grants.forget()
	}
	out := r.orphans
	r.orphans = nil
	return out
}

// save writes the record of an instance that is not registered yet, or not with these settings.
func (r *registry) save(i *instance) error {
	if err := r.recordsOf(i).save(&i.reg, i.encode()); err != nil {
		return fmt.Errorf("save the registration: %w", err)
	}
	return nil
}

// recordsOf returns the records that contain, or will contain, an instance's.
func (r *registry) recordsOf(i *instance) records {
	if i.grant != nil {
		return r.grants.records
	}
	return r.records
}

// register registers an instance. It writes the record before it takes the lock, so that no client
// waits for the disk. Processes may connect meanwhile, so it calls checkRegistration again afterwards, and
// restores the previous record if the instance can no longer be registered.
func (r *registry) register(inst *instance) (err error) {
	r.changes.Lock()
	defer r.changes.Unlock()
	var conflict error
	var old *instance
	if err := r.locked(func() {
		conflict, r.used = r.checkRegistration(inst), time.Now()
		if old = r.instances[inst.reg.Instance]; old != nil && old.secret == inst.secret {
			inst.parked = old.parked
		}
	}); err != nil {
		return err
	}
	if conflict != nil {
		return statusError{http.StatusConflict, conflict}
	}
	if inst.grant == nil && (old == nil || old.socket == nil) {
		if inst.socket, err = openSocket(&r.cfg, inst.reg.Instance); err != nil {
			return err
		}
	}
	if err := r.save(inst); err != nil {
		if old == nil || old.socket == nil {
			inst.socket.remove()
		}
		inst.socket.close()
		return err
	}
	reg := inst.reg
	var previous []byte
	if err := r.locked(func() {
		if conflict = r.checkRegistration(inst); conflict != nil {
			if r.recordsOf(old) == r.recordsOf(inst) { // otherwise its record is still there
				previous = old.encode()
			}
			reg = old.reg
			return
		}
		if old != nil && old.grant != nil && inst.grant == nil {
			if err := r.grants.end(reg.Instance, old.grant, true); err != nil {
				r.log.Error("cannot save the end of a grant", "instance", reg.Instance, "err", err)
				old.grant.Revoked = true // until this daemon ends
			}
		}
		r.add(inst)
		if inst.socket != nil {
			r.accept(inst.socket)
		}
	}); err != nil {
		inst.socket.close()
		return err
	}
	if conflict != nil { // the connected process belongs to the previous registration
		if previous == nil {
			inst.socket.remove()
			r.records.remove(reg.Instance)
			return statusError{http.StatusConflict, conflict}
		}
		inst.socket.close()
		if err := r.recordsOf(inst).save(&reg, previous); err != nil {
			r.log.Error("cannot restore a registration", "instance", reg.Instance, "err", err)
		}
		return statusError{http.StatusConflict, conflict}
	}
	for _, s := range reg.Allocations() {
		r.log.Info("instance registered", "instance", reg.Instance, "gpu", s.GPU, "sm_pct", s.SMPct, "sm_limit_pct", s.Slice().LargestSMPct(), "quota_request", s.QuotaRequest,
			"quota_limit", s.QuotaLimit, "mem_limit", int64(s.MemLimit), "turns", len(s.Turns), "owner_pid", reg.OwnerPID)
	}
	return nil
}

// admit registers an instance and prepares the node for its processes.
func (r *registry) admit(ctx context.Context, inst *instance) (wire.Registered, error) {
	limited := r.cfg.Policy != policy.Introspection && inst.reg.DropSMLimits()
	reg := inst.reg
	if err := r.register(inst); err != nil {
		return wire.Registered{}, err
	}
	var answer wire.Registered
	if r.cfg.Prepare != nil {
		answer = r.cfg.Prepare(ctx, reg)
		r.recordPrepared(reg.Instance, answer)
	}
	answer.SMPct = reg.Slice().LargestSMPct()
	if limited {
		answer.Note = strings.TrimPrefix(answer.Note+"; ", "; ") + fmt.Sprintf("its SM share is %s%%, the request: only gfaas-tokend --policy %s uses the limit",
			number.Plain(answer.SMPct), policy.Introspection)
	}
	return answer, nil
}

// recordPrepared records the result of Config.Prepare for an instance. A note in it means that the
// instance's SM share is not enforced.
func (r *registry) recordPrepared(id string, result wire.Registered) {
	_ = r.locked(func() {
		i := r.instances[id]
		if i == nil {
			return
		}
		i.mps = result.MPSPipeDir
		if unenforced := result.Note != ""; i.unenforced != unenforced {
			i.unenforced = unenforced
			i.allocate(r.gpus)
		}
	})
}

// change changes the slice of an instance. Its clients see the change with their next lease. It
// writes the record first, as register does.
func (r *registry) change(id string, c wire.Change) error {
	r.changes.Lock()
	defer r.changes.Unlock()
	var changed *instance
	if err := r.withInstance(id, func(old *instance) error {
		changed = &instance{reg: old.reg, secret: old.secret, ownerStart: old.ownerStart, parked: old.parked, grant: old.grant}
		return nil
	}); err != nil {
		return err
	}
	reg, err := c.Apply(changed.reg)
	if err == nil {
		err = validate(reg)
	}
	if err != nil {
		return statusError{http.StatusBadRequest, err}
	}
	changed.reg = reg
	if err := r.save(changed); err != nil {
		return err
	}
	if err := r.locked(func() { r.add(changed) }); err != nil {
		return err
	}
	for _, a := range reg.Allocations() {
		r.log.Info("instance changed", "instance", id, "gpu", a.GPU, "quota_request", a.QuotaRequest, "quota_limit", a.QuotaLimit,
			"mem_limit", int64(a.MemLimit), "turns", len(a.Turns))
	}
	return nil
}

// withInstance calls f with an instance while it holds the lock. It returns the error of f, or an error if the
// instance is unknown.
func (r *registry) withInstance(id string, f func(*instance) error) (err error) {
	closing := r.locked(func() {
		if i := r.instances[id]; i != nil {
			err = f(i)
		} else {
			err = statusError{http.StatusNotFound, fmt.Errorf("unknown instance %q", id)}
		}
	})
	return cmp.Or(closing, err)
}

// unregister removes an instance.
func (r *registry) unregister(id string) error {
	r.changes.Lock()
	defer r.changes.Unlock()
	return r.withInstance(id, r.removeUnregistered)
}

// removeUnregistered removes an instance on request. A grant does not register it again, unless it is a later one. If this
// cannot be saved, removeUnregistered returns an error and does not remove the instance.
func (r *registry) removeUnregistered(i *instance) error {
	if i.grant != nil {
		if err := r.grants.end(i.reg.Instance, i.grant, true); err != nil {
			return fmt.Errorf("save the end of the grant of instance %s: %w", i.reg.Instance, err)
		}
	}
	r.remove(i, "unregistered")
	return nil
}

// release detaches an instance from an owner that exits in order. The instance ends with the last of
// its processes, and no process is killed.
func (r *registry) release(id string) error {
	r.changes.Lock()
	defer r.changes.Unlock()
	var text []byte
	var file records
	err := r.withInstance(id, func(i *instance) error {
		if !i.alive() {
			return r.removeUnregistered(i)
		}
		i.reg.EndWithOwner = false
		text, file = i.encode(), r.recordsOf(i)
		return nil
	})
	if text != nil {
		if err := file.write(id, text); err != nil {
			r.log.Error("cannot save a registration", "instance", id, "err", err)
		}
	}
	return err
}

// saveParked writes the record of an instance after it was parked or unparked.
func (r *registry) saveParked(inst *instance) error {
	r.changes.Lock()
	defer r.changes.Unlock()
	var text []byte
	var file records
	if err := r.locked(func() {
		if r.instances[inst.reg.Instance] == inst { // not removed meanwhile
			text, file = inst.encode(), r.recordsOf(inst)
		}
	}); err != nil || text == nil {
		return err
	}
	if err := file.write(inst.reg.Instance, text); err != nil {
		return fmt.Errorf("save the registration: %w", err)
	}
	return nil
}

// faultWindow is the time after a fault in which faults of other instances of the same MPS server are
// attributed to it.
const faultWindow = 10 * time.Second

// firstFault returns the instance whose fault also ended this instance's use of CUDA, or "". It is a
// client of the same MPS server with a recent fault that no other instance caused.
func (r *registry) firstFault(inst *instance, now time.Time) string {
	for _, other := range r.sorted() {
		f := other.fault
		if other != inst && inst.mps != "" && other.mps == inst.mps && f != nil && f.After == "" && now.Sub(f.Time) < faultWindow {
			return other.reg.Instance
		}
	}
	return ""
}

// stop closes the sockets and pages of all instances.
func (r *registry) stop() {
	for _, i := range r.instances {
		i.socket.close()
		for _, a := range i.allocations {
			a.dropPage()
		}
	}
}
