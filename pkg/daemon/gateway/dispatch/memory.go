package dispatch

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/wire"
)

// A function declares with gpu_mem how much GPU memory it allocates. Its instances use
// more: CUDA contexts, and all allocations of a function without gpu_mem. Other programs
// use the GPUs as well. The ledger therefore collects measurements and sends the policy
// three figures:
//
//   - how much memory each instance uses, and how much of it stays on the GPU while the
//     instance is parked (Measured); and how much a new instance of each function will need
//     (Need): the most that an instance of it has used or, before a measurement, its gpu_mem
//     plus a context;
//   - how much memory of each GPU other programs leave for instances (GPUSet);
//   - how much memory instances that span several GPUs occupy on their further GPUs (Occupied).
//
// Without figures from the driver and the token daemon, the policy uses gpu_mem alone.

// Memory is the memory usage of a GPU as its driver reports it, in bytes.
type Memory struct {
	Total, Free int64
	Processes   map[int]int64 // by PID, contexts included
}

const (
	MemoryEvery = time.Second      // interval of measurements
	memorySteps = 256              // a change must exceed 1/memorySteps of the GPU's memory to be sent to the policy,
	memoryStep  = 32 << 20         // or this number of bytes, whichever is less
	endedTime   = 30 * time.Second // how long the driver may take to free the memory of an instance that died
	maxNamed    = 3                // limit on the other programs that a message names
)

// ledger holds all measurements of GPU memory. Dispatcher.mu guards it.
type ledger struct {
	d       *Dispatcher
	gpus    []gpuMemory
	context int64                     // the smallest context measured so far, in bytes
	ended   map[process]time.Duration // processes of instances that died: until when their memory does not count as another program's
}

// process identifies a process. PIDs of different nodes may be equal.
type process struct {
	node string // empty for the gateway's own machine
	pid  int
}

// gpuMemory holds the measurements of one GPU.
type gpuMemory struct {
	driver   Memory
	known    bool          // the driver reports figures
	others   int64         // bytes used by other programs
	stable   int64         // the same, without usage that lasted less than MemoryEvery
	at       time.Duration // when others was measured
	programs []occupant    // the other programs, in descending order of memory
	capacity int64         // capacity last sent to the policy
	occupied int64         // occupied memory last sent to the policy
}

// occupant is a program on a GPU that is not an instance of the gateway.
type occupant struct {
	pid   int
	bytes int64
}

// instanceMemory holds the measurements of one instance.
type instanceMemory struct {
	pids     map[process]bool // its processes that use a GPU
	started  bool             // it is ready, although Started may not have been called yet
	measured bool             // size and residual were sent to the policy
	size     int64            // bytes that the instance uses
	residual int64            // bytes of size that stay on the GPU while it is parked
	further  map[int32]int64  // bytes on its further GPUs
}

func newInstanceMemory() instanceMemory {
	return instanceMemory{pids: map[process]bool{}, further: map[int32]int64{}}
}

func newLedger(d *Dispatcher) ledger {
	l := ledger{d: d, ended: map[process]time.Duration{}}
	for _, gpu := range d.GPUs.list {
		l.gpus = append(l.gpus, gpuMemory{capacity: gpu.Mem})
	}
	return l
}

// changed reports whether two amounts of the GPU's memory differ enough to inform the
// policy.
func (m *gpuMemory) changed(a, b int64) bool {
	least := int64(memoryStep)
	if m.driver.Total > 0 {
		least = min(least, m.driver.Total/memorySteps)
	}
	return max(a-b, b-a) > least
}

// Measured processes a report of the token daemon, which may be nil, and the reports of the drivers by GPU, and
// sends the changes to the policy.
func (d *Dispatcher) Measured(s *wire.Status, drivers map[string]Memory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s != nil || len(d.Instances.byID) == 0 {
		d.memory.measured(s, drivers)
	}
}

// SetMeasurable records that the instance is ready, so that measurements count it before
// Started is called.
func (i *Instance) SetMeasurable() {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	i.memory.started = true
}

// uses is the memory of one instance on one GPU, in bytes.
type uses struct{ allocated, parked, context, imported int64 }

