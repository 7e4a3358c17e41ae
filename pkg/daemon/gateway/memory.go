package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Functions declare with gpu_mem what they allocate. Their instances take more: contexts,
// and whatever a function without gpu_mem allocates. Other programs use the GPUs as well.
// The gateway therefore measures memory and tells the policy three things:
//
//   - how much each instance takes, and how much of that stays on the GPU while its memory
//     is parked (Measured), and how much a new instance of each function will take (Need):
//     the most that one of them took or, before one was measured, its gpu_mem and a context;
//   - how much memory of each GPU other programs leave for instances (GPUSet);
//   - how much instances that span several GPUs hold on the further ones (Occupied).
//
// Without figures from the driver and the token daemon, the policy goes by gpu_mem alone.

// Memory is the use of a GPU's memory as its driver reports it, in bytes.
type Memory struct {
	Total, Free int64
	Processes   map[int]int64 // by process number, contexts included
}

const (
	memoryEvery = time.Second      // how often memory is measured
	memorySteps = 256              // changes by less than this part of a GPU's memory are not passed on,
	memoryStep  = 32 << 20         // nor are changes by fewer bytes than this, on GPUs with more memory
	endedTime   = 30 * time.Second // for the driver to free the memory of an instance that died
	mostNamed   = 3                // programs that a message names
)

// memory is what was measured. The engine's, under its lock.
type memory struct {
	gpus    []gpuMemory
	context int64                 // the smallest context that was seen
	ended   map[int]time.Duration // processes of instances that died, and until when their memory is not another program's
}

// gpuMemory is what was measured of one GPU.
type gpuMemory struct {
	driver   Memory
	known    bool  // the driver reports figures
	others   int64 // bytes that other programs have
	stable   int64 // the same, without what they had for less than memoryEvery
	at       time.Duration
	by       []occupant // the other programs, the largest first
	told     int64      // memory that the policy knows the GPU to have
	occupied int64      // memory that the policy knows to be occupied
}

// occupant is a program on a GPU that is none of the gateway's instances.
type occupant struct {
	pid   int
	bytes int64
}

// instanceMemory is what was measured of one instance.
type instanceMemory struct {
	pids     map[int]bool    // its processes on GPUs
	started  bool            // it is ready, though its calls may not know yet
	measured bool            // the policy was told how much it takes:
	told     int64           // so many bytes,
	stays    int64           // of which so many stay while its memory is parked
	further  map[int32]int64 // bytes on its further GPUs
}

func newInstanceMemory() instanceMemory {
	return instanceMemory{pids: map[int]bool{}, further: map[int32]int64{}}
}

func (m *memory) init(gpus []GPU) {
	m.ended = map[int]time.Duration{}
	for _, gpu := range gpus {
		m.gpus = append(m.gpus, gpuMemory{told: gpu.Mem})
	}
}

// changed reports whether two amounts of a GPU's memory differ by enough for the policy to
// be told.
func (m *gpuMemory) changed(a, b int64) bool {
	least := int64(memoryStep)
	if m.driver.Total > 0 {
		least = min(least, m.driver.Total/memorySteps)
	}
	return max(a-b, b-a) > least
}

// measureMemory asks the drivers and the token daemon how memory is used and tells the
// policy. It returns what the token daemon answered, or nil.
func (g *Gateway) measureMemory(ctx context.Context) *wire.Status {
	ctx, cancel := context.WithTimeout(ctx, usageTime)
	defer cancel()
	drivers := make([]*Memory, len(g.cfg.GPUs)) // asked first: who allocates is known to the token daemon before
	for i, gpu := range g.cfg.GPUs {
		if g.cfg.Memory == nil {
			break
		}
		if m, err := g.cfg.Memory(ctx, gpu.Name); err == nil {
			drivers[i] = &m
		}
	}
	s := g.askUsage(ctx)
	e := &g.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s != nil || len(e.servers) == 0 { // otherwise nothing tells instances from other programs
		e.measured(s, drivers)
	}
	return s
}

