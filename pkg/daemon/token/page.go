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
	"github.com/gfaas/gfaas/pkg/wire"
)

// page is an instance page, mapped here and in the instance's processes.
type page struct {
	file *os.File
	mem  []byte
}

// newPage makes a page whose size nobody can change: a process that cut it
// short would kill the daemon with SIGBUS.
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

func (p *page) setLimit(limit gpu.Bytes) {
	header := (*wire.PageHeader)(unsafe.Pointer(&p.mem[0]))
	atomic.StoreUint64(&header.MemLimit, uint64(limit))
}

// use says that the slots before that one may have processes. It is called before the
// process of the last of them has the page: then each process sees the other's memory.
func (p *page) use(slots int) {
	header := (*wire.PageHeader)(unsafe.Pointer(&p.mem[0]))
	if used := uint32(slots); used > atomic.LoadUint32(&header.Used) {
		atomic.StoreUint32(&header.Used, used)
	}
}

// slot is a process's part of the page. Go's layout of PageSlot is C's.
func (p *page) slot(n int) *wire.PageSlot {
	return (*wire.PageSlot)(unsafe.Pointer(&p.mem[wire.PageSlotsOffset+n*wire.PageSlotSize]))
}

// setGate opens the gate with a lease and wakes who sleeps there, or closes it
// with 0: then nobody does.
func (p *page) setGate(n int, lease uint32) {
	gate := &p.slot(n).Gate
	if atomic.SwapUint32(gate, lease) == lease || lease == 0 {
		return
	}
	// FUTEX_WAKE without FUTEX_PRIVATE_FLAG: the sleepers are other processes.
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(gate)), futexWake, math.MaxInt32, 0, 0, 0)
}

// setTurn says of the lease that comes next how long it goes on while others wait, and
// how long before its end that is to be said.
func (p *page) setTurn(n int, turn, lead time.Duration) {
	atomic.StoreUint64(&p.slot(n).TurnNS, uint64(turn))
	atomic.StoreUint64(&p.slot(n).LeadNS, uint64(lead))
}

// clear closes the gate and takes what the process wrote out of the sums.
func (p *page) clear(n int) {
	p.setGate(n, 0)
	s := p.slot(n)
	atomic.StoreUint64(&s.MemUsed, 0)
	atomic.StoreUint64(&s.MemParked, 0)
	atomic.StoreUint64(&s.MemImported, 0)
	atomic.StoreUint64(&s.MemRefused, 0)
	atomic.StoreUint64(&s.MemForeign, 0)
	atomic.StoreUint64(&s.Launches, 0)
	atomic.StoreUint64(&s.BlockedNS, 0)
	atomic.StoreUint64(&s.Blocks, 0)
	atomic.StoreUint64(&s.UnleasedNS, 0)
	atomic.StoreUint64(&s.Budget, 0)
	atomic.StoreUint32(&s.PID, 0)
}

// held returns the memory that counts towards the limit, as the preload library sums it.
func (p *page) held() (sum gpu.Bytes) {
	header := (*wire.PageHeader)(unsafe.Pointer(&p.mem[0]))
	for n := range int(atomic.LoadUint32(&header.Used)) {
		s := p.slot(n)
		for _, bytes := range []uint64{atomic.LoadUint64(&s.MemUsed), atomic.LoadUint64(&s.MemForeign)} {
			sum = min(sum+gpu.Bytes(min(bytes, mostBytes)), mostBytes)
		}
	}
	return sum
}

// mostBytes bounds sums of what processes write into their slots.
const mostBytes = 1 << 62

// counters is what a process wrote into its slot.
type counters struct{ memUsed, memParked, memImported, memRefused, launches, blockedNS, blocks uint64 }

func (p *page) counters(n int) counters {
	s := p.slot(n)
	return counters{
		atomic.LoadUint64(&s.MemUsed), atomic.LoadUint64(&s.MemParked), atomic.LoadUint64(&s.MemImported), atomic.LoadUint64(&s.MemRefused),
		atomic.LoadUint64(&s.Launches), atomic.LoadUint64(&s.BlockedNS), atomic.LoadUint64(&s.Blocks),
	}
}

// rules says in the page what holds for its processes (wire.PageMetered and so on).
// It is called before anybody else has the page.
func (p *page) rules(flags uint32) {
	header := (*wire.PageHeader)(unsafe.Pointer(&p.mem[0]))
	atomic.StoreUint32(&header.Flags, flags)
}

// setBudget says how many blocks a process may have launched, and wakes who
// waits for that.
func (p *page) setBudget(n int, blocks uint64) {
	s := p.slot(n)
	before := atomic.SwapUint64(&s.Budget, blocks)
	atomic.AddUint32(&s.Refill, 1)
	if atomic.LoadUint64(&s.Blocks) < before {
		return // it had some left: nobody waits
	}
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.Refill)), futexWake, math.MaxInt32, 0, 0, 0)
}
