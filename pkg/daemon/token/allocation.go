package token

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// allocation is an instance's slice of one GPU, with its processes there. A process that uses
// several GPUs has a session, a page and a slot for each of them.
type allocation struct {
	wire.Allocation
	inst          *instance
	gpu           *device
	page          *page      // nil until a process connects
	sessions      []*session // by slot; at first PageSlots entries, more once all are in use
	next          int        // slot to try first, so that a freed slot stays unused for as long as possible
	olderSessions int        // sessions whose library supports only PageSlots slots
	connected     int
	stores        map[int]*store // by slot
	endedTotals   totals         // sums over ended sessions
	period        time.Time      // start of the current pacePeriod
	messages      int            // messages read in the current pacePeriod
}

// session is the connection of a process for one GPU.
type session struct {
	client
	alloc        *allocation
	start        uint64 // start time of the process (procfs.Stat); 0 if unknown
	uid          uint32
	olderLibrary bool      // its library supports only PageSlots slots
	foreign      gpu.Bytes // GPU memory of the process outside its allocations
	faulted      bool      // it has reported a CUDA error that ended its use of CUDA
	moves        bool      // its library answers Move
	move         order     // the latest
}

// totals holds the sums of the counters of an allocation's processes.
type totals struct {
	launches, blocked, gpuTime float64 // times are in seconds
	memRefused                 uint64
	gpu, instance              string
}

func (t *totals) add(c counters) {
	t.launches += float64(c.launches)
	t.blocked += boundedDuration(c.blockedNS).Seconds()
	t.memRefused += c.memRefused
}

// processEnded reports whether the session's process has ended, even if its PID is in use again.
// The connection may still be open, because another process inherited it.
func (c *session) processEnded() bool {
	if c.pid == 0 {
		return false
	}
	if errors.Is(unix.Kill(c.pid, 0), unix.ESRCH) {
		return true
	}
	s, err := procfs.Read(c.pid)
	return err == nil && s.Start != c.start && c.start != 0
}

// joined reports whether the session occupies its slot.
func (c *session) joined() bool { return c.alloc.sessions[c.slot] == c }

// addSession assigns the session its slot, which the caller has got from freeSlot, and adds it to the
// scheduler's clients.
func (a *allocation) addSession(c *session) {
	a.sessions[c.slot], a.next = c, c.slot+1
	a.connected++
	if c.olderLibrary {
		a.olderSessions++
	}
	a.inst.clearOldFault(c.pid)
	a.gpu.addClient(&c.client)
}

// removeSession frees the session's slot, lease and counted memory. It returns the session's last counters.
func (a *allocation) removeSession(c *session) counters {
	a.sessions[c.slot] = nil
	a.connected--
	if c.olderLibrary {
		a.olderSessions--
	}
	last := a.gpu.removeClient(&c.client)
	a.endedTotals.add(last)
	a.inst.checkParked()
	return last
}

// openSlot clears a free slot. It creates the page if there is none.
func (a *allocation) openSlot(slot int) error {
	if a.page == nil {
		p, err := newPage(a.inst.reg.Instance, a.MemLimit)
		if err != nil {
			return err
		}
		a.page = p
		mode := wire.PageEndings
		if a.gpu.metered() {
			mode = wire.PageMetered
		}
		atomic.StoreUint32(&p.header().Flags, mode|wire.PageFaults|wire.PagePIDs)
	}
	a.page.extendTo(slot + 1)
	a.page.clear(slot)
	return nil
}

// end removes the allocation from its GPU, with its stores and its page.
func (a *allocation) end() {
	a.endStores()
	a.dropPage()
	a.gpu.step(policy.RemoveInstance{Instance: a.inst.reg.Instance})
}

func (a *allocation) dropPage() {
	if a.page != nil {
		a.page.close()
		a.page = nil
	}
}

// errFull is the error for a process for which an instance has no free slot.
type errFull string

func (e errFull) Error() string { return string(e) }

// slotUsed reports whether a session or a store occupies a slot.
func (a *allocation) slotUsed(slot int) bool { return a.sessions[slot] != nil || a.stores[slot] != nil }