// measureStarted measures what an instance took that has just started, before its first
// call ends: another start may depend on it.
func (g *Gateway) measureStarted(s *server) {
	if g.cfg.Memory == nil {
		return
	}
	g.engine.mu.Lock()
	s.memory.started = true
	g.engine.mu.Unlock()
	g.measureMemory(g.life)
}

// uses is what an instance has on one GPU, in bytes.
type uses struct{ allocated, parked, context, imported int64 }

// measured takes note of what was measured and tells the policy what has changed. Locked.
func (e *engine) measured(s *wire.Status, drivers []*Memory) {
	ids := map[string]*server{}
	for _, v := range e.servers {
		ids[v.record.ID] = v
	}
	now := e.now()
	for pid, until := range e.memory.ended {
		if now > until {
			delete(e.memory.ended, pid)
		}
	}
	for i := range e.memory.gpus {
		m := &e.memory.gpus[i]
		if m.known = drivers[i] != nil; m.known {
			m.driver = *drivers[i]
		} else {
			m.driver.Processes = nil
		}
		on, own := e.usesOn(int32(i), s, ids)
		weights := weightsOf(on)
		if m.known {
			for _, bytes := range weights {
				own += bytes
			}
			m.note(now, max(m.driver.Total-m.driver.Free-own, 0))
			e.setCapacity(int32(i))
		}
		for v, u := range on {
			e.setSize(v, int32(i), u, weights[v])
		}
		if occupied := e.occupied(int32(i)); m.changed(occupied, m.occupied) {
			e.setOccupied(int32(i), occupied)
		}
	}
	for _, t := range e.inOrder() {
		if !t.gone {
			e.relearn(t)
		}
	}
}

// usesOn returns what instances have on a GPU, and the sum of what is on the GPU of it. It
// notes which programs have the rest. Locked.
func (e *engine) usesOn(gpu int32, s *wire.Status, ids map[string]*server) (on map[*server]*uses, own int64) {
	m := &e.memory.gpus[gpu]
	on = map[*server]*uses{}
	mine := map[int]bool{}
	if s != nil {
		for _, c := range clientsOn(s, e.g.cfg.GPUs[gpu].Name) {
			v := ids[c.Instance]
			if v == nil {
				continue
			}
			if on[v] == nil {
				on[v] = &uses{}
			}
			u, allocated, parked, here := on[v], fromMiB(c.MemUsedMiB), fromMiB(c.MemParkedMiB), fromMiB(c.MemUsedMiB-c.MemParkedMiB+c.ContextMiB)
			context := fromMiB(c.ContextMiB)
			if driver, known := m.driver.Processes[c.PID]; known {
				here, context = driver, max(driver-allocated+parked, 0)
			}
			u.allocated, u.parked, u.context, u.imported = u.allocated+allocated, u.parked+parked, u.context+context, u.imported+fromMiB(c.MemImportedMiB)
			own += here
			if c.PID > 0 {
				mine[c.PID], v.memory.pids[c.PID] = true, true
			}
			if context > 0 && (e.memory.context == 0 || context < e.memory.context) {
				e.memory.context = context
			}
		}
	}
	further := func(pid int) { // that the token daemon does not list now
		if bytes, known := m.driver.Processes[pid]; known && !mine[pid] {
			mine[pid] = true
			own += bytes
		}
	}
	for _, v := range ids {
		for pid := range v.memory.pids {
			further(pid)
		}
	}
	for pid := range e.memory.ended {
		further(pid)
	}
	m.by = m.by[:0]
	for pid, bytes := range m.driver.Processes {
		if !mine[pid] && bytes > 0 {
			m.by = append(m.by, occupant{pid, bytes})
		}
	}
	slices.SortFunc(m.by, func(a, b occupant) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.pid, b.pid)) })
	return on, own
}

