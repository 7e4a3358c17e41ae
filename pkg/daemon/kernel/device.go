package kernel

import (
	"cmp"
	"context"
	"crypto/sha256"
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
	d      *Daemon
	number int32
	name   string
	limits kgraph.Device

	// lane is held by whoever gives the GPU's executors jobs. It is taken before
	// the daemon's lock, and never two devices' at once.
	lane sync.Mutex

	// Under the daemon's lock.
	cache   *objects.Cache
	copies  map[objects.ID]*copied
	workers map[*domain]*worker
	running *request
	ran     time.Duration // executing requests
	faults  int
	starts  int
	evicted int64
}

// worker is an executor's place on a GPU: the executor that is there now, and what
// is in its memory.
type worker struct {
	dev  *device
	dom  *domain
	exec Executor // nil: there is none

	held    int64 // bytes that its blocks take, free ones included
	live    int64 // bytes of those that are not
	slots   slots
	freed   []uint32           // to be freed with the next job
	modules map[string]*module // by moduleKey
	ptx     int64              // bytes of their text
	numbers slots
	turn    int64
	used    uint64 // the last job of any when it was given its own
}

// module is PTX that an executor has linked.
type module struct {
	number uint32
	used   int64 // turn of the last job that used it
	text   int64 // bytes
}

// moduleKey tells PTX apart: it is the text itself or, so that less is kept of long
// ones, their digest. There is no zero in PTX.
func moduleKey(ptx string) string {
	const long = 16 << 10
	if len(ptx) < long {
		return ptx
	}
	sum := sha256.Sum256([]byte(ptx))
	return "\x00" + string(sum[:])
}

// So many modules are kept in an executor, and of so many bytes of text: what was used
// least recently goes, but for what a job uses. What they are compiled to is in no
// budget.
const (
	maxModules = 256
	maxPTX     = 256 << 20
)

// maxWorkers is how many executors a GPU has at most, where each client has its
// own: every one holds a context.
const maxWorkers = 16

// slots are numbers, the least first.
type slots struct {
	next uint32
	free []uint32
}

func (s *slots) take() uint32 {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.next++
	return s.next - 1
}

func (s *slots) give(slot uint32) { s.free = append(s.free, slot) }

// newDevice starts an executor to see what the GPU is. It stays, unless each
// client is to have its own.
func (d *Daemon) newDevice(ctx context.Context, number int32, name string) (*device, error) {
	dev := &device{d: d, number: number, name: name, copies: map[objects.ID]*copied{}, workers: map[*domain]*worker{}}
	dom := d.shared
	if dom == nil {
		var err error
		if dom, err = d.newDomain(); err != nil {
			return nil, err
		}
		defer dom.host.Close()
	}
	exec, hello, err := d.cfg.Start(ctx, name, dom.host)
	if err != nil {
		return nil, err
	}
	budget := d.cfg.GPUMem
	if budget == 0 {
		budget = min(defaultGPUMem, hello.Total/10*9)
	}
	dev.limits = kgraph.Device{Name: hello.Name, Arch: hello.Arch, MaxGrid: hello.MaxGrid, MaxBlock: hello.MaxBlock,
		MaxThreads: hello.MaxThreads, MaxShared: hello.MaxShared, Budget: budget}
	dev.cache = objects.New(budget)
	switch {
	case budget > hello.Total:
		exec.Close()
		return nil, fmt.Errorf("%d bytes are wanted for buffers, and %s has %d", budget, hello.Name, hello.Total)
	case d.shared == nil:
		exec.Close()
	default:
		dev.workers[dom] = dev.newWorker(dom, exec)
	}
	dev.starts++
	return dev, nil
}

func (dev *device) newWorker(dom *domain, exec Executor) *worker {
	return &worker{dev: dev, dom: dom, exec: exec, modules: map[string]*module{}}
}

// worker is the one that serves a client, with its executor. The lane is held; the
// lock is too, and given up while an executor starts.
func (dev *device) worker(dom *domain) (*worker, error) {
	w := dev.workers[dom]
	if w == nil {
		w = dev.newWorker(dom, nil)
		dev.workers[dom] = w
	}
	if w.exec != nil {
		return w, nil
	}
	idle := dev.surplus(w)
	dev.d.mu.Unlock()
	for _, other := range idle {
		other.end()
	}
	begin := time.Now()
	exec, _, err := dev.d.cfg.Start(context.Background(), dev.name, dom.host)
	dev.d.mu.Lock()
	if err != nil {
		return nil, err
	}
	dev.starts++
	dev.d.log.Info("an executor started", "gpu", dev.name, "took", time.Since(begin).String())
	w.exec = exec
	return w, nil
}

