package kernel

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// object is a client's data under a key. It is immutable: a new value is a new object. Its
// bytes are on the host, on a GPU or on their way there.
type object struct {
	owner    *client
	key      string
	size     int64
	volatile bool
	host     *region  // bytes on the host; nil: the only copy is on a GPU
	home     *device  // if host is nil, that GPU; use the copy only with the device's lane held
	copies   []*block // copies on GPUs
	readers  int      // users of the host bytes, transfers to the host included
	dropped  bool     // removed from the store; readers may still use its bytes
	used     bool     // a request has read or written it
}

// copyOn returns the object's copy copyOn a device, or nil if it has none.
func (o *object) copyOn(dev *device) *block {
	for _, c := range o.copies {
		if c.worker.dev == dev {
			return c
		}
	}
	return nil
}

// block is a block of GPU memory. It holds an object's copy or a request's working data.
type block struct {
	worker *worker
	number uint32
	size   int64
	pins   int     // uses by requests in progress
	object *object // nil: no object; the block is freed with its last pin
}

// pin prevents the eviction of a copy. The caller holds the lock.
func (c *block) pin() {
	c.pins++
	c.worker.dev.cache.Use(c)
}

// unpin releases a pin. The caller holds the lock.
func (c *block) unpin() {
	c.pins--
	if !c.worker.dev.cache.Has(c) {
		return // lost with its executor
	}
	c.worker.dev.cache.Leave(c)
	if c.pins == 0 && c.object == nil {
		c.discard()
	}
}

// discard makes the worker's next job free a block. The caller holds the lock.
func (c *block) discard() {
	c.worker.dev.cache.Remove(c)
	c.worker.freed = append(c.worker.freed, c.number)
	c.worker.live -= job.Footprint(c.size)
	c.unlink()
}

// unlink detaches a copy from its object.
func (c *block) unlink() {
	if c.object != nil {
		c.object.copies = slices.DeleteFunc(c.object.copies, func(o *block) bool { return o == c })
		c.object = nil
	}
}

// save is a pending transfer of an object to the host.
type save struct {
	o  *object
	to *region
}

// task is a job for a worker, and the objects that it copies to the host.
type task struct {
	w     *worker
	job   job.Job
	saves []save // completed by job
}

// save adds the transfer of the object in block c to the host. It reserves the host memory;
// completeSaves assigns that memory to the object or frees it. The caller holds the lock.
func (t *task) save(c *block) error {
	o := c.object
	to, err := o.owner.dom.alloc(o.size)
	if err != nil {
		return err
	}
	o.readers++
	t.job.Save = append(t.job.Save, job.Copy{Block: c.number, Offset: to.offset, Size: o.size})
	t.saves = append(t.saves, save{o, to})
	return nil
}

// store manages the objects on the host and the budgets for their bytes and number.
type store struct {
	*core
	bytes   int64 // charged for objects in any tier, reserved objects and answers
	objects int   // stored and reserved objects
}

// newDomain reserves the host memory of a group of executors. Its address range is four times the
// budget plus 256 MiB, so that fragmentation does not make allocations fail. Unused addresses take
// no memory.
func (st *store) newDomain() (*domain, error) {
	size := 4*st.cfg.HostMem + 256<<20
	h, err := st.cfg.NewHost(size)
	if err != nil {
		return nil, err
	}
	return &domain{host: h, free: extents{{0, size}}}, nil
}

// checkHostBudget returns a problem if less than the given number of bytes of the host's budget
// remain. The caller holds the lock.
func (st *store) checkHostBudget(bytes int64) *kgraph.Problem {
	if bytes > st.cfg.HostMem-st.bytes { // a sum could overflow
		return problem(kgraph.TooLarge, "", "the host tier is full: %d more bytes do not fit, %d of %d are in use", bytes, st.bytes, st.cfg.HostMem)
	}
	return nil
}

// reserve reserves places for more objects. The caller frees the places with unreserve when the
// objects are stored or will not be. No byte budget covers an object's metadata, so the number
// of objects is limited: a client may have at most as many as remain free afterwards. For
// example, a client that is alone may have half of them. The caller holds the lock.
func (st *store) reserve(c *client, objects int) *kgraph.Problem {
	count := len(c.objects) + c.reserved
	if objects > 0 && count+objects > st.cfg.MaxObjects-st.objects-objects {
		return problem(kgraph.TooLarge, "", "%d more objects do not fit: %s has %d, all clients have %d of %d, and a client can have at most as many as remain for the others",
			objects, c.name, count, st.objects, st.cfg.MaxObjects)
	}
	c.reserved += objects
	st.objects += objects
	return nil
}

// unreserve frees reserved places. The caller holds the lock.
func (st *store) unreserve(c *client, objects int) {
	c.reserved -= objects
	st.objects -= objects
}

// charge adds bytes to the host's usage and to the client's. The caller holds the lock.
func (st *store) charge(c *client, bytes int64) {
	st.bytes += bytes
	c.bytes += bytes
}

// add stores an object under its key and drops the previous one. The object's bytes must be
// charged already. The caller holds the lock.
func (st *store) add(o *object) {
	if old := o.owner.objects[o.key]; old != nil {
		st.drop(old)
	}
	o.owner.objects[o.key] = o
	st.objects++
}

// drop removes an object from the store and from GPUs. The caller holds the lock.
func (st *store) drop(o *object) {
	if o.dropped {
		return
	}
	o.dropped = true
	if o.owner.objects[o.key] == o {
		delete(o.owner.objects, o.key)
		st.objects--
	}
	for _, c := range slices.Clone(o.copies) {
		c.unlink()
		if c.pins == 0 {
			c.discard()
		}
	}
	st.release(o)
}

// unread releases one reader of an object's host bytes.
func (st *store) unread(o *object) {
	st.mu.Lock()
	defer st.mu.Unlock()
	o.readers--
	st.release(o)
}

// release frees an object's memory on the host if the object was dropped and has no reader.
// The caller holds the lock.
func (st *store) release(o *object) {
	if !o.dropped || o.readers > 0 {
		return
	}
	if o.host != nil {
		o.host.free()
		o.host = nil
	}
	st.charge(o.owner, -o.size)
}

// completeSaves completes transfers to the host. If they failed, the objects are lost. It skips
// transfers that are already completed. The caller holds the lock.
func (st *store) completeSaves(saves []save, ok bool) {
	for i := range saves {
		s := saves[i]
		if saves[i].to = nil; s.to == nil {
			continue // completed before
		}
		s.o.readers--
		if ok {
			s.o.host, s.o.home = s.to, nil
		} else {
			s.to.free()
			if !s.o.dropped {
				st.log.Warn("a volatile object was lost with its executor", "client", s.o.owner.name, "key", s.o.key)
				st.drop(s.o)
				continue
			}
		}
		st.release(s.o)
	}
}
