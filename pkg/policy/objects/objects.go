// Package objects decides which objects are evicted from the memory of a GPU when others need room (KaaS,
// section 4.1.3). Only unused objects can be evicted: first those that were used once, then the others, each
// group in the order of the last use.
package objects

import (
	"container/list"
	"fmt"
	"iter"
	"maps"
)

// Cache tracks the objects in one GPU's memory, which K identifies. It is not safe for concurrent use.
type Cache[K comparable] struct {
	budget, used int64
	entries      map[K]*entry
	once, often  *list.List // unused objects that were used once, or more often; least recently used first
}

type entry struct {
	size       int64
	pins, uses int
	position   *list.Element // in once or often; nil before the first Leave
}

// New returns a cache with a budget in bytes.
func New[K comparable](budget int64) *Cache[K] {
	return &Cache[K]{budget: budget, entries: map[K]*entry{}, once: list.New(), often: list.New()}
}

// Budget and Used return bytes.
func (c *Cache[K]) Budget() int64 { return c.budget }
func (c *Cache[K]) Used() int64   { return c.used }

// Len returns the number of objects.
func (c *Cache[K]) Len() int { return len(c.entries) }

// All returns all objects, in no particular order. The caller may remove objects meanwhile.
func (c *Cache[K]) All() iter.Seq[K] { return maps.Keys(c.entries) }

// Has reports whether the cache has an object.
func (c *Cache[K]) Has(id K) bool { return c.entries[id] != nil }

// Room returns the objects to evict, in order, so that an object of the given size fits. It returns false if evicting
// all unused objects would not make enough room. It changes nothing: the caller must call Remove for each object.
func (c *Cache[K]) Room(bytes int64) (victims []K, ok bool) {
	missing := c.used + bytes - c.budget
	for _, unused := range []*list.List{c.once, c.often} {
		for e := unused.Front(); e != nil && missing > 0; e = e.Next() {
			id := e.Value.(K)
			victims = append(victims, id)
			missing -= c.entries[id].size
		}
	}
	return victims, missing <= 0
}

// Add adds an object, which is in use. There must be room for it.
func (c *Cache[K]) Add(id K, size int64) {
	if c.Has(id) || c.used+size > c.budget {
		panic(fmt.Sprintf("objects: %v has %d bytes, but %d of %d bytes are in use", id, size, c.used, c.budget))
	}
	c.entries[id] = &entry{size: size, pins: 1, uses: 1}
	c.used += size
}

// Use counts another use of an object.
func (c *Cache[K]) Use(id K) {
	e := c.entries[id]
	c.markUsed(e)
	e.pins++
	e.uses++
}

// markUsed removes an object from the lists of unused ones.
func (c *Cache[K]) markUsed(e *entry) {
	if e.position != nil {
		c.once.Remove(e.position) // no effect unless it is in that list
		c.often.Remove(e.position)
	}
}

// Leave ends a use of an object.
func (c *Cache[K]) Leave(id K) {
	e := c.entries[id]
	if e.pins--; e.pins > 0 {
		return
	}
	if e.uses == 1 {
		e.position = c.once.PushBack(id)
	} else {
		e.position = c.often.PushBack(id)
	}
}

// Remove removes an object, in use or not.
func (c *Cache[K]) Remove(id K) {
	if e := c.entries[id]; e != nil {
		c.markUsed(e)
		c.used -= e.size
		delete(c.entries, id)
	}
}
