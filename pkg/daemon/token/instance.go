package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

// rejoin is how long after its start a daemon waits for the processes of an
// instance whose owner is dead.
const rejoin = 2 * time.Second

// instance is a registered instance.
type instance struct {
	reg        wire.Registration // without the secret
	secret     [sha256.Size]byte // its hash
	ownerStart uint64            // tells the owner from a later process of the same number
	seats      []*seat           // as its processes count their devices
	door       *door             // its own entrance; nil until Serve, or if there is none to be had
	loose      bool              // nothing holds it to its SM share
}

// connected counts the connections of the instance's processes.
func (i *instance) connected() (n int) {
	for _, s := range i.seats {
		n += s.connected
	}
	return n
}

// ownerDead says whether the instance had an owner that is gone.
func (i *instance) ownerDead() bool {
	return i.reg.OwnerPID != 0 && startTime(i.reg.OwnerPID) != i.ownerStart
}

// errIdentity does not say which of the two is wrong.
var errIdentity = errors.New("instance and secret do not match a registration")

// join lets a process in: it checks who it is, whether it came in where it
// may, and which of the instance's GPUs the connection is for.
func (d *Daemon) join(conn *net.UnixConn, e *entrance, hello wire.Hello, cred unix.Ucred) error {
	inst, known := d.instances[hello.Instance.String()]
	want := [sha256.Size]byte{}
	if known {
		want = inst.secret
	}
	got := sha256.Sum256([]byte(hello.Secret.String()))
	if subtle.ConstantTimeCompare(got[:], want[:]) == 0 || !known || e.instance != "" && e.instance != inst.reg.Instance {
		return errIdentity
	}
	if uint64(hello.Device) >= uint64(len(inst.seats)) {
		return fmt.Errorf("instance %s has %d GPU(s): there is no device %d", inst.reg.Instance, len(inst.seats), hello.Device)
	}
	return inst.seats[hello.Device].admit(d, conn, hello.MemUsed, cred)
}

// add makes an instance known or replaces one that admits says may be.
func (d *Daemon) add(fresh *instance) {
	id := fresh.reg.Instance
	if old, ok := d.instances[id]; ok {
		old.reg, old.secret, old.ownerStart = fresh.reg, fresh.secret, fresh.ownerStart
		if old.door == nil {
			old.door = fresh.door
		}
		fresh = old
	}
	d.instances[id] = fresh
	d.busy = time.Now()
	d.seatsOf(fresh)
}

// admits says why an instance may not be registered now, if so.
func (d *Daemon) admits(fresh *instance) error {
	old, ok := d.instances[fresh.reg.Instance]
	switch {
	case !ok:
		return nil
	case old.connected() > 0 && (old.secret != fresh.secret || !old.sameGPUs(fresh.reg.Seats())):
		return fmt.Errorf("instance %s has %d processes: a new secret or GPU is for when they are gone", fresh.reg.Instance, old.connected())
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
	for _, s := range inst.seats {
		for _, m := range s.members {
			if m != nil {
				m.hangUp()
				d.leave(m)
			}
		}
	}
	d.dropSeats(inst)
	inst.door.remove()
	delete(d.instances, id)
	d.busy = time.Now()
	d.log.Info("instance removed", "instance", id, "why", why)
	return true
}

// lookAfter drops instances whose owner is dead and that no process belongs
// to, and processes that died while someone else holds their connection open.
func (d *Daemon) lookAfter() {
	for _, m := range d.members {
		if m.pid > 0 && errors.Is(unix.Kill(m.pid, 0), unix.ESRCH) {
			m.hangUp()
		}
	}
	if d.regMu.TryLock() { // else its file may just be written anew
		for _, inst := range d.sortedInstances() {
			if inst.connected() == 0 && inst.ownerDead() && time.Since(d.epoch) >= rejoin {
				d.remove(inst.reg.Instance, "owner is gone")
				d.forgetFile(inst.reg.Instance)
			}
		}
		d.regMu.Unlock()
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
