// Package residency owns the instances: which there are, on which GPU, with
// their memory there or on the host, in a bounded pool and bounded memory
// (MQFQ-Sticky, sections 4.2 and 4.3; LALB, section III-D). It decides where an
// invocation runs best and what makes room for it; it does no I/O.
//
// Rules R4 to R10 are those of docs/simulation.md: in short, an instance
// (there: a container) belongs to one function and one GPU; one whose memory
// went to the host needs it back before it runs.
package residency

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Start says what an invocation finds.
type Start uint8

// The kinds of start, the cheapest last.
const (
	Cold     Start = iota // no instance: one is made
	HostWarm              // an instance whose memory is on the host
	GPUWarm               // an instance whose memory is on the GPU
)

func (s Start) String() string { return [...]string{"cold", "host-warm", "gpu-warm"}[s] }

// Function is what is to be known of a function.
type Function struct {
	Duration [3]time.Duration // expected, by Start
	Mem      int64            // bytes on the GPU
	// Need is the number of bytes that an instance was measured to take, with what it
	// does not allocate itself, such as contexts. A value below Mem means Mem.
	Need     int64
	Inflight int // invocations that an instance runs at once; 0 is 1
	// Slice is the share of a GPU that an instance takes while it runs, SM share
	// times quota, above 0 to 1; 0 is one slot of the GPU's.
	Slice float64
	// Min instances are kept, Max there may be; 0 is no limit.
	Min, Max int
	// Idle is after how long an idle instance beyond Min stops; 0 is never.
	Idle time.Duration
}

// Unlimited as a limit on instances means that there is none.
const Unlimited = -1

// Config says how a pool behaves.
type Config struct {
	Pool int // instances that exist on a GPU, running ones included, or Unlimited
	// Clears says that Clear will be called: idle instances are listed even where
	// there is no limit on them.
	Clears bool
	// NoHost says that memory does not go to the host: the instance goes.
	NoHost bool
	// May says whether an instance of a function may be started on a GPU without an
	// invocation; nil is that all may.
	May func(function, gpu int32) bool
	// Starting, unless nil, is called when the first start of an instance of a
	// function begins, and when none is in progress any more.
	Starting func(function int32, inProgress bool)
	// Worth is what it costs to do without an instance, whose next start would
	// take so much longer; what costs least, by the memory it frees, goes first.
	// Nil when Keep and the time of the last completion decide.
	Worth func(function int32, extra time.Duration) float64
	// Keep holds for functions whose instances go last; nil when all go in the
	// same order, least recently finished first (R8).
	Keep func(function int32) bool
}

// ID names an instance for as long as there may be talk of it: it is not used
// again. Those that a pool makes are 0 or more; those that were found running
// are given theirs by who found them, below None.
type ID int64

// None is no instance.
const None ID = -1

// Verb is what happens to an instance.
type Verb uint8

// The changes there are.
const (
	Removed   Verb = iota // to be stopped
	Offloaded             // its memory goes to the host
	Started               // to be started without an invocation
	Placed                // there is room now for what was to begin on it
	Bumped                // what was to begin on it has to be placed anew
	Cancelled             // its start is to be cancelled, and what was to run on it has to be placed anew
)

// Change is something that happens to an instance.
type Change struct {
	Verb     Verb
	GPU      int32
	Function int32
	Instance ID
	Slot     int32 // where the instance is, as Begin tells it
}

const none = int32(-1)

// instance is one instance. While idle it is in three lists: of its function's
// on its GPU, of its GPU's, and, if its memory is there, of its GPU's with
// memory. It is a cache line.
type instance struct {
	function, gpu int32
	mem           int64
	finished      int64 // the later, the larger
	use           int32 // how often the slot was used before
	run           int32 // what runs on it, as Begin was told
	calls         int16
	stage         stage
	resident      bool
	adopted       bool
	pinned        bool // it is neither stopped nor moved, and in no list
	stale         bool // it is of an old version of its function; counts do not include it
	sliced        bool // it takes another part of the GPU's capacity than a slot
	mine          link
	idle          link
	warm          link
}

