// Package objects decides which objects leave the memory of a GPU when others
// need room (KaaS, section 4.1.3): of those that nobody uses now, first the ones
// that were used once, then the others, each least recently used first.
package objects

import "fmt"

// ID names an object in the cache.
type ID int64

// Cache is the objects in one GPU's memory. It is not safe for concurrent use.
type Cache struct {
	budget, used int64
	entries      map[ID]*entry
	once, often  list // those that nobody uses, least recently used first
}

type entry struct {
	id         ID
	size       int64
	pins, uses int
	prev, next *entry
	in         *list // nil while it is used
}

// list is a ring through its own entry.
type list struct{ entry }

func (l *list) init() { l.prev, l.next = &l.entry, &l.entry }

func (l *list) push(e *entry) {
	e.prev, e.next = l.prev, &l.entry
	l.prev.next, l.prev = e, e
	e.in = l
}

func (e *entry) unlink() {
	if e.in != nil {
		e.prev.next, e.next.prev = e.next, e.prev
		e.prev, e.next, e.in = nil, nil, nil
	}
}

// New is a cache of so many bytes.
func New(budget int64) *Cache {
	c := &Cache{budget: budget, entries: map[ID]*entry{}}
	c.once.init()
	c.often.init()
	return c
}

// Budget and Used are bytes.
func (c *Cache) Budget() int64 { return c.budget }
func (c *Cache) Used() int64   { return c.used }

// Len is how many objects there are.
func (c *Cache) Len() int { return len(c.entries) }

// Room names objects that have to leave so that so many bytes more fit, in the
// order in which they go; false when there is no room even without all that
// nobody uses. It changes nothing: the caller says Remove of each.
func (c *Cache) Room(bytes int64) (leave []ID, ok bool) {
	missing := c.used + bytes - c.budget
	for _, l := range []*list{&c.once, &c.often} {
		for e := l.next; e != &l.entry && missing > 0; e = e.next {
			leave = append(leave, e.id)
			missing -= e.size
		}
	}
	return leave, missing <= 0
}

// Add puts an object in that is in use, for the first time. There has to be room.
func (c *Cache) Add(id ID, size int64) {
	if c.entries[id] != nil || c.used+size > c.budget {
		panic(fmt.Sprintf("objects: %d of %d bytes beside %d of %d", id, size, c.used, c.budget))
	}
	c.entries[id] = &entry{id: id, size: size, pins: 1, uses: 1}
	c.used += size
}

// Use says that somebody uses an object from now on.
func (c *Cache) Use(id ID) {
	e := c.entries[id]
	e.unlink()
	e.pins++
	e.uses++
}

// Leave says that somebody uses it no more.
func (c *Cache) Leave(id ID) {
	e := c.entries[id]
	if e.pins--; e.pins > 0 {
		return
	}
	if e.uses == 1 {
		c.once.push(e)
	} else {
		c.often.push(e)
	}
}

// Remove takes an object out, in use or not.
func (c *Cache) Remove(id ID) {
	if e := c.entries[id]; e != nil {
		e.unlink()
		c.used -= e.size
		delete(c.entries, id)
	}
}
