package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// rejoin is how long after its start a daemon waits for the processes of an
// instance whose owner is dead.
const rejoin = 2 * time.Second

// instance is a registered instance and its processes.
type instance struct {
	reg        wire.Registration // without the secret
	secret     [sha256.Size]byte // its hash
	ownerStart uint64            // tells the owner from a later process of the same number
	page       *page             // nil until a process connects
	members    [wire.PageSlots]*member
	next       int // slot to try first: a freed one rests as long as possible
	connected  int
}

func (i *instance) dropPage() {
	if i.page != nil {
		i.page.close()
		i.page = nil
	}
}

// ownerDead says whether the instance had an owner that is gone.
func (i *instance) ownerDead() bool {
	return i.reg.OwnerPID != 0 && startTime(i.reg.OwnerPID) != i.ownerStart
}

// errIdentity does not say which of the two is wrong.
var errIdentity = errors.New("instance and secret do not match a registration")

// join lets a process in: it checks who it is, gives it a slot and sends the
// welcome.
func (d *Daemon) join(conn *net.UnixConn, hello wire.Hello, pid int) (*member, error) {
	inst, known := d.instances[hello.Instance.String()]
	want := [sha256.Size]byte{}
	if known {
		want = inst.secret
	}
	got := sha256.Sum256([]byte(hello.Secret.String()))
	if subtle.ConstantTimeCompare(got[:], want[:]) == 0 || !known {
		return nil, errIdentity
	}
	slot, ok := inst.freeSlot()
	if !ok {
		return nil, fmt.Errorf("instance %s has %d processes, the most there can be", inst.reg.Instance, wire.PageSlots)
	}
	if inst.page == nil {
		p, err := newPage(inst.reg.Instance, inst.reg.MemLimit)
		if err != nil {
			return nil, err
		}
		inst.page = p
	}
	d.lastID++
	m := &member{id: d.lastID, inst: inst, conn: conn, slot: slot, pid: pid}
	inst.page.clear(slot)
	atomic.StoreUint64(&inst.page.slot(slot).MemUsed, hello.MemUsed)
	welcome := wire.Welcome{
		Slot: uint32(slot), NSlots: wire.PageSlots, MemLimit: uint64(inst.reg.MemLimit),
		WindowNS: uint64(d.device(inst.reg.GPU).sched.Window()),
	}
	if err := send(conn, welcome, inst.page.file); err != nil {
		inst.page.clear(slot)
		return nil, fmt.Errorf("welcome: %w", err)
	}
	inst.members[slot], inst.next = m, (slot+1)%wire.PageSlots
	inst.connected++
	d.members[m.id] = m
	d.device(inst.reg.GPU).step(policy.AddClient{Client: m.id, Instance: inst.reg.Instance})
	d.log.Info("client joined", "instance", inst.reg.Instance, "pid", pid, "slot", slot, "mem_used", hello.MemUsed)
	return m, nil
}

func (i *instance) freeSlot() (int, bool) {
	for n := range wire.PageSlots {
		if slot := (i.next + n) % wire.PageSlots; i.members[slot] == nil {
			return slot, true
		}
	}
	return 0, false
}

// leave takes a process out: its lease is free at once and its memory no
// longer counts.
func (d *Daemon) leave(m *member) {
	if d.members[m.id] != m {
		return
	}
	delete(d.members, m.id)
	last := m.inst.page.counters(m.slot)
	m.inst.page.clear(m.slot)
	m.inst.members[m.slot] = nil
	m.inst.connected--
	d.busy = time.Now()
	d.metrics.left(m.inst.reg, last)
	d.device(m.inst.reg.GPU).step(policy.RemoveClient{Client: m.id})
	d.log.Info("client left", "instance", m.inst.reg.Instance, "pid", m.pid, "launches", last.launches)
}

// add makes an instance known or replaces one that admits says may be.
func (d *Daemon) add(fresh *instance) {
	id := fresh.reg.Instance
	if old, ok := d.instances[id]; ok {
		if old.reg.GPU != fresh.reg.GPU {
			d.device(old.reg.GPU).step(policy.RemoveInstance{Instance: id})
		}
		if old.page != nil {
			old.page.setLimit(fresh.reg.MemLimit)
		}
		old.reg, old.secret, old.ownerStart = fresh.reg, fresh.secret, fresh.ownerStart
	} else {
		d.instances[id] = fresh
	}
	d.busy = time.Now()
	d.device(fresh.reg.GPU).step(policy.AddInstance{Instance: id, Slice: fresh.reg.Slice()})
}

// admits says why an instance may not be registered now, if so.
func (d *Daemon) admits(fresh *instance) error {
	old, ok := d.instances[fresh.reg.Instance]
	switch {
	case !ok:
		return nil
	case old.connected > 0 && (old.secret != fresh.secret || old.reg.GPU != fresh.reg.GPU):
		return fmt.Errorf("instance %s has %d processes: a new secret or GPU is for when they are gone", fresh.reg.Instance, old.connected)
	case old.reg.OwnerPID != 0 && old.secret != fresh.secret && !old.ownerDead():
		return fmt.Errorf("instance %s belongs to process %d", fresh.reg.Instance, old.reg.OwnerPID)
	}
	return nil
}

// remove forgets an instance; its processes stay behind closed gates.
func (d *Daemon) remove(id, why string) bool {
	inst, ok := d.instances[id]
	if !ok {
		return false
	}
	for _, m := range inst.members {
		if m != nil {
			_ = m.conn.Close()
			d.leave(m)
		}
	}
	delete(d.instances, id)
	inst.dropPage()
	d.busy = time.Now()
	d.metrics.forget(inst.reg)
	d.device(inst.reg.GPU).step(policy.RemoveInstance{Instance: id})
	d.log.Info("instance removed", "instance", id, "why", why)
	return true
}

// lookAfter drops instances whose owner is dead and that no process belongs
// to, and processes that died while someone else holds their connection open.
func (d *Daemon) lookAfter() {
	for _, m := range d.members {
		if m.pid > 0 && errors.Is(unix.Kill(m.pid, 0), unix.ESRCH) {
			_ = m.conn.Close() // its reader ends and takes it out
		}
	}
	if d.regMu.TryLock() { // else its file may just be written anew
		for _, inst := range d.sortedInstances() {
			if inst.connected == 0 && inst.ownerDead() && time.Since(d.epoch) >= rejoin {
				d.remove(inst.reg.Instance, "owner is gone")
				d.forgetFile(inst.reg.Instance)
			}
		}
		d.regMu.Unlock()
	}
	if len(d.instances) > 0 || len(d.members) > 0 {
		d.busy = time.Now()
	}
}

func (d *Daemon) sortedInstances() []*instance {
	var out []*instance
	for _, i := range d.instances {
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b *instance) int { return strings.Compare(a.reg.Instance, b.reg.Instance) })
	return out
}
