package kernel

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
	"github.com/gfaas/gfaas/pkg/policy/objects"
)

// device is one GPU.
type device struct {
	gpus   *gpus
	number int32
	name   string
	limits kgraph.Device

	// lane serializes the jobs of the GPU's executors. Lock it before the daemon's lock;
	// never hold the lanes of two devices.
	lane sync.Mutex

	// Guarded by the daemon's lock.
	cache   *objects.Cache[*block] // the blocks in the GPU's memory
	workers map[*domain]*worker
	running *request
	ran     time.Duration // total time occupied by requests
	faults  int           // executors that were killed after a failed job
	starts  int           // executors started
	evicted int64         // blocks evicted
}

// worker is the place of an executor on a GPU: the current executor and the state of its memory.
type worker struct {
	dev  *device
	dom  *domain
	exec Executor // nil if none runs

	allocated     int64 // bytes that the executor has allocated, free blocks included
	live          int64 // bytes of its blocks in use
	blockNumbers  numbering
	freed         []uint32           // blocks that the next job frees
	modules       map[string]*module // by moduleKey
	ptx           int64              // total length of the PTX of modules
	moduleNumbers numbering
	turn          int64  // number of requests planned
	used          uint64 // ID of the GPUs' last job when a request was last planned here
}

// module is code (PTX, a cubin or a fatbin) that an executor has loaded.
type module struct {
	number uint32
	used   int64 // worker.turn of the last job that used it
	text   int64 // length of the code in bytes
}

// moduleKey returns a map key for code: the code itself or, to save memory, the digest of
// long code. Neither PTX nor a binary starts with \x00.
func moduleKey(ptx string) string {
	const long = 16 << 10
	if len(ptx) < long {
		return ptx
	}
	sum := sha256.Sum256([]byte(ptx))
	return "\x00" + string(sum[:])
}

// Limits on the modules of an executor: their number and the total length of their PTX. Beyond
// them, link unloads the least recently used modules, except those that the current job uses.
// No budget covers the compiled code.
const (
	maxModules = 256
	maxPTX     = 256 << 20
)

// maxWorkers limits the executors of a GPU if each client has its own, because each one holds
// a CUDA context.
const maxWorkers = 16

// numbering allocates small numbers. It reuses freed numbers before it counts up.
type numbering struct {
	next uint32
	free []uint32
}

func (s *numbering) alloc() uint32 {
	if n := len(s.free); n > 0 {
		number := s.free[n-1]
		s.free = s.free[:n-1]
		return number
	}
	s.next++
	return s.next - 1
}

func (s *numbering) release(number uint32) { s.free = append(s.free, number) }

func (dev *device) newWorker(dom *domain, exec Executor) *worker {
	return &worker{dev: dev, dom: dom, exec: exec, modules: map[string]*module{}}
}

// ensureWorker returns the worker of a domain and starts its executor if none runs. Before that,
// it ends surplus executors. The caller holds the lane and the lock; ensureWorker releases the
// lock while executors start and end.
func (dev *device) ensureWorker(dom *domain) (*worker, error) {
	w := dev.workers[dom]
	if w == nil {
		w = dev.newWorker(dom, nil)
		dev.workers[dom] = w
	}
	if w.exec != nil {
		return w, nil
	}
	surplus := dev.detachSurplus(w)
	dev.gpus.mu.Unlock()
	for _, exec := range surplus {
		exec.Close()
	}
	started := time.Now()
	exec, _, err := dev.gpus.cfg.Start(context.Background(), dev.name, dom.host)
	dev.gpus.mu.Lock()
	if err != nil {
		return nil, err
	}
	dev.starts++
	dev.gpus.log.Info("executor started", "gpu", dev.name, "took", time.Since(started).String())
	w.exec = exec
	return w, nil
}

// detachSurplus removes the least recently used executors, except that of except, so that one more
// can start within maxWorkers. It returns them for the caller to close. The caller holds the
// lane and the lock; detachSurplus releases the lock while it saves objects.
func (dev *device) detachSurplus(except *worker) (detached []Executor) {
	var alive []*worker
	for _, w := range dev.workers {
		if w != except && w.exec != nil {
			alive = append(alive, w)
		}
	}
	slices.SortFunc(alive, func(a, b *worker) int { return cmp.Compare(a.used, b.used) })
	for _, w := range alive[:max(len(alive)-maxWorkers+1, 0)] {
		dev.saveAll(w)
		detached = append(detached, w.exec)
		dev.resetWorker(w)
	}
	return detached
}

