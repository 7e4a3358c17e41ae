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

// seat is an instance's part of one GPU and its processes there. A process
// that uses several GPUs has a connection, a page and a slot for each.
type seat struct {
	wire.Seat
	inst      *instance
	gpu       *device
	page      *page // nil until a process connects
	members   [wire.PageSlots]*member
	next      int // slot to try first: a freed one rests as long as possible
	connected int
	left      deeds     // of processes that have left
	period    time.Time // of pace
	messages  int       // heard in it
}

// seatsOf makes an instance's seats, or brings those it has up to date. They
// are made anew when its GPUs change, which is only while it has no process.
func (d *Daemon) seatsOf(i *instance) {
	wanted := i.reg.Seats()
	if !i.sameGPUs(wanted) {
		d.dropSeats(i)
		for _, w := range wanted {
			i.seats = append(i.seats, &seat{inst: i, gpu: d.device(w.Device())})
		}
	}
	for n, s := range i.seats {
		s.Seat = wanted[n]
		if s.page != nil {
			s.page.setLimit(s.MemLimit)
		}
		s.gpu.step(policy.AddInstance{
			Instance: i.reg.Instance, Slice: s.Slice(), Turns: s.Turns,
			SLO: time.Duration(i.reg.SLOMS * float64(time.Millisecond)), Loose: i.loose,
		})
	}
}

// dropSeats takes an instance off its GPUs.
func (d *Daemon) dropSeats(i *instance) {
	for _, s := range i.seats {
		s.dropPage()
		s.gpu.step(policy.RemoveInstance{Instance: i.reg.Instance})
	}
	i.seats = nil
}

// sameGPUs says whether the instance's seats are on these GPUs, in that order.
func (i *instance) sameGPUs(seats []wire.Seat) bool {
	if len(i.seats) != len(seats) {
		return false
	}
	for n, s := range seats {
		if i.seats[n].Device() != s.Device() {
			return false
		}
	}
	return true
}

// on is the instance's seat on that GPU, or nil.
func (i *instance) on(g *device) *seat {
	for _, s := range i.seats {
		if s.gpu == g {
			return s
		}
	}
	return nil
}

func (s *seat) dropPage() {
	if s.page != nil {
		s.page.close()
		s.page = nil
	}
}

// admit gives a process a slot, sends the welcome and has the process heard.
func (s *seat) admit(d *Daemon, conn *net.UnixConn, memUsed uint64, cred unix.Ucred) error {
	slot, ok := s.freeSlot()
	if !ok {
		return fmt.Errorf("instance %s has %d processes on GPU %s, the most there can be", s.inst.reg.Instance, wire.PageSlots, s.GPU)
	}
	if s.page == nil {
		p, err := newPage(s.inst.reg.Instance, s.MemLimit)
		if err != nil {
			return err
		}
		if s.page = p; d.metered() {
			p.meter()
		}
	}
	s.page.clear(slot)
	atomic.StoreUint64(&s.page.slot(slot).MemUsed, memUsed)
	welcome := wire.Welcome{
		Slot: uint32(slot), NSlots: wire.PageSlots, MemLimit: uint64(s.MemLimit), WindowNS: uint64(d.window()),
	}
	d.lastID++
	m := &member{id: d.lastID, seat: s, slot: slot, pid: int(cred.Pid), uid: cred.Uid}
	if err := d.ear.welcome(m, conn, welcome); err != nil {
		s.page.clear(slot)
		return fmt.Errorf("welcome: %w", err)
	}
	s.members[slot], s.next = m, (slot+1)%wire.PageSlots
	s.connected++
	d.members[m.id] = m
	s.gpu.step(policy.AddClient{Client: m.id, Instance: s.inst.reg.Instance})
	d.visits.info("client joined", "instance", s.inst.reg.Instance, "gpu", s.GPU, "pid", cred.Pid, "slot", slot, "mem_used", memUsed)
	return nil
}

func (s *seat) freeSlot() (int, bool) {
	for n := range wire.PageSlots {
		if slot := (s.next + n) % wire.PageSlots; s.members[slot] == nil {
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
	s := m.seat
	delete(d.members, m.id)
	last := s.page.counters(m.slot)
	s.page.clear(m.slot)
	s.members[m.slot] = nil
	s.connected--
	d.busy = time.Now()
	s.left.add(last)
	s.gpu.step(policy.RemoveClient{Client: m.id})
	d.visits.info("client left", "instance", s.inst.reg.Instance, "gpu", s.GPU, "pid", m.pid, "launches", last.launches)
}