// surplus takes executors out that have to end before another starts: those used
// least recently. The lane is held; the lock is too, and given up while what they
// hold is saved.
func (dev *device) surplus(but *worker) (out []*worker) {
	var alive []*worker
	for _, w := range dev.workers {
		if w != but && w.exec != nil {
			alive = append(alive, w)
		}
	}
	slices.SortFunc(alive, func(a, b *worker) int { return cmp.Compare(a.used, b.used) })
	for _, w := range alive[:max(len(alive)-maxWorkers+1, 0)] {
		dev.saveAll(w)
		out = append(out, &worker{dev: dev, exec: w.exec})
		dev.lost(w)
	}
	return out
}

// saveAll brings the objects to the host that a worker has alone. The lane is held;
// the lock is too, and given up meanwhile.
func (dev *device) saveAll(w *worker) {
	d := dev.d
	j := job.Job{Limit: max(w.held, w.live)}
	var saves []save
	for _, c := range dev.copies {
		if c.at != w || c.of == nil || c.of.host != nil {
			continue
		}
		s, err := c.of.toHost()
		if err != nil { // more than the address space: see newDomain
			d.log.Error("an object cannot be saved", "client", c.of.owner.name, "key", c.of.key, "err", err)
			continue
		}
		j.Save = append(j.Save, s.copy(c))
		saves = append(saves, s)
	}
	if len(saves) == 0 {
		return
	}
	d.lastJob++
	j.ID = d.lastJob
	d.mu.Unlock()
	o, err := d.do(w, &j)
	d.mu.Lock()
	d.settle(saves, err == nil && o.Code == 0)
}

// lost forgets all that an executor held, which is gone. Objects that were there
// alone are lost. Locked.
func (dev *device) lost(w *worker) {
	w.exec = nil
	for _, c := range dev.copies {
		if c.at != w {
			continue
		}
		dev.cache.Remove(c.id)
		delete(dev.copies, c.id)
		o := c.of
		c.unlink()
		if o != nil && o.host == nil && len(o.copies) == 0 && !o.gone {
			dev.d.log.Warn("a volatile object is lost with its executor", "client", o.owner.name, "key", o.key)
			dev.d.drop(o)
		}
	}
	w.held, w.live, w.freed = 0, 0, nil
	w.slots, w.numbers, w.modules, w.ptx = slots{}, slots{}, map[string]*module{}, 0
}

// end ends a worker's executor.
func (w *worker) end() {
	if w.exec != nil {
		w.exec.Close()
	}
}

// retire ends the executors of a domain that nobody uses any more, and gives its
// memory back. Locked.
func (d *Daemon) retire(dom *domain) {
	d.ends.Go(func() {
		for _, dev := range d.devices {
			dev.retire(dom)
		}
		dom.host.Close()
	})
}

// retire ends a domain's executor, which others' requests may still have give memory
// back.
func (dev *device) retire(dom *domain) {
	dev.lane.Lock()
	defer dev.lane.Unlock()
	dev.d.mu.Lock()
	w := dev.workers[dom]
	if w == nil {
		dev.d.mu.Unlock()
		return
	}
	gone := &worker{dev: dev, exec: w.exec}
	dev.lost(w)
	delete(dev.workers, dom)
	dev.d.mu.Unlock()
	gone.end()
}

// alloc finds a block for so many bytes; the cache has room. Locked.
func (w *worker) alloc(size int64, of *object) *copied {
	d := w.dev.d
	d.lastCopy++
	c := &copied{id: objects.ID(d.lastCopy), at: w, slot: w.slots.take(), size: size, of: of, pins: 1}
	w.dev.cache.Add(c.id, footprint(size))
	w.dev.copies[c.id] = c
	w.live += footprint(size)
	if of != nil {
		of.copies = append(of.copies, c)
	}
	return c
}

// link is the number of PTX text, which is loaded with this job if it is not
// there. Locked.
func (w *worker) link(text string, j *job.Job) uint32 {
	key := moduleKey(text)
	m := w.modules[key]
	if m == nil {
		for (len(w.modules) >= maxModules || w.ptx+int64(len(text)) > maxPTX) && w.unlinkOldest(j) {
		}
		m = &module{number: w.numbers.take(), text: int64(len(text))}
		w.modules[key] = m
		w.ptx += m.text
		j.Load = append(j.Load, job.Module{Number: m.number, PTX: text})
	}
	m.used = w.turn
	return m.number
}

// unlinkOldest has the module that was used least recently go, unless this job
// uses it.
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

// forget takes a module out that is not there any more.
func (w *worker) forget(key string) {
	m := w.modules[key]
	w.numbers.give(m.number)
	w.ptx -= m.text
	delete(w.modules, key)
}

// free hands the job the blocks that are to be freed. Their numbers may be used
// again with it: it frees before it allocates. Locked.
func (w *worker) free(j *job.Job) {
	j.Free = append(j.Free, w.freed...)
	for _, slot := range w.freed {
		w.slots.give(slot)
	}
	w.freed = nil
}