// weightsOf returns the bytes of models' weights on a GPU, by the instance that they are
// counted for: of those that share them the one with the lowest id. The process that has
// them is no instance.
func weightsOf(on map[*server]*uses) map[*server]int64 {
	holders := map[string]*server{}
	most := map[string]int64{}
	for v, u := range on {
		fn := v.target.function
		if fn.Model == nil || u.imported == 0 {
			continue
		}
		key := fn.Tenant + "/" + fn.Model.Name
		most[key] = max(most[key], u.imported)
		if h := holders[key]; h == nil || v.record.ID < h.record.ID {
			holders[key] = v
		}
	}
	out := map[*server]int64{}
	for key, v := range holders {
		out[v] = most[key]
	}
	return out
}

// note takes note of the bytes that other programs have. What they have for a moment
// only, such as the memory of an instance that is just ending, does not count.
func (m *gpuMemory) note(now time.Duration, others int64) {
	switch {
	case m.at == 0:
		m.stable, m.others, m.at = others, others, now
	case now-m.at >= memoryEvery*9/10:
		m.stable, m.others, m.at = min(m.others, others), others, now
	default:
		m.stable = min(m.stable, others)
	}
}

// setCapacity tells the policy how much memory other programs leave on a GPU. Locked.
func (e *engine) setCapacity(gpu int32) {
	m, limit := &e.memory.gpus[gpu], e.g.cfg.GPUs[gpu].Mem
	if limit == 0 { // as of a MIG instance, which no list has
		limit = m.driver.Total
	}
	spared := max(m.driver.Total-limit, 0) // --gpu-mem leaves it to others
	capacity := max(limit-max(m.stable-spared, 0), 1)
	if capacity == m.told || capacity != limit && !m.changed(capacity, m.told) {
		return
	}
	m.told = capacity
	e.step(queue.Event{Kind: queue.GPUSet, GPU: gpu, Machine: &queue.GPU{Slots: e.g.cfg.Concurrency, Mem: capacity}})
}

// setSize tells the policy what an instance takes. Weights are those that it is counted
// for. Locked.
func (e *engine) setSize(v *server, gpu int32, u *uses, weights int64) {
	if v.state != serverReady && !v.memory.started {
		return
	}
	m := &e.memory.gpus[gpu]
	whole := u.allocated + u.context
	if v.gpu != gpu {
		v.memory.further[gpu] = whole - u.parked
		return
	}
	if e.g.cfg.Park == ParkCheckpoint && (v.out || u.parked > 0) {
		return // it is on the host
	}
	takes, stays := whole-u.parked+weights, int64(0)
	if v.parks && e.g.cfg.Park == ParkSwap { // what it allocated comes and goes
		takes, stays = whole+weights, u.context+weights
	}
	// What has not run a call yet may allocate with the first.
	if need := max(v.target.spec.Mem, v.target.spec.Need); !v.worked && takes <= need {
		return
	}
	if c := &v.target.costs; v.generation == v.target.generation {
		c.mem, c.measured = max(c.mem, whole), true
	}
	if v.memory.measured && !m.changed(takes, v.memory.told) && !m.changed(stays, v.memory.stays) {
		return
	}
	v.memory.measured, v.memory.told, v.memory.stays = true, takes, stays
	e.step(queue.Event{Kind: queue.Measured, Instance: v.id, Function: v.target.number, Mem: takes, Stays: stays})
}

// need returns the bytes of a GPU that a new instance of a function takes. Locked.
func (e *engine) need(t *target, mem int64) int64 {
	if t.costs.measured {
		return max(t.costs.mem, mem)
	}
	return mem + e.memory.context
}

// occupied returns the bytes of a GPU that instances hold of which it is not the first.
// Locked.
func (e *engine) occupied(gpu int32) (mem int64) {
	for _, v := range e.servers {
		if slices.Contains(v.further, gpu) {
			mem += max(v.mem, v.memory.further[gpu])
		}
	}
	return mem
}

func (e *engine) setOccupied(gpu int32, mem int64) {
	e.memory.gpus[gpu].occupied = mem
	e.step(queue.Event{Kind: queue.Occupied, GPU: gpu, Mem: mem})
}