// saveAll copies to the host all objects whose only copy is on the worker. The caller holds
// the lane and the lock; saveAll releases the lock while the job runs.
func (dev *device) saveAll(w *worker) {
	t := &task{w: w, job: job.Job{Limit: max(w.allocated, w.live)}}
	for c := range dev.cache.All() {
		if c.worker != w || c.object == nil || c.object.host != nil {
			continue
		}
		if err := t.save(c); err != nil { // the domain's addresses are exhausted: see newDomain
			dev.gpus.log.Error("cannot copy an object to the host", "client", c.object.owner.name, "key", c.object.key, "err", err)
		}
	}
	if len(t.saves) > 0 {
		_, _ = dev.gpus.runTask(t) // after an error, runTask has dropped the objects
	}
}

// resetWorker resets a worker whose executor has ended. Objects whose only copy was there are lost.
// The caller holds the lock.
func (dev *device) resetWorker(w *worker) {
	w.exec = nil
	for c := range dev.cache.All() {
		if c.worker != w {
			continue
		}
		dev.cache.Remove(c)
		o := c.object
		c.unlink()
		if o != nil && o.host == nil && len(o.copies) == 0 && !o.dropped {
			dev.gpus.log.Warn("a volatile object was lost with its executor", "client", o.owner.name, "key", o.key)
			dev.gpus.drop(o)
		}
	}
	w.allocated, w.live, w.freed = 0, 0, nil
	w.blockNumbers, w.moduleNumbers, w.modules, w.ptx = numbering{}, numbering{}, map[string]*module{}, 0
}

// retire ends a domain's executor on this GPU. It takes the lane, because requests of other
// clients may still send the executor jobs that free memory.
func (dev *device) retire(dom *domain) {
	dev.lane.Lock()
	defer dev.lane.Unlock()
	dev.gpus.mu.Lock()
	w := dev.workers[dom]
	if w == nil {
		dev.gpus.mu.Unlock()
		return
	}
	exec := w.exec
	dev.resetWorker(w)
	delete(dev.workers, dom)
	dev.gpus.mu.Unlock()
	if exec != nil {
		exec.Close()
	}
}

// alloc returns a new pinned block of size bytes, for which the cache must have room. o is
// the object to copy there, or nil. The caller holds the lock.
func (w *worker) alloc(size int64, o *object) *block {
	c := &block{worker: w, number: w.blockNumbers.alloc(), size: size, object: o, pins: 1}
	w.dev.cache.Add(c, job.Footprint(size))
	w.live += job.Footprint(size)
	if o != nil {
		o.copies = append(o.copies, c)
	}
	return c
}

// link returns the number of the module with the given code. If the module is not loaded, link
// adds it to the job. The caller holds the lock.
func (w *worker) link(text string, j *job.Job) uint32 {
	key := moduleKey(text)
	m := w.modules[key]
	if m == nil {
		for (len(w.modules) >= maxModules || w.ptx+int64(len(text)) > maxPTX) && w.unlinkOldest(j) {
		}
		m = &module{number: w.moduleNumbers.alloc(), text: int64(len(text))}
		w.modules[key] = m
		w.ptx += m.text
		j.Load = append(j.Load, job.Module{Number: m.number, PTX: text})
	}
	m.used = w.turn
	return m.number
}

// unlinkOldest unloads the least recently used module that this job does not use. It reports
// whether there was one.
func (w *worker) unlinkOldest(j *job.Job) bool {
	oldest := ""
	for key, m := range w.modules {
		if m.used < w.turn && (oldest == "" || m.used < w.modules[oldest].used) {
			oldest = key
		}
	}
	if oldest == "" {
		return false
	}
	j.Unload = append(j.Unload, w.modules[oldest].number)
	w.forget(oldest)
	return true
}

// forget removes the record of a module and frees its number.
func (w *worker) forget(key string) {
	m := w.modules[key]
	w.moduleNumbers.release(m.number)
	w.ptx -= m.text
	delete(w.modules, key)
}

// free adds the freed blocks to the job. The job may reuse their numbers, because an executor
// frees before it allocates. The caller holds the lock.
func (w *worker) free(j *job.Job) {
	j.Free = append(j.Free, w.freed...)
	for _, number := range w.freed {
		w.blockNumbers.release(number)
	}
	w.freed = nil
}

// gpus manages the GPUs and their executors.
type gpus struct {
	*store
	devices   []*device
	shared    *domain        // the domain of all clients; nil if each client has its own
	shutdowns sync.WaitGroup // executors that shut down in the background
	lastJob   uint64
}

