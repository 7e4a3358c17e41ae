package bolt

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Memory is a Store in memory, for tests of what uses one. The zero value is
// empty and ready.
type Memory struct {
	mu        sync.Mutex
	functions map[string]function.Function
	instances map[string]instance.Record
}

var _ Store = (*Memory)(nil)

// Functions returns the applied functions by name.
func (m *Memory) Functions(ctx context.Context) ([]function.Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return values(m.functions), ctx.Err()
}

// Apply adds the functions, in place of those of the same names.
func (m *Memory) Apply(ctx context.Context, functions ...function.Function) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.functions == nil {
		m.functions = map[string]function.Function{}
	}
	for _, f := range functions {
		m.functions[f.Name] = f
	}
	return ctx.Err()
}

// Remove removes the functions.
func (m *Memory) Remove(_ context.Context, names ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if missing := absent(names, m.applied); len(missing) > 0 {
		return &NotFoundError{Kind: "function", Names: missing}
	}
	if err := checkUnused(names, values(m.instances)); err != nil {
		return err
	}
	for _, name := range names {
		delete(m.functions, name)
	}
	return nil
}

// Instances returns the records by id.
func (m *Memory) Instances(ctx context.Context) ([]instance.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return values(m.instances), ctx.Err()
}

// Reserve adds records of instances that are about to start.
func (m *Memory) Reserve(_ context.Context, records ...instance.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := checkReserve(records, m.started, m.applied); err != nil {
		return err
	}
	if m.instances == nil {
		m.instances = map[string]instance.Record{}
	}
	for _, r := range records {
		m.instances[r.ID] = r
	}
	return nil
}

// Update replaces a record.
func (m *Memory) Update(_ context.Context, record instance.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started(record.ID) {
		return &NotFoundError{Kind: "instance", Names: []string{record.ID}}
	}
	m.instances[record.ID] = record
	return nil
}

// Forget removes the records with these ids.
func (m *Memory) Forget(_ context.Context, ids ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		delete(m.instances, id)
	}
	return nil
}

func (m *Memory) applied(name string) bool { _, ok := m.functions[name]; return ok }
func (m *Memory) started(id string) bool   { _, ok := m.instances[id]; return ok }

func values[V any](m map[string]V) []V {
	var out []V
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[key])
	}
	return out
}
