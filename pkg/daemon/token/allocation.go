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
	page      *page // nil until a process connects
	clients   [wire.PageSlots]*client
	next      int // slot to try first: a freed one rests as long as possible
	connected int
	left      totals    // of processes that have left
	period    time.Time // of pace
	messages  int       // read in it
}

// allocate makes an instance's allocations, or brings those it has up to date.
// They are made anew when its GPUs change, which is only while it has no process.
func (d *Daemon) allocate(i *instance) {
	wanted := i.reg.Allocations()
	if !i.sameGPUs(wanted) {
		d.deallocate(i)
		for _, w := range wanted {
			i.allocations = append(i.allocations, &allocation{inst: i, gpu: d.device(w.Device())})
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
func (a *allocation) admit(d *Daemon, conn *net.UnixConn, memUsed uint64, cred unix.Ucred, above []ancestor) error {
	slot, ok := a.freeSlot()
	if !ok {
		return fmt.Errorf("instance %s has %d processes on GPU %s, the most there can be", a.inst.reg.Instance, wire.PageSlots, a.GPU)
	}
	if a.page == nil {
		p, err := newPage(a.inst.reg.Instance, a.MemLimit)
		if err != nil {
			return err
		}
		if a.page = p; d.metered() {
			p.rules(wire.PageMetered | wire.PageFaults)
		} else {
			p.rules(wire.PageEndings | wire.PageFaults)
		}
	}
	a.page.clear(slot)
	atomic.StoreUint64(&a.page.slot(slot).MemUsed, memUsed)
	welcome := wire.Welcome{
		Slot: uint32(slot), NSlots: wire.PageSlots, MemLimit: uint64(a.MemLimit), WindowNS: uint64(d.window()),
	}
	d.lastID++
	c := &client{id: d.lastID, alloc: a, slot: slot, pid: int(cred.Pid), uid: cred.Uid}
	if len(above) > 0 {
		c.start = above[0].Start
	}
	if err := d.poller.welcome(c, conn, welcome); err != nil {
		a.page.clear(slot)
		return fmt.Errorf("welcome: %w", err)
	}
	a.clients[slot], a.next = c, (slot+1)%wire.PageSlots
	a.connected++
	a.inst.renewed(c.pid)
	d.clients[c.id] = c
	a.gpu.step(policy.AddClient{Client: c.id, Instance: a.inst.reg.Instance})
	d.joins.info("client joined", "instance", a.inst.reg.Instance, "gpu", a.GPU, "pid", cred.Pid, "slot", slot, "mem_used", memUsed)
	return nil
}

func (a *allocation) freeSlot() (int, bool) {
	for n := range wire.PageSlots {
		if slot := (a.next + n) % wire.PageSlots; a.clients[slot] == nil {
			return slot, true
		}
	}
	return 0, false
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
	d.busy = time.Now()
	a.left.add(last)
	a.gpu.step(policy.RemoveClient{Client: c.id})
	a.inst.lost()
	d.joins.info("client left", "instance", a.inst.reg.Instance, "gpu", a.GPU, "pid", c.pid, "launches", last.launches)
}
