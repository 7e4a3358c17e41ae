package wire

// The instance page is a memory file that all processes of an instance and
// the daemon map. Its header fills one memory page; after it comes one slot a
// process. Each slot spans two cache lines: the daemon writes the first, the
// process the second.
//
// Every library of this version knows the first PageSlots slots. One that says
// HelloManySlots knows PageSlotsMost.
const (
	PageSlots       = 64
	PageSlotsMost   = 1024
	PageSlotsOffset = 4096
	PageSlotSize    = 128
	PageSize        = PageSlotsOffset + PageSlots*PageSlotSize
	PageSizeMost    = PageSlotsOffset + PageSlotsMost*PageSlotSize
)

// PageHeader is at offset 0 of the instance page.
//
// A process takes the time of a lease by its own clock, from when it saw the
// gate open or Renewals change. An end by the daemon's clock would mean another
// time in a container with a time namespace of its own, and would have to be
// written into each slot, beside the gate that every launch looks at.
type PageHeader struct {
	Magic    uint32
	NSlots   uint32 // PageSlots, which older libraries insist on
	MemLimit uint64 // bytes for all slots together; 0 is no limit
	Flags    uint32 // PageMetered, PageEndings, PageFaults, PagePIDs
	Renewals uint32 // counts; each renews the leases of all slots
	LeaseNS  uint64 // a lease ends by itself when so long after its grant or the last renewal there was none; 0 is never
	Used     uint32 // slots from the first on that may have a process; 0: the page is an older daemon's, and has PageSlots
	Reserved uint32
}

// PageMetered in PageHeader.Flags says that a process may launch only while
// the blocks it has launched are fewer than its slot's budget.
const PageMetered uint32 = 1 << 0

// PageEndings in PageHeader.Flags says that the daemon wants to be told by Ending how
// long a lease that it has asked back goes on.
const PageEndings uint32 = 1 << 1

// PageFaults in PageHeader.Flags says that the daemon accepts Fault.
const PageFaults uint32 = 1 << 2

// PagePIDs in PageHeader.Flags says that the daemon writes PageSlot.PID.
const PagePIDs uint32 = 1 << 3

// PageSlot is one process's part of the instance page. A slot can also stand for a
// model that a process stores in gfaas-modeld: it then has no process, and the daemon
// writes MemUsed and, in PID, the process that stores.
type PageSlot struct {
	Gate       uint32 // futex: 0 is closed, else the number of the lease that is held
	Refill     uint32 // futex: counts the changes of Budget
	Budget     uint64 // blocks the process may have launched since it connected (PageMetered)
	TurnNS     uint64 // of the lease: after so long it is asked back where others wait; 0: nobody else is there who would
	MemForeign uint64 // bytes beyond MemUsed that count towards the limit: the driver's own, for contexts
	LeadNS     uint64 // of the lease: so long before what is in flight is over Ending says so (PageEndings)
	PID        uint32 // of the process, as the daemon sees it; 0: it does not see it, or without PagePIDs
	Reserved   uint32
	Pad        [16]byte
	MemUsed    uint64 // bytes; written by the process
	Launches   uint64 // written by the process
	BlockedNS  uint64 // time spent at a closed gate; written by the process
	Blocks     uint64 // kernel blocks launched since it connected; written by the process
	MemParked  uint64 // bytes of MemUsed that the driver has moved to the host since the last work; written by the process
	// Bytes of other processes' memory that the process has mapped (a model's
	// weights): not in MemUsed, and not counted towards the limit; written by the process.
	MemImported uint64
	// Allocations and contexts that the driver refused to the process because the GPU
	// had too little memory. What would exceed MemLimit is not among them; written by
	// the process.
	MemRefused uint64
	// GPU time in ns of work that ran without a lease, as what it had waited for came only
	// after the lease had been given back; written by the process.
	UnleasedNS uint64
}