// measured stores measurements and sends the changes to the policy. Locked.
func (l *ledger) measured(s *wire.Status, drivers map[string]Memory) {
	ids := map[string]*Instance{}
	for _, v := range l.d.Instances.byID {
		ids[v.record.ID] = v
	}
	now := l.d.policy.now()
	for pid, until := range l.ended {
		if now > until {
			delete(l.ended, pid)
		}
	}
	for i := range l.gpus {
		m := &l.gpus[i]
		name := l.d.GPUs.list[i].Name
		reported, known := drivers[name]
		_, covered := clientsOn(s, name)
		// Without a report of its clients, instances cannot be told from other programs.
		if m.known = known && (covered || len(ids) == 0); m.known {
			m.driver = reported
		} else {
			m.driver.Processes = nil
		}
		on, own := l.usesOn(int32(i), s, ids)
		weights := weightsOf(on)
		if m.known {
			for _, bytes := range weights {
				own += bytes
			}
			m.note(now, max(m.driver.Total-m.driver.Free-own, 0))
			l.setCapacity(int32(i))
		}
		for v, u := range on {
			l.setSize(v, int32(i), u, weights[v])
		}
		if occupied := l.occupied(int32(i)); m.changed(occupied, m.occupied) {
			l.setOccupied(int32(i), occupied)
		}
	}
	for _, f := range l.d.inOrder() {
		if !f.removed {
			f.relearn()
		}
	}
}

// usesOn returns the memory that each instance uses on a GPU, and the bytes that all of
// them have on the GPU itself, without parked memory. It also updates the list of other
// programs. Locked.
func (l *ledger) usesOn(gpu int32, s *wire.Status, ids map[string]*Instance) (on map[*Instance]*uses, own int64) {
	m := &l.gpus[gpu]
	node := nodeOf(l.d.GPUs.list[gpu].Name)
	on = map[*Instance]*uses{}
	counted := map[int]bool{} // PIDs
	if s != nil {
		clients, _ := clientsOn(s, l.d.GPUs.list[gpu].Name)
		for _, c := range clients {
			v := ids[c.Instance]
			if v == nil {
				continue
			}
			if on[v] == nil {
				on[v] = &uses{}
			}
			u, allocated, parked, context := on[v], fromMiB(c.MemUsedMiB), fromMiB(c.MemParkedMiB), fromMiB(c.ContextMiB)
			resident := fromMiB(c.MemUsedMiB - c.MemParkedMiB + c.ContextMiB)
			if driver, known := m.driver.Processes[c.PID]; known {
				resident, context = driver, max(driver-allocated+parked, 0)
			}
			u.allocated, u.parked, u.context, u.imported = u.allocated+allocated, u.parked+parked, u.context+context, u.imported+fromMiB(c.MemImportedMiB)
			own += resident
			if c.PID > 0 {
				counted[c.PID], v.memory.pids[process{node, c.PID}] = true, true
			}
			if context > 0 && (l.context == 0 || context < l.context) {
				l.context = context
			}
		}
	}
	count := func(p process) { // of an instance that s does not list now
		if bytes, known := m.driver.Processes[p.pid]; known && p.node == node && !counted[p.pid] {
			counted[p.pid] = true
			own += bytes
		}
	}
	for _, v := range ids {
		for p := range v.memory.pids {
			count(p)
		}
	}
	for p := range l.ended {
		count(p)
	}
	m.programs = m.programs[:0]
	for pid, bytes := range m.driver.Processes {
		if !counted[pid] && bytes > 0 {
			m.programs = append(m.programs, occupant{pid, bytes})
		}
	}
	slices.SortFunc(m.programs, func(a, b occupant) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.pid, b.pid)) })
	return on, own
}

// weightsOf returns the bytes of shared model weights on a GPU. It counts the weights of
// each model once, for the instance with the lowest ID among those that share them. They
// belong to the process of the model daemon, which is not an instance.
func weightsOf(on map[*Instance]*uses) map[*Instance]int64 {
	holders := map[string]*Instance{}
	sizes := map[string]int64{}
	for v, u := range on {
		fn := v.function.definition
		if fn.Model == nil || u.imported == 0 {
			continue
		}
		key := fn.Tenant + "/" + fn.Model.Name
		sizes[key] = max(sizes[key], u.imported)
		if h := holders[key]; h == nil || v.record.ID < h.record.ID {
			holders[key] = v
		}
	}
	out := map[*Instance]int64{}
	for key, v := range holders {
		out[v] = sizes[key]
	}
	return out
}

