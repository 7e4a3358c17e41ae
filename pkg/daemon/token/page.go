package token

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// leaseLength is the time after which a lease ends by itself, so that a daemon that is stopped or
// whose host pauses leaves no gate open. While a lease is in force, the daemon renews all leases
// more often than that. A process whose page shows no renewal for this time closes its gate, drains
// and returns the lease.
const leaseLength = 500 * time.Millisecond

// page is an instance page, which is mapped here and in the instance's processes.
type page struct {
	file *os.File
	mem  []byte
}

// newPage creates a page whose size is sealed. Without the seal, a process could truncate the page
// and thereby kill the daemon with SIGBUS.
func newPage(id string, limit gpu.Bytes) (*page, error) {
	fd, err := unix.MemfdCreate("gfaas-"+id, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("instance page: %w", err)
	}
	p := &page{file: os.NewFile(uintptr(fd), "gfaas-"+id)}
	if err := unix.Ftruncate(fd, wire.PageSizeMost); err != nil {
		return nil, p.fail(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, p.fail(err)
	}
	if p.mem, err = unix.Mmap(fd, 0, wire.PageSizeMost, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, p.fail(err)
	}
	if _, err := binary.Encode(p.mem, binary.LittleEndian, wire.PageHeader{
		Magic: wire.Magic, NSlots: wire.PageSlots, LeaseNS: uint64(leaseLength), Used: wire.PageSlots,
	}); err != nil {
		return nil, p.fail(err)
	}
	p.setLimit(limit)
	return p, nil
}

func (p *page) fail(err error) error {
	p.close()
	return fmt.Errorf("instance page: %w", err)
}

func (p *page) close() {
	if p.mem != nil {
		_ = unix.Munmap(p.mem)
		p.mem = nil
	}
	_ = p.file.Close()
}

// header returns the header of the page. Go's layout of PageHeader equals C's.
func (p *page) header() *wire.PageHeader { return (*wire.PageHeader)(unsafe.Pointer(&p.mem[0])) }

func (p *page) setLimit(limit gpu.Bytes) { atomic.StoreUint64(&p.header().MemLimit, uint64(limit)) }

// renew counts a renewal, by which the page's processes see that their leases continue.
func (p *page) renew() { atomic.AddUint32(&p.header().Renewals, 1) }

// extendTo raises the number of slots in use. The caller calls it before it passes the page to the process
// in the last slot, so that each process counts the memory of the others.
func (p *page) extendTo(slots int) {
	used := &p.header().Used
	atomic.StoreUint32(used, max(atomic.LoadUint32(used), uint32(slots)))
}

// slot returns the slot of a process. Go's layout of PageSlot equals C's.
func (p *page) slot(n int) *wire.PageSlot {
	return (*wire.PageSlot)(unsafe.Pointer(&p.mem[wire.PageSlotsOffset+n*wire.PageSlotSize]))
}

// setGate opens the gate with a lease and wakes the threads that sleep at it. With lease 0 it closes
// the gate, which wakes no thread, because threads sleep only at a closed gate.
func (p *page) setGate(n int, lease uint32) {
	gate := &p.slot(n).Gate
	if atomic.SwapUint32(gate, lease) != lease && lease != 0 {
		wakeAll(gate)
	}
}

// wakeAll wakes the threads of all processes that sleep at a word of the page.
func wakeAll(word *uint32) {
	// FUTEX_WAKE without FUTEX_PRIVATE_FLAG: the sleepers are other processes.
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

// setLease sets the properties of the next lease: how long it lasts while other clients wait (turn),
// how long before the end of its work in flight the process announces that end (lead), and how
// long the process keeps it while it is idle (hold).
func (p *page) setLease(n int, a policy.Grant) {
	s := p.slot(n)
	atomic.StoreUint64(&s.TurnNS, uint64(a.Turn))
	atomic.StoreUint64(&s.LeadNS, uint64(a.Lead))
	atomic.StoreUint64(&s.HoldNS, uint64(a.Hold))
}

// clear closes the gate and resets the slot.
func (p *page) clear(n int) {
	p.setGate(n, 0)
	s := p.slot(n)
	for _, word := range []*uint64{
		&s.MemUsed, &s.MemParked, &s.MemImported, &s.MemRefused, &s.MemForeign,
		&s.Launches, &s.BlockedNS, &s.Blocks, &s.UnleasedNS, &s.Budget,
	} {
		atomic.StoreUint64(word, 0)
	}
	atomic.StoreUint32(&s.PID, 0)
}

// memoryInUse returns the memory that counts towards the limit. The preload library computes the same sum.
func (p *page) memoryInUse() (sum gpu.Bytes) {
	for n := range int(atomic.LoadUint32(&p.header().Used)) {
		s := p.slot(n)
		for _, bytes := range []uint64{atomic.LoadUint64(&s.MemUsed), atomic.LoadUint64(&s.MemForeign)} {
			sum = min(sum+gpu.Bytes(min(bytes, maxBytes)), maxBytes)
		}
	}
	return sum
}

// maxBytes bounds numbers of bytes from slots, which processes can write, so that sums do not
// overflow.
const maxBytes = 1 << 62

// counters holds the values that a process has written into its slot.
type counters struct{ memUsed, memParked, memImported, memRefused, launches, blockedNS, blocks uint64 }

func (p *page) counters(n int) counters {
	s := p.slot(n)
	return counters{
		atomic.LoadUint64(&s.MemUsed), atomic.LoadUint64(&s.MemParked), atomic.LoadUint64(&s.MemImported), atomic.LoadUint64(&s.MemRefused),
		atomic.LoadUint64(&s.Launches), atomic.LoadUint64(&s.BlockedNS), atomic.LoadUint64(&s.Blocks),
	}
}

// setBudget sets how many blocks a process may have launched, and wakes threads that wait for an
// increase.
func (p *page) setBudget(n int, blocks uint64) {
	s := p.slot(n)
	previous := atomic.SwapUint64(&s.Budget, blocks)
	atomic.AddUint32(&s.Refill, 1)
	if atomic.LoadUint64(&s.Blocks) >= previous { // used up, so threads may wait
		wakeAll(&s.Refill)
	}
}