// more is what of an instance few look at.
type more struct {
	need  int32         // of the GPU's capacity, while it runs, if it is sliced
	idle  time.Duration // since when
	ready time.Duration // when memory that was prefetched is there
	stuck bool          // its memory did not move when it should have
	least int64         // bytes that it counts for at least: those that it was promised
	stays int64         // bytes beside its mem that stay on the GPU while mem is on the host
}

// stage is where an instance is in its life.
type stage uint8

const (
	vacant     stage = iota // no instance
	ready                   // in lists, unless it runs
	waits                   // it is to begin when there is room
	starting                // starts without an invocation
	launching               // starts with invocations that will run on it
	offloads                // its memory is on its way to the host
	prefetches              // its memory is on its way back; else as idle
	stops                   // is being stopped
	lost                    // gone, but not yet what ran on it
)

type link struct{ prev, next int32 }

type list struct{ head, tail int32 }

// unit is a slot in the measure of a GPU's capacity.
const unit = 1 << 12

type device struct {
	open       bool
	running    int32 // instances
	exist      int32
	slots      int32 // as it was set
	capacity   int32 // for instances that run, in units
	taken      int32 // of the capacity
	mem        int64 // bytes; 0 is no limit
	memRunning int64 // of what runs, or cannot be moved for another reason
	memUsed    int64 // of all whose memory is here, or will be when there is room, and what stays of the others
	occupied   int64 // by what is no instance here: in both of them
	pinned     int64 // of pinned instances: in both of them
	leaving    int64 // of what is on its way out and still here
	queued     int64 // of what waits for room
	queue      []int32
	idle       list // least recently finished first
	warm       list // those of idle whose memory is here and not nothing
}

// count is how many instances of a function there are.
type count struct {
	all, starting int32 // starting and idle ones count in all, stale ones do not
	starts        int32 // starts in progress, with invocations or without
	held          int32 // places in the table, those on their way out too
	gone          bool
	barred        bool  // no instance is to be started
	pending       int32 // pinned ones that are starting, which all and starting include
	floor         int64 // bytes that an instance needs at least: with less, its last start failed
}

// costs is what of a function every dispatch looks at.
type costs struct {
	duration [3]time.Duration
	mem      int64
	need     int64 // bytes that a new instance counts for, at least mem; see Pool.need
	slice    float64
	max      int32
	row      int32 // where its row ends in Pool.mine; 0 for none
	guarded  bool  // see Pool.guard
}

// Pool is the instances on a machine's GPUs. Functions and GPUs are numbers
// from 0.
type Pool struct {
	config    Config
	gpus      []device
	costs     []costs    // by function
	functions []Function // the same and the rest
	counts    []count    // by function
	instances []instance
	more      []more // by slot
	freed     []int32
	adopted   map[ID]int32
	names     map[int32]ID // of adopted ones
	// mine is, by function and GPU, the idle instance finished last. Memory
	// goes to the host least recently finished first, so that this instance's
	// is on the GPU if that of any is: it is the one to use (R9). A function
	// that has had none has no row; rows are in one arena.
	mine     []int32
	largest  int64 // memory of the largest open GPU; 0 is no limit
	parts    bool  // a GPU or a function has gone, or changed its memory
	varies   bool  // instances may count for other bytes than their functions ask for
	free     int64 // capacity left on all GPUs
	finishes int64
	expires  bool          // some function's idle instances stop after a time
	expiry   time.Duration // no idle instance is to stop before
	changes  []Change
	told     []Change // what Changes gave last
	ties     []int32  // scratch
}

// New is a pool without GPUs, functions and instances.
func New(c Config) *Pool {
	return &Pool{config: c, adopted: map[ID]int32{}, names: map[int32]ID{}, expiry: never}
}

const never = time.Duration(math.MaxInt64)

