// Package residency models what is on GPUs: containers that are cold,
// host-warm or gpu-warm in a bounded pool and bounded memory
// (MQFQ-Sticky, sections 4.2 and 4.3), and caches of models (LALB, section
// III-D). It decides what to evict; it does no I/O.
//
// Rules R4 to R10 are those of docs/simulation.md: in short, a
// container belongs to one function and one GPU and runs one invocation at a
// time; one whose memory went to the host needs it back before it runs.
package residency

import "time"

// Start says what an invocation finds.
type Start uint8

// The kinds of start, the cheapest last.
const (
	Cold     Start = iota // no container: one is made
	HostWarm              // a container whose memory is on the host
	GPUWarm               // a container whose memory is on the GPU
)

func (s Start) String() string { return [...]string{"cold", "host-warm", "gpu-warm"}[s] }

// Function is what the model needs to know of a function.
type Function struct {
	Duration [3]time.Duration // expected, by Start
	Mem      int64            // bytes on the GPU
}

// Unlimited as a limit on containers means that there is none.
const Unlimited = -1

// Config is the shape of the machine.
type Config struct {
	GPUs     int
	Slots    int   // invocations that a GPU runs at once (D)
	Pool     int   // containers that exist on a GPU, running ones included, or Unlimited
	Mem      int64 // bytes of memory of a GPU; 0 is no limit
	Function []Function
	// Clears says that Clear will be called: idle containers are to be found
	// even where there is no limit on them.
	Clears bool
	// Worth is what it costs to do without a container, whose next start would
	// take so much longer; what costs least, by the memory it frees, goes first.
	// Nil when Keep and the time of the last completion decide.
	Worth func(function int32, extra time.Duration) float64
	// Keep holds for functions whose containers go last; nil when all go in
	// the same order, least recently finished first (R8).
	Keep func(function int32) bool
}

// Change is something that left a GPU to make room.
type Change struct {
	Removed   bool // the container is gone; otherwise its memory went to the host
	GPU       int32
	Function  int32
	Container int32
}

const none = int32(-1)

// container is one container. While idle it is in three lists: of its
// function's on its GPU, of its GPU's, and, if its memory is there, of its
// GPU's with memory.
type container struct {
	function, gpu int32
	mem           int64
	resident      bool
	ready         time.Duration // when memory that was prefetched is there
	mine          link
	idle          link
	warm          link
}

type link struct{ prev, next int32 }

type list struct{ head, tail int32 }

type device struct {
	running    int32
	exist      int32
	slots      int32
	memRunning int64
	memUsed    int64 // of running and idle containers whose memory is here
	idle       list  // least recently finished first
	warm       list  // those of idle whose memory is here and not nothing
}

// Pool is the containers on a machine's GPUs.
type Pool struct {
	config     Config
	gpus       []device
	containers []container
	freed      []int32
	// mine is, by function and GPU, the idle container finished last. Memory
	// goes to the host least recently finished first, so that this container's
	// is on the GPU if that of any is: it is the one to use (R9). A function
	// that has had none has no row; rows are in one arena.
	mine    []int32
	row     []int32 // by function: where its row ends in mine; 0 for none
	free    int     // slots free on all GPUs
	changes []Change
	ties    []int32 // scratch
}

// New is a pool without containers.
func New(c Config) *Pool {
	p := &Pool{config: c, gpus: make([]device, c.GPUs), row: make([]int32, len(c.Function)), free: c.GPUs * c.Slots}
	for i := range p.gpus {
		p.gpus[i] = device{slots: int32(c.Slots), idle: list{none, none}, warm: list{none, none}}
	}
	return p
}

// Free is how many slots are free on all GPUs.
func (p *Pool) Free() int { return p.free }

// FreeOn is how many slots are free on one GPU.
func (p *Pool) FreeOn(gpu int32) int { return int(p.gpus[gpu].slots - p.gpus[gpu].running) }

// Duration is how long an invocation should take with that start.
func (p *Pool) Duration(function int32, start Start) time.Duration {
	return p.config.Function[function].Duration[start]
}

// Fits says whether any GPU can ever hold the function.
func (p *Pool) Fits(function int32) bool {
	return p.config.Mem == 0 || p.config.Function[function].Mem <= p.config.Mem
}

// room says whether the function could start on that GPU now: a slot is free
// and it fits beside what runs there.
func (p *Pool) room(gpu, function int32) bool {
	d := &p.gpus[gpu]
	return d.running < d.slots && (p.config.Mem == 0 || d.memRunning+p.config.Function[function].Mem <= p.config.Mem)
}

// SetSlots changes how many invocations a GPU may run at once. What runs
// beyond that goes on.
func (p *Pool) SetSlots(gpu int32, slots int) {
	d := &p.gpus[gpu]
	p.free -= int(max(d.slots-d.running, 0))
	d.slots = int32(slots)
	p.free += int(max(d.slots-d.running, 0))
}

// Changes are the changes since they were asked for last. They hold until the
// next call of the pool.
func (p *Pool) Changes() []Change {
	changes := p.changes
	p.changes = p.changes[:0]
	return changes
}
