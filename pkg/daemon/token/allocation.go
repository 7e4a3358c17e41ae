package token

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// allocation is an instance's part of one GPU and its processes there. A process
// that uses several GPUs is a client of each, with a page and a slot for each.
type allocation struct {
	wire.Allocation
	inst      *instance
	gpu       *device
	page      *page     // nil until a process connects
	clients   []*client // by slot: PageSlots, and more once all of them were taken
	next      int       // slot to try first: a freed one rests as long as possible
	older     int       // clients whose library knows PageSlots slots only
	connected int
	stores    map[int]*store // by slot
	left      totals         // of processes that have left
	period    time.Time      // of pace
	messages  int            // read in it
}

// allocate makes an instance's allocations, or brings those it has up to date.
// They are made anew when its GPUs change, which is only while it has no process.
func (d *Daemon) allocate(i *instance) {
	wanted := i.reg.Allocations()
	if !i.sameGPUs(wanted) {
		d.deallocate(i)
		for _, w := range wanted {
			i.allocations = append(i.allocations, &allocation{
				inst: i, gpu: d.device(w.Device()), clients: make([]*client, wire.PageSlots),
			})
		}
	}
	for n, a := range i.allocations {
		a.Allocation = wanted[n]
		if a.page != nil {
			a.page.setLimit(a.MemLimit)
		}
		a.gpu.step(policy.AddInstance{
			Instance: i.reg.Instance, Slice: a.Slice(), Turns: a.Turns,
			SLO: time.Duration(i.reg.SLOMS * float64(time.Millisecond)), Loose: i.loose,
		})
	}
}

// deallocate takes an instance off its GPUs.
func (d *Daemon) deallocate(i *instance) {
	for _, a := range i.allocations {
		a.endStores()
		a.dropPage()
		a.gpu.step(policy.RemoveInstance{Instance: i.reg.Instance})
	}
	i.allocations = nil
}

// sameGPUs says whether the instance's allocations are on these GPUs, in that order.
func (i *instance) sameGPUs(allocations []wire.Allocation) bool {
	if len(i.allocations) != len(allocations) {
		return false
	}
	for n, a := range allocations {
		if i.allocations[n].Device() != a.Device() {
			return false
		}
	}
	return true
}

// on is the instance's allocation on that GPU, or nil.
func (i *instance) on(g *device) *allocation {
	for _, a := range i.allocations {
		if a.gpu == g {
			return a
		}
	}
	return nil
}

func (a *allocation) dropPage() {
	if a.page != nil {
		a.page.close()
		a.page = nil
	}
}

// admit gives a process a slot, sends the welcome and has the poller read what it
// sends.
func (a *allocation) admit(d *Daemon, conn *net.UnixConn, memUsed uint64, older bool, cred unix.Ucred, above []ancestor) error {
	slot, err := a.freeSlot(older)
	if err != nil {
		return err
	}
	if err := a.openSlot(d, slot); err != nil {
		return err
	}
	atomic.StoreUint32(&a.page.slot(slot).PID, uint32(cred.Pid))
	atomic.StoreUint64(&a.page.slot(slot).MemUsed, memUsed)
	welcome := wire.Welcome{
		Slot: uint32(slot), NSlots: wire.PageSlotsMost, MemLimit: uint64(a.MemLimit), WindowNS: uint64(d.window()),
	}
	d.lastID++
	c := &client{id: d.lastID, alloc: a, slot: slot, older: older, pid: int(cred.Pid), uid: cred.Uid}
	if len(above) > 0 {
		c.start = above[0].Start
	}
	if err := d.poller.welcome(c, conn, welcome); err != nil {
		a.page.clear(slot)
		return fmt.Errorf("welcome: %w", err)
	}
	a.clients[slot], a.next = c, slot+1
	a.connected++
	if older {
		a.older++
	}
	a.inst.renewed(c.pid)
	d.clients[c.id] = c
	a.gpu.step(policy.AddClient{Client: c.id, Instance: a.inst.reg.Instance})
	d.joins.info("client joined", "instance", a.inst.reg.Instance, "gpu", a.GPU, "pid", cred.Pid, "slot", slot, "mem_used", memUsed)
	return nil
}

// openSlot clears a slot that was free, and makes the page if there is none.
func (a *allocation) openSlot(d *Daemon, slot int) error {
	if a.page == nil {
		p, err := newPage(a.inst.reg.Instance, a.MemLimit)
		if err != nil {
			return err
		}
		if a.page = p; d.metered() {
			p.rules(wire.PageMetered | wire.PageFaults | wire.PagePIDs)
		} else {
			p.rules(wire.PageEndings | wire.PageFaults | wire.PagePIDs)
		}
	}
	a.page.use(slot + 1)
	a.page.clear(slot)
	return nil
}

// errFull refuses a process for which an instance has no place.
type errFull struct{ why string }

// Error is the reason.
func (e errFull) Error() string { return e.why }

// taken reports whether a process or a store has a slot.
func (a *allocation) taken(slot int) bool { return a.clients[slot] != nil || a.stores[slot] != nil }

// freeSlot returns a slot that no process or store has. The library of an older process adds up
// the memory of the first PageSlots only, so while there is one no process is beyond them.
func (a *allocation) freeSlot(older bool) (int, error) {
	id, most := a.inst.reg.Instance, wire.PageSlotsMost
	if older || a.older > 0 {
		most = wire.PageSlots
	}
	for slot := most; older && slot < len(a.clients); slot++ {
		if !a.taken(slot) {
			continue
		}
		return 0, errFull{fmt.Sprintf("its library knows of %d processes, and %s has more: start the program again", most, id)}
	}
	had := min(len(a.clients), most)
	for n := range had {
		if slot := (a.next + n) % had; !a.taken(slot) {
			return slot, nil
		}
	}
	if had < most {
		a.clients = append(a.clients, nil)
		return had, nil
	}
	if a.older > 0 {
		return 0, errFull{fmt.Sprintf("%s has %d processes, the most beside one with an older library: start those again", id, most)}
	}
	return 0, errFull{fmt.Sprintf("instance %s has %d processes on GPU %s, the most there can be", id, most, a.GPU)}
}

// leave takes a process out: its lease is free at once and its memory no
// longer counts.
func (d *Daemon) leave(c *client) {
	if d.clients[c.id] != c {
		return
	}
	a := c.alloc
	delete(d.clients, c.id)
	last := a.page.counters(c.slot)
	a.page.clear(c.slot)
	a.clients[c.slot] = nil
	a.connected--
	if c.older {
		a.older--
	}
	d.busy = time.Now()
	a.left.add(last)
	a.gpu.step(policy.RemoveClient{Client: c.id})
	a.inst.lost()
	d.joins.info("client left", "instance", a.inst.reg.Instance, "gpu", a.GPU, "pid", c.pid, "launches", last.launches)
}
