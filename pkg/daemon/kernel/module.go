package kernel

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// storedModule is code that a client has stored under a name. It counts as memory of objects until it is removed and
// the last request that uses it has finished.
type storedModule struct {
	name    string
	code    *kgraph.Code
	bytes   int64 // charged to the host's budget
	users   int   // requests in progress
	dropped bool
}

// storeModule stores code under a name, in place of the code that has the name. The caller holds the lock.
func (q *scheduler) storeModule(client, name string, code *kgraph.Code) *kgraph.Problem {
	m := &storedModule{name: name, code: code, bytes: code.MemorySize()}
	if p := q.checkHostBudget(m.bytes); p != nil {
		return p
	}
	c, p := q.client(client)
	if p != nil {
		return p
	}
	old := c.modules[name]
	if old == nil {
		if p := q.reserve(c, 1); p != nil {
			return p
		}
	}
	q.charge(c, m.bytes)
	c.modules[name] = m
	if old != nil {
		q.dropModule(c, old)
	}
	return nil
}

// removeModule removes a module. The caller holds the lock.
func (q *scheduler) removeModule(client, name string) *kgraph.Problem {
	c := q.clients[client]
	if c == nil || c.modules[name] == nil {
		return problem(kgraph.NotFound, "", "there is no module %q", name)
	}
	q.unreserve(c, 1)
	q.dropModule(c, c.modules[name])
	delete(c.modules, name)
	return nil
}

// dropModule frees the memory of a module that is no longer stored, unless requests use it. The caller holds the lock.
func (q *scheduler) dropModule(c *client, m *storedModule) {
	m.dropped = true
	if m.users == 0 {
		q.charge(c, -m.bytes)
	}
}

// resolveModules sets the code of the request's modules that are stored. It returns a problem if there is no such
// module. A nil client has none. The caller holds the lock.
func (c *client) resolveModules(r *request, sigs signatures) *kgraph.Problem {
	for i := range r.graph.Modules {
		m := &r.graph.Modules[i]
		if m.Stored == "" {
			continue
		}
		var stored *storedModule
		if c != nil {
			stored = c.modules[m.Stored]
		}
		if stored == nil {
			return problem(kgraph.NotFound, "/modules/"+kgraph.Pointer(m.Name)+"/stored", "there is no module %q", m.Stored)
		}
		m.Resolve(stored.code)
		if stored.code.Signature != nil {
			sigs[m.PTX] = stored.code.Signature
		}
		r.modules = append(r.modules, stored)
	}
	return nil
}

// releaseModules releases the stored modules of a request that has finished. The caller holds the lock.
func (q *scheduler) releaseModules(r *request) {
	for _, m := range r.modules {
		if m.users--; m.dropped {
			q.dropModule(r.client, m)
		}
	}
	r.modules = nil
}

// receiveModule reads, checks and stores a module.
func (q *scheduler) receiveModule(ctx context.Context, client, name string, body *bodyReader, length int64) *kgraph.Problem {
	memory := q.requestMemory.reserve(client)
	defer memory.release()
	text, p := memory.read(body, length)
	if p != nil {
		return q.countRefusal(memory, p)
	}
	body.clearDeadline()
	release, p := memory.acquireParser(ctx)
	if p != nil {
		return p
	}
	code, err := kgraph.ReadCode(string(text))
	release()
	if err != nil {
		return problem(kgraph.BadRequest, "", "the module %q: %v", name, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.storeModule(client, name, code)
}

// Module describes a stored module in a list.
type Module struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"` // ptx, cubin or fatbin
	Size    int64    `json:"size"`
	Kernels []string `json:"kernels"` // sorted; empty if they are unknown, as in compressed code
}

// modulesOf returns descriptions of a client's modules, sorted by name. The caller holds the lock.
func (q *scheduler) modulesOf(client string) []Module {
	list := []Module{}
	c := q.clients[client]
	if c == nil {
		return list
	}
	for _, m := range c.modules {
		kernels := map[string]bool{}
		if s := m.code.Signature; s != nil {
			for name := range s.Entries {
				kernels[name] = true
			}
		}
		for _, image := range m.code.Images {
			for name := range image.Entries {
				kernels[name] = true
			}
		}
		list = append(list, Module{m.name, m.code.Kind(), int64(len(m.code.Text)), append([]string{}, slices.Sorted(maps.Keys(kernels))...)})
	}
	slices.SortFunc(list, func(a, b Module) int { return strings.Compare(a.Name, b.Name) })
	return list
}
