package residency

// Cache is the models on GPUs, each GPU with its own memory and its own order
// of use (LALB, section III-D; R18).
type Cache struct {
	mem     int64 // bytes of each GPU; 0 is no limit
	used    []int64
	order   []list    // by GPU: models, least recently used first
	entries []entry   // all there are
	freed   []int32   // entries to use again
	of      [][]int32 // by model: its entries, one a GPU at most, in order of GPU
	changes []Change
}

type entry struct {
	model, gpu int32
	mem        int64
	link       link
}

// NewCache is empty caches.
func NewCache(gpus, models int, mem int64) *Cache {
	c := &Cache{mem: mem, used: make([]int64, gpus), order: make([]list, gpus), of: make([][]int32, models)}
	for i := range c.order {
		c.order[i] = list{none, none}
	}
	return c
}

// Fits says whether a model of that size can be on a GPU at all.
func (c *Cache) Fits(mem int64) bool { return c.mem == 0 || mem <= c.mem }

// Has says whether a GPU has the model.
func (c *Cache) Has(gpu, model int32) bool { return c.find(gpu, model) != none }

func (c *Cache) find(gpu, model int32) int32 {
	for _, e := range c.of[model] {
		if c.entries[e].gpu == gpu {
			return e
		}
	}
	return none
}

// Copies is on how many GPUs the model is.
func (c *Cache) Copies(model int32) int { return len(c.of[model]) }

// On calls yield with each GPU that has the model, lowest index first, until it
// returns false.
func (c *Cache) On(model int32, yield func(gpu int32) bool) {
	for _, e := range c.of[model] {
		if !yield(c.entries[e].gpu) {
			return
		}
	}
}

// Use makes a model the one its GPU used last, loading it in place of those
// used least recently if it is not there. Hit says whether it was.
func (c *Cache) Use(gpu, model int32, mem int64) (hit bool) {
	e := c.find(gpu, model)
	if e != none {
		c.drop(gpu, e)
		c.append(gpu, e)
		return true
	}
	for c.mem != 0 && c.used[gpu]+mem > c.mem && c.order[gpu].head != none {
		c.evict(gpu)
	}
	if last := len(c.freed) - 1; last >= 0 {
		e = c.freed[last]
		c.freed = c.freed[:last]
	} else {
		e = int32(len(c.entries))
		c.entries = append(c.entries, entry{})
	}
	c.entries[e] = entry{model: model, gpu: gpu, mem: mem}
	c.used[gpu] += mem
	c.append(gpu, e)
	c.of[model] = append(c.of[model], e)
	for i := len(c.of[model]) - 1; i > 0 && c.entries[c.of[model][i-1]].gpu > gpu; i-- {
		c.of[model][i], c.of[model][i-1] = c.of[model][i-1], c.of[model][i]
	}
	return false
}

func (c *Cache) evict(gpu int32) {
	e := c.order[gpu].head
	c.drop(gpu, e)
	it := &c.entries[e]
	c.used[gpu] -= it.mem
	mine := c.of[it.model]
	for i := range mine {
		if mine[i] == e {
			c.of[it.model] = append(mine[:i], mine[i+1:]...)
			break
		}
	}
	c.freed = append(c.freed, e)
	c.changes = append(c.changes, Change{Removed: true, GPU: gpu, Function: it.model, Container: none})
}

// Changes are the models that left since it was asked for last: Function is
// the model. They hold until the next call of the cache.
func (c *Cache) Changes() []Change {
	changes := c.changes
	c.changes = c.changes[:0]
	return changes
}

func (c *Cache) append(gpu, e int32) {
	l := &c.order[gpu]
	c.entries[e].link = link{prev: l.tail, next: none}
	if l.tail == none {
		l.head = e
	} else {
		c.entries[l.tail].link.next = e
	}
	l.tail = e
}

func (c *Cache) drop(gpu, e int32) {
	l, at := &c.order[gpu], c.entries[e].link
	if at.prev == none {
		l.head = at.next
	} else {
		c.entries[at.prev].link.next = at.next
	}
	if at.next == none {
		l.tail = at.prev
	} else {
		c.entries[at.next].link.prev = at.prev
	}
}