// note stores the bytes that other programs use. Memory that they use only briefly, such as
// that of an instance that is just ending, does not count as stable.
func (m *gpuMemory) note(now time.Duration, others int64) {
	switch {
	case m.at == 0:
		m.stable, m.others, m.at = others, others, now
	case now-m.at >= MemoryEvery*9/10:
		m.stable, m.others, m.at = min(m.others, others), others, now
	default:
		m.stable = min(m.stable, others)
	}
}

// setCapacity sends the policy the memory of a GPU that other programs leave. Locked.
func (l *ledger) setCapacity(gpu int32) {
	m, limit := &l.gpus[gpu], l.d.GPUs.list[gpu].Mem
	if limit == 0 { // for example a MIG instance, whose size no list contains
		limit = m.driver.Total
	}
	spared := max(m.driver.Total-limit, 0) // memory that --gpu-mem leaves to other programs
	capacity := max(limit-max(m.stable-spared, 0), 1)
	if capacity == m.capacity || capacity != limit && !m.changed(capacity, m.capacity) {
		return
	}
	m.capacity = capacity
	l.d.policy.step(&queue.GPUSet{GPU: gpu, Slots: l.d.cfg.Concurrency, Mem: capacity, Class: l.d.GPUs.classOf(gpu)})
}

// setSize sends the policy the memory that an instance uses. weights are the bytes of
// shared weights that weightsOf counts for it. Locked.
func (l *ledger) setSize(v *Instance, gpu int32, u *uses, weights int64) {
	if v.state != instanceReady && !v.memory.started {
		return
	}
	m := &l.gpus[gpu]
	whole := u.allocated + u.context
	if v.gpu != gpu {
		v.memory.further[gpu] = whole - u.parked
		return
	}
	if l.d.cfg.Park == ParkCheckpoint && (v.parked || u.parked > 0) {
		return // its memory is on the host
	}
	size, residual := whole-u.parked+weights, int64(0)
	if v.parks && l.d.cfg.Park == ParkSwap { // its allocations move between host and GPU
		size, residual = whole+weights, u.context+weights
	}
	// Before its first call, an instance may still have allocations to make.
	if need := max(v.function.spec.Mem, v.function.spec.MeasuredMem); !v.worked && size <= need {
		return
	}
	if c := &v.function.costs; v.version == v.function.version {
		c.mem, c.measured = max(c.mem, whole), true
	}
	if v.memory.measured && !m.changed(size, v.memory.size) && !m.changed(residual, v.memory.residual) {
		return
	}
	v.memory.measured, v.memory.size, v.memory.residual = true, size, residual
	l.d.policy.step(&queue.Measured{Instance: v.id, Function: v.function.number, Mem: size, Residual: residual})
}

// required returns the bytes that a new instance of a function needs on its GPU. Locked.
func (l *ledger) required(f *Function, mem int64) int64 {
	if f.costs.measured {
		return max(f.costs.mem, mem)
	}
	return mem + l.context
}

// occupied returns the bytes that instances occupy on a GPU that is one of their further
// GPUs, and the bytes that are kept free there for an instance on several GPUs. Locked.
func (l *ledger) occupied(gpu int32) (mem int64) {
	for _, v := range l.d.Instances.byID {
		if slices.Contains(v.further, gpu) {
			mem += max(v.mem, v.memory.further[gpu])
		}
	}
	for _, f := range l.d.functions {
		if c := f.placing.clearing; c != nil && slices.Contains(c.gpus, int(gpu)) {
			mem += c.mem
		}
	}
	return mem
}

// sendOccupied sends the policy the memory that is occupied on GPUs. Locked.
func (l *ledger) sendOccupied(gpus []int) {
	for _, g := range gpus {
		l.setOccupied(int32(g), l.occupied(int32(g)))
	}
}

func (l *ledger) setOccupied(gpu int32, mem int64) {
	l.gpus[gpu].occupied = mem
	l.d.policy.step(&queue.Occupied{GPU: gpu, Mem: mem})
}