// SetFunction makes a function known, or changes it. Instances with another size
// of memory than it has now stop when they have nothing to do.
func (p *Pool) SetFunction(function int32, f Function) {
	for int(function) >= len(p.functions) {
		p.functions = append(p.functions, Function{})
		p.counts = append(p.counts, count{})
		p.costs = append(p.costs, costs{})
	}
	renew := p.functions[function].Mem != f.Mem && p.counts[function].held > 0
	p.functions[function] = f
	p.counts[function].gone = false
	need := max(f.Mem, f.Need, p.counts[function].floor)
	p.varies = p.varies || need > f.Mem
	p.costs[function] = costs{duration: f.Duration, mem: f.Mem, need: need, slice: f.Slice, max: int32(f.Max), row: p.costs[function].row}
	p.guard(function)
	if f.Idle > 0 {
		p.expiry, p.expires = 0, true
	}
	if renew {
		p.Renew(function)
	}
}

// Renew has the instances that a function has now stop when they have nothing to
// do, and cancels their starts. What they run does not count for the function's
// least and largest number of instances.
func (p *Pool) Renew(function int32) {
	p.parts = true
	p.counts[function].floor = 0
	for i := range p.instances {
		it := &p.instances[i]
		if it.function != function || it.pinned || it.stage == vacant || it.stage == stops || it.stage == lost {
			continue
		}
		if !it.stale {
			it.stale = true
			p.counts[function].all--
		}
		if it.idles() {
			p.remove(int32(i))
		}
	}
	p.CancelStarts(function)
}

// CancelStarts cancels all starts of a function's instances, and those that wait for
// room.
func (p *Pool) CancelStarts(function int32) {
	for i := range p.instances {
		if p.instances[i].function == function {
			p.cancelStart(int32(i))
		}
	}
	p.bumpHeld(func(it *instance) bool { return it.function == function })
}

// cancelStart cancels the start of the instance in a slot, if it is starting. Its memory
// is taken until Lost says that it is gone.
func (p *Pool) cancelStart(c int32) {
	it := &p.instances[c]
	d := &p.gpus[it.gpu]
	switch {
	case it.pinned: // it is not ours to stop
		return
	case it.stage == starting:
		p.begun(it)
	case it.stage == launching:
		p.starts(it.function, -1)
		d.running--
		p.take(d, -p.needed(c))
		it.calls = 0
	default:
		return
	}
	d.memRunning -= it.mem + p.more[c].stays
	p.depart(c, Cancelled)
}

// bumpHeld has what waits for room on some instances be placed anew.
func (p *Pool) bumpHeld(which func(*instance) bool) {
	for g := range p.gpus {
		bumped := false
		for i := len(p.gpus[g].queue) - 1; i >= 0; i-- {
			if c := p.gpus[g].queue[i]; which(&p.instances[c]) {
				p.change(Bumped, c)
				p.undo(c)
				bumped = true
			}
		}
		if bumped {
			p.settle(int32(g))
		}
	}
}

// Bar says whether no instance of a function is to be started.
func (p *Pool) Bar(function int32, barred bool) {
	p.counts[function].barred = barred
	p.guard(function)
}

// guard notes whether a function's counts may keep an instance of it from being started,
// or an invocation from starting one. Of most functions nothing does, and their counts
// need not be looked at.
func (p *Pool) guard(function int32) {
	n, f := &p.counts[function], &p.costs[function]
	f.guarded = f.max > 0 || n.barred || n.pending > 0 || n.starting > 0
}

// BumpStarts has invocations of a function that wait for room to start an instance be
// placed anew.
func (p *Pool) BumpStarts(function int32) {
	p.bumpHeld(func(it *instance) bool { return it.function == function && it.unstarted() })
}

// starts counts a start of a function that begins or has ended.
func (p *Pool) starts(function, by int32) {
	n := &p.counts[function]
	before := n.starts
	n.starts += by
	if p.config.Starting != nil && (before == 0) != (n.starts == 0) {
		p.config.Starting(function, n.starts > 0)
	}
}

