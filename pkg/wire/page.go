package wire

// The instance page is a memory file that the daemon and all processes of an instance map. Its
// header fills one memory page; the slots follow, one for each process. A slot spans two cache
// lines: the daemon writes the first, the process the second.
//
// All libraries of this version support PageSlots slots. Those that send HelloManySlots support
// PageSlotsMost.
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
// A process measures the length of a lease with its own clock, from the time at which it saw the
// gate open or Renewals change. An absolute end would be wrong in a container with its own time
// namespace. It would also have to be written into each slot, next to the gate that every launch
// reads.
type PageHeader struct {
	Magic    uint32
	NSlots   uint32 // PageSlots, which older libraries require
	MemLimit uint64 // bytes for all slots together; 0: no limit
	Flags    uint32 // PageMetered, PageEndings, PageFaults, PagePIDs
	Renewals uint32 // a counter; each change renews the leases of all slots
	LeaseNS  uint64 // a lease expires this long after its grant or last renewal; 0: never
	Used     uint32 // number of leading slots that may be in use; 0: page of an older daemon, with PageSlots
	Reserved uint32
}

// PageMetered in PageHeader.Flags: a process may launch only while it has launched fewer blocks than
// its slot's Budget.
const PageMetered uint32 = 1 << 0

// PageEndings in PageHeader.Flags: the daemon accepts Ending.
const PageEndings uint32 = 1 << 1

// PageFaults in PageHeader.Flags: the daemon accepts Fault.
const PageFaults uint32 = 1 << 2

// PagePIDs in PageHeader.Flags: the daemon writes PageSlot.PID.
const PagePIDs uint32 = 1 << 3

// PageSlot is one process's part of the instance page. A slot can also represent a model that a
// process stores in gfaas-modeld. Such a slot has no connection; the daemon writes MemUsed and, in
// PID, the storing process.
type PageSlot struct {
	Gate       uint32 // futex: 0 if closed, otherwise the number of the current lease
	Refill     uint32 // futex: counts the changes of Budget
	Budget     uint64 // number of blocks, counted from the connection, that the process may launch (PageMetered)
	TurnNS     uint64 // length of the lease's turn, after which the daemon revokes it for another client; 0: no other client
	MemForeign uint64 // bytes in addition to MemUsed that count towards the limit: the driver's own, for contexts
	LeadNS     uint64 // how long before the end of its work in flight the process sends Ending (PageEndings)
	PID        uint32 // of the process, in the daemon's PID namespace; 0: not visible there, or no PagePIDs
	Reserved   uint32
	HoldNS     uint64 // how long the process keeps its lease while it is idle, before it returns it to other clients; 0: the library's default
	Pad        [8]byte
	MemUsed    uint64 // bytes allocated; written by the process
	Launches   uint64 // number of launches; written by the process
	BlockedNS  uint64 // time spent at a closed gate; written by the process
	Blocks     uint64 // kernel blocks launched since the connection; written by the process
	MemParked  uint64 // bytes of MemUsed parked on the host since the last work; written by the process
	// MemImported is memory of other processes that the process has mapped (a model's weights), in
	// bytes. It is not part of MemUsed and does not count towards the limit. Written by the process.
	MemImported uint64
	// MemRefused counts allocations and contexts that the driver refused because the GPU had too
	// little memory. It excludes requests beyond MemLimit. Written by the process.
	MemRefused uint64
	// UnleasedNS is the GPU time of work that ran without a lease, because an event that it waited
	// for occurred only after the lease was returned. Written by the process.
	UnleasedNS uint64
}