// newDevice starts an executor to learn the properties of the GPU. It keeps the executor
// unless each client has its own. It fails if the budget exceeds the GPU's memory.
func (g *gpus) newDevice(ctx context.Context, number int32, name string) (*device, error) {
	dev := &device{gpus: g, number: number, name: name, workers: map[*domain]*worker{}}
	dom := g.shared
	if dom == nil {
		var err error
		if dom, err = g.newDomain(); err != nil {
			return nil, err
		}
		defer dom.host.Close()
	}
	exec, hello, err := g.cfg.Start(ctx, name, dom.host)
	if err != nil {
		return nil, err
	}
	budget := g.cfg.GPUMem
	if budget == 0 {
		budget = min(defaultGPUMem, hello.Total/10*9)
	}
	dev.limits = kgraph.Device{Name: hello.Name, Arch: hello.Arch, MaxGrid: hello.MaxGrid, MaxBlock: hello.MaxBlock,
		MaxThreads: hello.MaxThreads, MaxShared: hello.MaxShared, Budget: budget}
	dev.cache = objects.New[*block](budget)
	switch {
	case budget > hello.Total:
		exec.Close()
		return nil, fmt.Errorf("the memory for buffers is %d bytes, but %s has only %d", budget, hello.Name, hello.Total)
	case g.shared == nil:
		exec.Close()
	default:
		dev.workers[dom] = dev.newWorker(dom, exec)
	}
	dev.starts++
	return dev, nil
}

// retire ends the executors of an unused domain and frees its memory, in the background. The
// caller holds the lock.
func (g *gpus) retire(dom *domain) {
	g.shutdowns.Go(func() {
		for _, dev := range g.devices {
			dev.retire(dom)
		}
		dom.host.Close()
	})
}

// runTask numbers a task, runs it and completes its transfers. After an error or a fatal outcome, the
// executor has ended. The caller holds the lane and the lock; runTask releases the lock while the
// job runs.
func (g *gpus) runTask(t *task) (job.Outcome, error) {
	g.lastJob++
	t.job.ID = g.lastJob
	g.mu.Unlock()
	g.send(t.w, &t.job)
	o, err := g.outcome(t.w, &t.job)
	g.mu.Lock()
	g.completeSaves(t.saves, err == nil && o.Code == 0)
	return o, err
}

// send starts a job. It does nothing if no executor runs.
func (g *gpus) send(w *worker, j *job.Job) {
	if w.exec != nil {
		w.exec.Send(j.Append(nil), g.cfg.KernelTimeout)
	}
}

// outcome waits for the outcome of a job that was sent. After an error or a fatal outcome it
// kills the executor and resets the worker.
func (g *gpus) outcome(w *worker, j *job.Job) (job.Outcome, error) {
	if w.exec == nil {
		return job.Outcome{}, errors.New("the executor has ended")
	}
	o, err := w.exec.Wait(j.ID, g.cfg.KernelTimeout)
	if err == nil && o.Code != 0 && !harmless(o.Step) {
		o.Fatal = true
	}
	if err == nil && !o.Fatal {
		g.mu.Lock()
		w.allocated = o.Allocated
		g.mu.Unlock()
		return o, nil
	}
	if err == nil {
		g.log.Warn("a kernel faulted; killing its executor", "gpu", w.dev.name, "err", o.Text)
	} else {
		g.log.Warn("an executor failed; killing it", "gpu", w.dev.name, "err", err)
	}
	w.exec.Kill()
	g.mu.Lock()
	w.dev.faults++
	w.dev.resetWorker(w)
	g.mu.Unlock()
	return o, err
}

// harmless reports whether an executor remains usable after a failure at the given step. After
// any other step the executor and the daemon may disagree about the state.
func harmless(at job.Step) bool { return at == job.Load || at == job.Alloc || at == job.Kernels }

// save copies an object to the host if its only copy is on a GPU. The object may be dropped
// meanwhile, for example because its executor ends; this is no error. The caller holds neither the lane
// nor the lock.
func (g *gpus) save(o *object) error {
	g.mu.Lock()
	dev := o.home
	g.mu.Unlock()
	if dev == nil {
		return nil
	}
	dev.lane.Lock()
	defer dev.lane.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.host != nil || len(o.copies) == 0 {
		return nil
	}
	c := o.copies[0]
	t := &task{w: c.worker, job: job.Job{Limit: max(c.worker.allocated, c.worker.live)}}
	if err := t.save(c); err != nil {
		return err
	}
	c.pin()
	outcome, err := g.runTask(t)
	c.unpin()
	if o.dropped {
		return nil
	}
	if err == nil && outcome.Code != 0 {
		err = fmt.Errorf("copy object %s to the host: %s", o.key, outcome.Text)
	}
	return err
}