// freeSlot returns a free slot, or errFull. An older library sums the memory of only the first
// PageSlots slots. So while a process with such a library is connected, all processes must be in
// these slots.
func (a *allocation) freeSlot(older bool) (int, error) {
	id, limit := a.inst.reg.Instance, wire.PageSlotsMost
	if older || a.olderSessions > 0 {
		limit = wire.PageSlots
	}
	for slot := limit; older && slot < len(a.sessions); slot++ {
		if a.slotUsed(slot) {
			return 0, errFull(fmt.Sprintf("its library supports only %d processes, and %s has more: restart the program", limit, id))
		}
	}
	open := min(len(a.sessions), limit)
	for n := range open {
		if slot := (a.next + n) % open; !a.slotUsed(slot) {
			return slot, nil
		}
	}
	if open < limit {
		a.sessions = append(a.sessions, nil)
		return open, nil
	}
	if a.olderSessions > 0 {
		return 0, errFull(fmt.Sprintf("%s has %d processes, the limit while one has an older library: restart that process", id, limit))
	}
	return 0, errFull(fmt.Sprintf("instance %s has %d processes on GPU %s, which is the limit", id, limit, a.GPU))
}

const (
	// paceMessages bounds the messages per pacePeriod of an allocation's processes. Beyond that,
	// the daemon stops reading their connections for a while. The bound is a hundred times the
	// rate of programs that launch as fast as they can.
	pacePeriod   = 100 * time.Millisecond
	paceMessages = 4096
)

// pace counts a message. It returns how long to stop reading the sender's messages.
func (a *allocation) pace(now time.Time) time.Duration {
	if now.Sub(a.period) >= pacePeriod {
		a.period, a.messages = now, 0
	}
	if a.messages++; a.messages < paceMessages {
		return 0
	}
	return a.period.Add(pacePeriod).Sub(now)
}

// A process can also get GPU memory without the preload library: when it stores a model in
// gfaas-modeld, the model daemon allocates the memory. Until the model is committed, this memory
// counts towards the limit of the process's slice. The model daemon opens one request to this
// daemon per store, and the memory counts as long as the request is open. Each store has its own
// slot in the page that the instance's processes share with this daemon (wire.PageSlot). The preload
// library sums the slots, so it counts a store like the memory of another process.

// store is the counted memory of one model that a process of an instance stores.
type store struct {
	alloc *allocation
	slot  int // in the page
	bytes gpu.Bytes
	ended chan struct{} // closed when the allocation ends
}

// stored returns the memory of all stores.
func (a *allocation) stored() (sum gpu.Bytes) {
	for _, s := range a.stores {
		sum += s.bytes
	}
	return sum
}

// maxStores bounds the number of stores of an instance on one GPU.
const maxStores = 256

// addStore starts to count a store. It returns an error if there are too many stores, if no slot is
// free, or if the memory is not allocated yet and would exceed the limit.
func (a *allocation) addStore(r wire.Stored) (*store, error) {
	if len(a.stores) == maxStores {
		return nil, fmt.Errorf("instance %s has %d stores that are not committed, which is the limit", a.inst.reg.Instance, maxStores)
	}
	slot, err := a.freeSlot(false)
	if err == nil {
		err = a.openSlot(slot)
	}
	if err != nil {
		return nil, err
	}
	inUse := a.page.memoryInUse()
	exceeded := fmt.Errorf("out of memory: the store needs %v, and instance %s uses %v of its %v",
		r.Bytes, a.inst.reg.Instance, inUse, a.MemLimit)
	limited := a.MemLimit > 0 && !r.Allocated
	if limited && r.Bytes > a.MemLimit-inUse {
		return nil, exceeded
	}
	// First add the memory, then compare the sum with the limit, as the preload library does
	// (hook/limit.c). So two concurrent allocations cannot both use the same free memory.
	atomic.StoreUint32(&a.page.slot(slot).PID, uint32(r.PID))
	atomic.StoreUint64(&a.page.slot(slot).MemUsed, uint64(r.Bytes))
	if limited && a.page.memoryInUse() > a.MemLimit {
		a.page.clear(slot)
		return nil, exceeded
	}
	if a.stores == nil {
		a.stores = map[int]*store{}
	}
	s := &store{alloc: a, slot: slot, bytes: r.Bytes, ended: make(chan struct{})}
	a.stores[slot], a.next = s, slot+1
	return s, nil
}

// end stops counting the store.
func (s *store) end() {
	if s.alloc.stores[s.slot] == s {
		delete(s.alloc.stores, s.slot)
		s.alloc.page.clear(s.slot)
	}
}

// endStores ends all stores when the allocation ends.
func (a *allocation) endStores() {
	for _, s := range a.stores {
		close(s.ended)
	}
	a.stores = nil
}
