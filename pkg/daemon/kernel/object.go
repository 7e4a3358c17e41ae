package kernel

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
	"github.com/gfaas/gfaas/pkg/policy/objects"
)

// object is what a client stored under a key. It never changes: another takes its
// place. It is in one tier at least, or about to be.
type object struct {
	owner    *client
	key      string
	size     int64
	volatile bool
	host     *region   // nil: on a GPU alone
	home     *device   // where it is then; who holds its lane knows
	copies   []*copied // on GPUs
	readers  int       // who reads the host's bytes, or brings them there
	gone     bool      // no longer stored; who reads it may go on
	used     bool      // by a request
}

// copied is a block of a GPU's memory, of an object or of what a request works on.
type copied struct {
	id   objects.ID
	at   *worker
	slot uint32
	size int64
	pins int
	of   *object // nil: no object's, so that it goes when nobody uses it
}

// pin has a copy stay. Locked.
func (c *copied) pin() {
	c.pins++
	c.at.dev.cache.Use(c.id)
}

// unpin lets it go again. Locked.
func (d *Daemon) unpin(c *copied) {
	c.pins--
	if c.at.dev.copies[c.id] != c {
		return // gone with its executor
	}
	c.at.dev.cache.Leave(c.id)
	if c.pins == 0 && c.of == nil {
		d.discard(c)
	}
}

// on is the object's copy on a device; nil if it has none.
func (o *object) on(dev *device) *copied {
	for _, c := range o.copies {
		if c.at.dev == dev {
			return c
		}
	}
	return nil
}

// store puts an object in the place of its key. It is charged already. Locked.
func (d *Daemon) store(o *object) {
	if old := o.owner.objects[o.key]; old != nil {
		d.drop(old)
	}
	o.owner.objects[o.key] = o
	d.objects++
}

// drop takes an object out of the store. Locked.
func (d *Daemon) drop(o *object) {
	if o.gone {
		return
	}
	o.gone = true
	if o.owner.objects[o.key] == o {
		delete(o.owner.objects, o.key)
		d.objects--
	}
	for _, c := range slices.Clone(o.copies) {
		c.unlink()
		if c.pins == 0 {
			d.discard(c)
		}
	}
	d.release(o)
}

// release gives an object's memory back when it is gone and nobody reads it. Locked.
func (d *Daemon) release(o *object) {
	if !o.gone || o.readers > 0 {
		return
	}
	if o.host != nil {
		o.host.give()
		o.host = nil
	}
	d.charge(o.owner, -o.size)
}

// discard has a block be freed with the worker's next job. Locked.
func (d *Daemon) discard(c *copied) {
	c.at.dev.cache.Remove(c.id)
	delete(c.at.dev.copies, c.id)
	c.at.freed = append(c.at.freed, c.slot)
	c.at.live -= footprint(c.size)
	c.unlink()
}

// unlink has an object forget a copy.
func (c *copied) unlink() {
	if c.of != nil {
		c.of.copies = slices.DeleteFunc(c.of.copies, func(o *copied) bool { return o == c })
		c.of = nil
	}
}

// room says whether the host's budget has room for so many bytes. Locked.
func (d *Daemon) room(bytes int64) *Problem {
	if bytes > d.cfg.HostMem-d.hostUsed { // a sum could be more than an int64 holds
		return problem(kgraph.TooLarge, "", "the host tier is full: %d bytes more, and %d of %d are taken", bytes, d.hostUsed, d.cfg.HostMem)
	}
	return nil
}

// reserve finds places for so many objects more, which unreserve gives back when they
// are stored or will not be. What is kept of an object beside its bytes is nowhere
// counted: so there are only so many, of a client as many as are left for others.
// Locked.
func (d *Daemon) reserve(c *client, objects int) *Problem {
	has := len(c.objects) + c.coming
	if objects > 0 && has+objects > d.cfg.MaxObjects-d.objects-objects {
		return problem(kgraph.TooLarge, "", "%d objects more: %s has %d, all clients have %d of %d, and as many are to be left as one client has",
			objects, c.name, has, d.objects, d.cfg.MaxObjects)
	}
	c.coming += objects
	d.objects += objects
	return nil
}

// unreserve gives places back. Locked.
func (d *Daemon) unreserve(c *client, objects int) {
	c.coming -= objects
	d.objects -= objects
}

// charge counts bytes against the host's budget, as a client's. Locked.
func (d *Daemon) charge(c *client, bytes int64) {
	d.hostUsed += bytes
	c.bytes += bytes
}

// footprint is what a block of that size takes of a GPU's budget.
func footprint(size int64) int64 { return job.Footprint(size) }