// Starting reports whether an instance of a function starts, or is to as soon as there is
// room for it.
func (p *Pool) Starting(function int32) bool {
	if p.counts[function].starts > 0 {
		return true
	}
	for i := range p.instances {
		if it := &p.instances[i]; it.function == function && it.stage == waits && it.unstarted() {
			return true
		}
	}
	return false
}

// Serves reports whether a function has an instance on a GPU that takes further
// invocations, busy or not.
func (p *Pool) Serves(function, gpu int32) bool {
	if !p.parts {
		return true // whatever is there does
	}
	for i := range p.instances {
		it := &p.instances[i]
		if it.function == function && it.gpu == gpu && it.stage != vacant && it.stage != stops && it.stage != lost && !p.obsolete(it) {
			return true
		}
	}
	return false
}

// Usable reports whether a function has an instance that has started and takes
// invocations, busy or not.
func (p *Pool) Usable(function int32) bool {
	for i := range p.instances {
		it := &p.instances[i]
		if it.function != function || p.obsolete(it) {
			continue
		}
		switch it.stage {
		case ready, offloads, prefetches:
			return true
		case waits:
			if !it.unstarted() {
				return true
			}
		default:
		}
	}
	return false
}

// obsolete says whether an instance is to stop when it has nothing to do.
func (p *Pool) obsolete(it *instance) bool {
	d := &p.gpus[it.gpu]
	out := !it.resident && d.mem > 0 && p.costs[it.function].mem > d.mem-d.occupied-d.pinned // it cannot come back
	return it.stale || !d.open || out || p.counts[it.function].gone
}

// Obsolete reports whether the instance in a slot is to stop when it has nothing to do.
func (p *Pool) Obsolete(slot int32) bool { return p.parts && p.obsolete(&p.instances[slot]) }

// Retire has all instances of a function stop when they have nothing to do, and
// cancels their starts.
func (p *Pool) Retire(function int32) {
	p.parts = true
	p.counts[function].gone = true
	for g := range p.idle(function) {
		for c := p.idle(function)[g]; c != none; c = p.idle(function)[g] {
			p.remove(c)
		}
	}
	for i := range p.instances {
		if it := &p.instances[i]; it.function == function && it.rests() {
			p.remove(int32(i))
		}
	}
	p.CancelStarts(function)
}

// Forgotten says whether nothing of a retired function is left.
func (p *Pool) Forgotten(function int32) bool { return p.counts[function].held == 0 }

// SetGPU opens a GPU that runs that many invocations at once, with so many bytes
// of memory; 0 is no limit.
func (p *Pool) SetGPU(gpu int32, slots int, mem int64) {
	for int(gpu) >= len(p.gpus) {
		p.gpus = append(p.gpus, device{idle: list{none, none}, warm: list{none, none}})
		p.widen()
	}
	d := &p.gpus[gpu]
	d.open, d.slots = true, int32(slots)
	p.SetSlots(gpu, slots)
	p.SetMem(gpu, mem)
}

// SetMem changes how many bytes of memory a GPU has for instances; 0 is no limit.
func (p *Pool) SetMem(gpu int32, mem int64) {
	d := &p.gpus[gpu]
	for i := range p.instances {
		if it := &p.instances[i]; it.gpu == gpu && it.idles() {
			p.unlink(int32(i)) // which lists it is in depends on what memory there is
		}
	}
	d.mem = mem
	for i := range p.instances {
		if it := &p.instances[i]; it.gpu == gpu && it.idles() {
			p.relink(int32(i))
		}
	}
	p.dropObsolete(gpu)
	p.measure()
	p.settle(gpu)
}

// dropObsolete removes idle instances of a GPU that became obsolete because less of its
// memory can ever be free, least recently finished first.
func (p *Pool) dropObsolete(gpu int32) {
	var obsolete []int32
	for i := range p.instances {
		if it := &p.instances[i]; it.gpu == gpu && it.idles() && p.obsolete(it) {
			obsolete = append(obsolete, int32(i))
		}
	}
	slices.SortFunc(obsolete, func(a, b int32) int { return cmp.Compare(p.instances[a].finished, p.instances[b].finished) })
	for _, c := range obsolete {
		p.remove(c)
	}
}