// dying takes note of an instance that died: its processes may have memory for a while
// yet. Locked.
func (e *engine) dying(v *server) {
	for pid := range v.memory.pids {
		e.memory.ended[pid] = e.now() + endedTime
	}
}

// shortError says that a start failed because its GPU had too little memory.
type shortError struct {
	err error
	use string // how the GPU's memory is used
}

func (e *shortError) Error() string { return e.err.Error() + "; " + e.use }
func (e *shortError) Unwrap() error { return e.err }

// shortOfMemory returns the error of a start as a *shortError if the GPU had too little
// memory: the preload library saw that the driver refused some, or less is free than an
// instance needs.
func (g *Gateway) shortOfMemory(s *server, err error) error {
	if g.life.Err() != nil {
		return err
	}
	var failed *ports.StartError
	refused := errors.As(err, &failed) && failed.OutOfMemory
	g.measureMemory(g.life)
	e := &g.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.memory.gpus[s.gpu]
	need := max(s.target.spec.Mem, s.target.spec.Need)
	if !refused && !(m.known && m.driver.Free < need) {
		return err
	}
	return &shortError{err, e.memoryUse(s.gpu)}
}

// memoryInUse returns the answer to a call of a function that a GPU could hold if other
// programs left more of its memory; nil where none could. Locked.
func (e *engine) memoryInUse(t *target) *Error {
	var use []string
	for i := range e.memory.gpus {
		m, limit := &e.memory.gpus[i], e.g.cfg.GPUs[i].Mem
		if m.known && max(limit, m.driver.Total) >= t.spec.Mem && (limit == 0 || limit >= t.spec.Mem) {
			use = append(use, e.memoryUse(int32(i)))
		}
	}
	if len(use) == 0 {
		return nil
	}
	return &Error{Status: http.StatusServiceUnavailable, Code: codeMemoryInUse, Retry: memoryEvery,
		Message: fmt.Sprintf("function %s needs %s of GPU memory: %s", t.name, size(t.spec.Mem), strings.Join(use, "; ")),
		Hint:    "stop other programs on the GPU, or lower gpu_mem of the function"}
}

// memoryUse says for people how the memory of a GPU is used. Locked.
func (e *engine) memoryUse(gpu int32) string {
	m, name := &e.memory.gpus[gpu], e.g.cfg.GPUs[gpu].Name
	if !m.known {
		return fmt.Sprintf("GPU %s has too little free memory", name)
	}
	out := fmt.Sprintf("GPU %s has %s of %s free", name, size(m.driver.Free), size(m.driver.Total))
	if own := m.driver.Total - m.driver.Free - m.others; own > m.driver.Total/memorySteps {
		out += ", instances of this gateway use " + size(own)
	}
	if m.others > m.driver.Total/memorySteps {
		out += ", other programs use " + size(m.others) + m.names()
	}
	return out
}

// names lists the largest other programs.
func (m *gpuMemory) names() string {
	var out []string
	for _, o := range m.by[:min(len(m.by), mostNamed)] {
		name := fmt.Sprintf("process %d", o.pid)
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", o.pid)); err == nil {
			name += ", " + strings.TrimSpace(string(text))
		}
		out = append(out, fmt.Sprintf("%s: %s", name, size(o.bytes)))
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, "; ") + ")"
}

// size is an amount of memory for people, in whole MiB.
func size(bytes int64) string {
	return ((gpu.Bytes(max(bytes, 0)) + gpu.MiB/2) / gpu.MiB * gpu.MiB).String()
}

func fromMiB(mib float64) int64 { return int64(max(mib, 0) * (1 << 20)) }

// clientsOn returns the rows of a GPU.
func clientsOn(s *wire.Status, gpu string) []wire.ClientStatus {
	for _, g := range s.GPUs {
		if g.GPU == gpu {
			return g.Clients
		}
	}
	return nil
}