// dying records that an instance died: its processes may hold memory for another endedTime.
// Locked.
func (l *ledger) dying(v *Instance) {
	for pid := range v.memory.pids {
		l.ended[pid] = l.d.policy.now() + endedTime
	}
}

// shortError is the error of a start that failed because its GPU had too little memory.
type shortError struct {
	err error
	use string // how the GPU's memory is used, for the message
}

func (e *shortError) Error() string { return e.err.Error() + "; " + e.use }
func (e *shortError) Unwrap() error { return e.err }

// ShortOfMemory wraps err, the error of the instance's start, in a *shortError if its GPU
// had too little memory: an allocation was refused, or less is free than an instance needs.
// Call it after memory has been measured again.
func (i *Instance) ShortOfMemory(refused bool, err error) error {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	l := &i.d.memory
	m, spec := &l.gpus[i.gpu], &i.function.spec
	if !refused && !(m.known && m.driver.Free < max(spec.Mem, spec.MeasuredMem)) {
		return err
	}
	return &shortError{err, l.use(i.gpu)}
}

// inUse returns the refusal for a call of a function that would fit on a GPU if other
// programs used less of its memory. It returns nil if there is no such GPU. Locked.
func (l *ledger) inUse(f *Function) *refusal.Error {
	var use []string
	for i := range l.gpus {
		m, limit := &l.gpus[i], l.d.GPUs.list[i].Mem
		if m.known && max(limit, m.driver.Total) >= f.spec.Mem && (limit == 0 || limit >= f.spec.Mem) {
			use = append(use, l.use(int32(i)))
		}
	}
	if len(use) == 0 {
		return nil
	}
	return &refusal.Error{Code: refusal.MemoryInUse, Retry: MemoryEvery,
		Message: fmt.Sprintf("function %s needs %s of GPU memory: %s", f.name, size(f.spec.Mem), strings.Join(use, "; ")),
		Hint:    "stop other programs on the GPU, or lower gpu_mem of the function"}
}

// use describes the usage of a GPU's memory for a message. Locked.
func (l *ledger) use(gpu int32) string {
	m, name := &l.gpus[gpu], l.d.GPUs.list[gpu].Name
	if !m.known {
		return fmt.Sprintf("GPU %s has too little free memory", name)
	}
	out := fmt.Sprintf("GPU %s has %s of %s free", name, size(m.driver.Free), size(m.driver.Total))
	if own := m.driver.Total - m.driver.Free - m.others; own > m.driver.Total/memorySteps {
		out += ", instances of this gateway use " + size(own)
	}
	if m.others > m.driver.Total/memorySteps {
		out += ", other programs use " + size(m.others) + m.names(nodeOf(name) == "")
	}
	return out
}

// names lists the other programs that use the most memory. here means that they run on this machine.
func (m *gpuMemory) names(here bool) string {
	var out []string
	for _, o := range m.programs[:min(len(m.programs), maxNamed)] {
		name := fmt.Sprintf("process %d", o.pid)
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", o.pid)); here && err == nil {
			name += ", " + strings.TrimSpace(string(text))
		}
		out = append(out, fmt.Sprintf("%s: %s", name, size(o.bytes)))
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, "; ") + ")"
}

// size formats an amount of memory, rounded to whole MiB.
func size(bytes int64) string {
	return ((gpu.Bytes(max(bytes, 0)) + gpu.MiB/2) / gpu.MiB * gpu.MiB).String()
}

func fromMiB(mib float64) int64 { return int64(max(mib, 0) * (1 << 20)) }

// clientsOn returns the report's clients on a GPU. It returns false if the report does not cover the GPU. A report of
// this machine covers all of its GPUs, and one of a swarm those that it lists, because nodes may not answer.
func clientsOn(s *wire.Status, name string) ([]wire.ClientStatus, bool) {
	if s == nil {
		return nil, false
	}
	for _, g := range s.GPUs {
		if g.GPU == name {
			return g.Clients, true
		}
	}
	return nil, nodeOf(name) == ""
}

// nodeOf returns the node of a GPU; it is empty for a GPU of this machine.
func nodeOf(name string) string {
	node, _ := gpu.SplitNode(name)
	return node
}