// widen gives each row a place for one more GPU.
func (p *Pool) widen() {
	n := len(p.gpus)
	old := p.mine
	p.mine = nil
	for f := range p.costs {
		end := p.costs[f].row
		if end == 0 {
			continue
		}
		p.mine = append(append(p.mine, old[int(end)-(n-1):end]...), none)
		p.costs[f].row = int32(len(p.mine))
	}
}

// CloseGPU takes a GPU out of use: its idle instances stop at once, others when
// they have nothing to do.
func (p *Pool) CloseGPU(gpu int32) {
	p.parts = true
	d := &p.gpus[gpu]
	p.SetSlots(gpu, 0)
	d.open = false
	p.measure()
	for i := range p.instances {
		if it := &p.instances[i]; it.gpu == gpu && (it.idles() || it.rests()) {
			p.remove(int32(i))
		}
	}
}

// Occupy says how many bytes of a GPU's memory are taken in all by what is no instance
// on it: an instance that spans several GPUs is one on the first of them. They are taken
// as what runs takes them.
func (p *Pool) Occupy(gpu int32, mem int64) {
	d := &p.gpus[gpu]
	more := mem - d.occupied
	d.occupied += more
	d.memRunning += more
	d.memUsed += more
	p.dropObsolete(gpu)
	p.settle(gpu)
}

// measure notes the memory of the largest GPU.
func (p *Pool) measure() {
	p.largest = -1
	for i := range p.gpus {
		switch d := &p.gpus[i]; {
		case d.open && d.mem == 0:
			p.largest = 0
			return
		case d.open:
			p.largest = max(p.largest, d.mem)
		}
	}
	p.largest = max(p.largest, 0) // without a GPU, wait for one
}

// Fits says whether any GPU can ever hold the function.
func (p *Pool) Fits(function int32) bool {
	return p.largest == 0 || p.costs[function].mem <= p.largest
}

// AnyFree says whether any GPU could run more.
func (p *Pool) AnyFree() bool { return p.free > 0 }

// Free says whether a GPU could run more.
func (p *Pool) Free(gpu int32) bool { return p.gpus[gpu].taken < p.gpus[gpu].capacity }

// GPUs is how many there have been.
func (p *Pool) GPUs() int { return len(p.gpus) }

// needs is the part of a GPU's capacity that an instance of the function takes.
func (p *Pool) needs(d *device, f *costs) int32 {
	if f.slice > 0 {
		return max(int32(math.Round(f.slice*float64(d.slots*unit))), 1)
	}
	return unit
}

// needed is what of a GPU's capacity an instance that runs takes.
func (p *Pool) needed(slot int32) int32 {
	if p.instances[slot].sliced {
		return p.more[slot].need
	}
	return unit
}

// Room says whether the function could start on that GPU now: it has capacity
// and memory beside what runs there.
func (p *Pool) Room(gpu, function int32) bool {
	return p.room(gpu, &p.costs[function])
}

// room is Room of a function that was looked up.
func (p *Pool) room(gpu int32, f *costs) bool {
	d := &p.gpus[gpu]
	if d.taken+p.needs(d, f) > d.capacity {
		return false
	}
	if d.mem == 0 {
		return true
	}
	mem := p.need(d, f)
	if p.varies && f.row != 0 {
		if c := p.mine[int(f.row)-len(p.gpus)+int(gpu)]; c != none {
			if p.instances[c].resident {
				return true // it takes no more than it has
			}
			mem = p.claim(d, c) + p.more[c].stays
		}
	}
	return d.memRunning+mem <= d.mem
}

// need returns the bytes of a GPU that a new instance of a function counts for.
func (p *Pool) need(d *device, f *costs) int64 { return d.bound(f.need, f.mem) }

// claim returns the bytes that an instance whose memory is on the host counts for once
// it is back.
func (p *Pool) claim(d *device, c int32) int64 {
	return d.bound(p.instances[c].mem, p.more[c].least)
}

// bound returns how many of the measured bytes count on a GPU. Where so many can never
// be free, these are as many as can be, but no fewer than least. Example: an instance
// that took 12 GiB before, and asks for none, counts for 6 GiB where other programs
// left 6 GiB: it may be content with that.
func (d *device) bound(measured, least int64) int64 {
	if measured == least || d.mem == 0 {
		return measured
	}
	return min(measured, max(least, d.mem-d.occupied-d.pinned))
}

// Holds says whether the function could ever start on that GPU as things are: it has
// memory beside what others have there and what is pinned.
func (p *Pool) Holds(gpu, function int32) bool {
	d := &p.gpus[gpu]
	return d.mem == 0 || d.occupied+d.pinned+p.costs[function].mem <= d.mem
}

// SetSlots changes how many invocations a GPU may run at once. What runs
// beyond that goes on. A share of the GPU is one of the slots that SetGPU gave.
func (p *Pool) SetSlots(gpu int32, slots int) {
	d := &p.gpus[gpu]
	p.free -= int64(max(d.capacity-d.taken, 0))
	d.capacity = int32(slots) * unit
	p.free += int64(max(d.capacity-d.taken, 0))
}

// take changes how much of a GPU's capacity is taken.
func (p *Pool) take(d *device, units int32) {
	p.free -= int64(max(d.capacity-d.taken, 0))
	d.taken += units
	p.free += int64(max(d.capacity-d.taken, 0))
}

// Changed says whether there are changes.
func (p *Pool) Changed() bool { return len(p.changes) > 0 }

// Changes are the changes since they were asked for last. They hold until it
// is called again.
func (p *Pool) Changes() []Change {
	p.changes, p.told = p.told[:0], p.changes
	return p.told
}

func (p *Pool) change(v Verb, c int32) {
	it := &p.instances[c]
	p.changes = append(p.changes, Change{Verb: v, GPU: it.gpu, Function: it.function, Instance: p.Instance(c), Slot: c})
}

// Instance is the name of the instance in a slot.
func (p *Pool) Instance(slot int32) ID {
	it := &p.instances[slot]
	if it.adopted {
		return p.names[slot]
	}
	return ID(it.use)<<31 | ID(slot)
}

// Slot is where an instance is; negative if there is none of that name.
func (p *Pool) Slot(id ID) int32 {
	if id < None {
		if slot, known := p.adopted[id]; known {
			return slot
		}
		return none
	}
	slot := int32(id & math.MaxInt32)
	if id == None || int(slot) >= len(p.instances) {
		return none
	}
	if it := &p.instances[slot]; it.use != int32(id>>31) || it.adopted || it.stage == vacant {
		return none
	}
	return slot
}

// Function is whose the instance in a slot is.
func (p *Pool) Function(slot int32) int32 { return p.instances[slot].function }

// GPU is where the instance in a slot is.
func (p *Pool) GPU(slot int32) int32 { return p.instances[slot].gpu }

// Starts reports whether the start of the instance in a slot is in progress.
func (p *Pool) Starts(slot int32) bool {
	stage := p.instances[slot].stage
	return stage == starting || stage == launching
}

// Stops reports whether the instance in a slot has been told to stop, and runs nothing.
func (p *Pool) Stops(slot int32) bool { return p.instances[slot].stage == stops }

// Dead says whether the instance in a slot is gone, though not yet what ran on it.
func (p *Pool) Dead(slot int32) bool { return p.instances[slot].stage == lost }

// Run is what runs on the instance in a slot, as SetRun said.
func (p *Pool) Run(slot int32) int32 { return p.instances[slot].run }

// SetRun notes what runs on the instance in a slot.
func (p *Pool) SetRun(slot, run int32) { p.instances[slot].run = run }
