package instancetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// FakeCatalog is a ports.Catalog in memory. The zero value is empty and ready.
type FakeCatalog struct {
	mu        sync.Mutex
	functions map[string]function.Function
	instances map[string]instance.Record
	applied   map[string]time.Time // replaced as a whole
	revision  ports.Revision       // the current revision minus one
	written   chan struct{}        // closed and replaced by each write
}

var _ ports.Catalog = (*FakeCatalog)(nil)

// List returns the state.
func (c *FakeCatalog) List(ctx context.Context) (ports.Listing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listing(), ctx.Err()
}

func (c *FakeCatalog) listing() ports.Listing {
	return ports.Listing{Revision: c.revision + 1, Functions: values(c.functions), Instances: values(c.instances), Applied: c.applied}
}

// Watch waits for a write after the revision last.
func (c *FakeCatalog) Watch(ctx context.Context, last ports.Revision) (ports.Listing, error) {
	for {
		c.mu.Lock()
		c.prepare()
		l, written := c.listing(), c.written
		c.mu.Unlock()
		if l.Revision != last {
			return l, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ports.Listing{}, ctx.Err()
		case <-written:
		}
	}
}

func (c *FakeCatalog) prepare() {
	if c.written == nil {
		c.functions, c.instances, c.written = map[string]function.Function{}, map[string]instance.Record{}, make(chan struct{})
	}
}

// write makes a change if check returns nil.
func (c *FakeCatalog) write(ctx context.Context, check func() error, change func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prepare()
	if err := errors.Join(ctx.Err(), check()); err != nil {
		return err
	}
	change()
	c.revision++
	close(c.written)
	c.written = make(chan struct{})
	return nil
}

func (c *FakeCatalog) isApplied(name string) bool { _, ok := c.functions[name]; return ok }
func (c *FakeCatalog) inUse(id string) bool       { _, ok := c.instances[id]; return ok }

func always() error { return nil }

// Apply adds the functions, replacing existing ones of the same names.
func (c *FakeCatalog) Apply(ctx context.Context, functions ...function.Function) error {
	return c.write(ctx, func() error { return ports.CheckApply(values(c.functions), functions) }, func() {
		applied := maps.Clone(c.applied)
		if applied == nil {
			applied = map[string]time.Time{}
		}
		for _, f := range functions {
			if !reflect.DeepEqual(c.functions[f.Name], f) {
				applied[f.Name] = time.Now().UTC().Truncate(time.Second)
			}
			c.functions[f.Name] = f
		}
		c.applied = applied
	})
}

// Change modifies the function with this name by change.
func (c *FakeCatalog) Change(ctx context.Context, name string, change func(*function.Function) error) error {
	var f function.Function
	return c.write(ctx, func() error {
		if !c.isApplied(name) {
			return &ports.NotFoundError{Kind: "function", Names: []string{name}}
		}
		f = c.functions[name]
		if err := change(&f); err != nil {
			return err
		}
		return ports.CheckApply(values(c.functions), []function.Function{f})
	}, func() { c.functions[name] = f })
}

// Remove removes the functions.
func (c *FakeCatalog) Remove(ctx context.Context, names ...string) error {
	return c.write(ctx, func() error { return ports.CheckRemove(names, c.isApplied, values(c.instances)) }, func() {
		for _, name := range names {
			delete(c.functions, name)
		}
	})
}

// Reserve adds records of instances that are about to start.
func (c *FakeCatalog) Reserve(ctx context.Context, records ...instance.Record) error {
	return c.write(ctx, func() error { return ports.CheckReserve(records, c.inUse, c.isApplied) }, func() {
		for _, r := range records {
			c.instances[r.ID] = r
		}
	})
}

// Update replaces a record.
func (c *FakeCatalog) Update(ctx context.Context, record instance.Record) error {
	return c.write(ctx, func() error {
		if !c.inUse(record.ID) {
			return &ports.NotFoundError{Kind: "instance", Names: []string{record.ID}}
		}
		return nil
	}, func() { c.instances[record.ID] = record })
}

// Forget removes the records with these IDs.
func (c *FakeCatalog) Forget(ctx context.Context, ids ...string) error {
	return c.write(ctx, always, func() {
		for _, id := range ids {
			delete(c.instances, id)
		}
	})
}

func values[V any](m map[string]V) []V {
	var out []V
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[key])
	}
	return out
}

// RunCatalog checks that a Catalog conforms to ports.Catalog. Each call of open returns two
// catalogs that share a new, empty state, as in two programs.
func RunCatalog(t *testing.T, open func(*testing.T) (first, second ports.Catalog)) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, first, second ports.Catalog)
	}{
		{"empty", catalogEmpty},
		{"functions", catalogFunctions},
		{"changes of functions are atomic", catalogChange},
		{"names and aliases are unique", catalogAliases},
		{"functions with instances cannot be removed", catalogInUse},
		{"records round-trip", catalogRecords},
		{"reservations are atomic", catalogReserve},
		{"update fails without a record", catalogUpdate},
		{"concurrent reservations of an id succeed once", catalogRace},
		{"each change has a new revision", catalogRevisions},
		{"watch returns changes", catalogWatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, second := open(t)
			c.run(t, first, second)
		})
	}
}

func mustList(t *testing.T, s ports.Catalog) ports.Listing {
	t.Helper()
	l, err := s.List(t.Context())
	must(t, err)
	return l
}

func sampleFunction(name string) function.Function {
	return function.Function{
		Name: name, Command: []string{"./server", "--fast"}, Env: map[string]string{"A": "1"}, Port: 8080,
		Contract: "http", Kind: "inference", SLO: 69 * time.Millisecond, GPUMem: 100 * gpu.MiB,
		GPUs: 1, Weight: 1, Tenant: "default", Restart: "no", Unmanaged: function.DefaultUnmanaged, Model: &function.Model{Name: "m", Size: gpu.MiB},
		Scale: function.DefaultScale, Inflight: function.DefaultInflight, Dir: "/srv/f",
	}
}

func sampleRecord(id, fn string) instance.Record {
	return instance.Record{
		ID: id, Function: fn, Runtime: "process", GPUs: []string{"sim"}, State: instance.Starting,
		Slice:      gpu.Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: gpu.GiB},
		Registered: []string{id}, Contract: "http", Turns: [][]gpu.Turn{nil, {{From: 0.1, To: 0.25}}}, Restarts: 2,
		Handle: instance.Handle{
			Runtime: "process", PID: 42, StartTime: 7, Address: "127.0.0.1:1", LogPath: "/tmp/l",
			Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, s ports.Catalog) string {
	t.Helper()
	var out []string
	for _, f := range mustList(t, s).Functions {
		out = append(out, f.Name)
	}
	return fmt.Sprint(out)
}

func ids(t *testing.T, s ports.Catalog) string {
	t.Helper()
	var out []string
	for _, r := range mustList(t, s).Instances {
		out = append(out, r.ID)
	}
	return fmt.Sprint(out)
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func catalogEmpty(t *testing.T, s, _ ports.Catalog) {
	expect(t, names(t, s), "[]")
	expect(t, ids(t, s), "[]")
	var missing *ports.NotFoundError
	if err := s.Remove(t.Context(), "nothing"); !errors.As(err, &missing) {
		t.Errorf("remove from an empty state: %v", err)
	}
	expect(t, names(t, s), "[]")
	expect(t, ids(t, s), "[]")
	must(t, s.Forget(t.Context(), "nobody"))
}

func catalogFunctions(t *testing.T, s, _ ports.Catalog) {
	ctx := t.Context()
	want := sampleFunction("b")
	before := time.Now().Truncate(time.Second)
	must(t, s.Apply(ctx, want, sampleFunction("a")))
	expect(t, names(t, s), "[a b]")
	first := mustList(t, s)
	if at := first.Applied["b"]; at.Before(before) || at.After(time.Now()) {
		t.Errorf("time of the first Apply: got %v, want %v or a little later", at, before)
	}
	must(t, s.Apply(ctx, want))
	must(t, s.Change(ctx, "b", func(f *function.Function) error { f.Scale.Min = 1; return nil }))
	must(t, s.Change(ctx, "b", func(f *function.Function) error { f.Scale.Min = 0; return nil }))
	if at := mustList(t, s).Applied["b"]; !at.Equal(first.Applied["b"]) {
		t.Errorf("time of an unchanged function: got %v, want %v", at, first.Applied["b"])
	}
	list := mustList(t, s).Functions
	if !reflect.DeepEqual(list[1], want) {
		t.Errorf("got %+v, want %+v", list[1], want)
	}
	want.SLO = time.Second
	must(t, s.Apply(ctx, want))
	list = mustList(t, s).Functions
	if len(list) != 2 || list[1].SLO != time.Second {
		t.Errorf("apply did not replace: %+v", list)
	}
	var missing *ports.NotFoundError
	if err := s.Remove(ctx, "a", "nope"); !errors.As(err, &missing) || fmt.Sprint(missing.Names) != "[nope]" {
		t.Errorf("removing a missing function: %v", err)
	}
	expect(t, names(t, s), "[a b]")
	must(t, s.Remove(ctx, "a"))
	expect(t, names(t, s), "[b]")
}

func catalogChange(t *testing.T, s, second ports.Catalog) {
	ctx := t.Context()
	first := sampleFunction("f")
	first.Scale.Max = 100
	must(t, s.Apply(ctx, first))
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			by := []ports.Catalog{s, second}[n%2]
			if err := by.Change(context.WithoutCancel(ctx), "f", func(f *function.Function) error { f.Scale.Min++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	want := first
	want.Scale.Min = 20
	if list := mustList(t, second).Functions; len(list) != 1 || !reflect.DeepEqual(list[0], want) {
		t.Errorf("got %+v, want %+v", list, want)
	}
	before := mustList(t, s).Revision
	refused := errors.New("refused")
	if err := s.Change(ctx, "f", func(f *function.Function) error { f.Scale.Min = 0; return refused }); !errors.Is(err, refused) {
		t.Errorf("refused change: %v", err)
	}
	var missing *ports.NotFoundError
	if err := s.Change(ctx, "g", func(*function.Function) error { t.Error("called"); return nil }); !errors.As(err, &missing) {
		t.Errorf("change of a missing function: %v", err)
	}
	if l := mustList(t, s); l.Revision != before || l.Functions[0].Scale.Min != 20 {
		t.Errorf("changed in spite of the error: %+v", l)
	}
}

func catalogAliases(t *testing.T, s, second ports.Catalog) {
	ctx := t.Context()
	with := func(name string, aliases ...string) function.Function {
		fn := sampleFunction(name)
		fn.Aliases = aliases
		return fn
	}
	must(t, s.Apply(ctx, with("a", "Qwen/Qwen3-8B", "q"), with("b")))
	for what, change := range map[string]func() error{
		"an alias of another function": func() error { return second.Apply(ctx, with("b", "q")) },
		"the name of another function": func() error { return second.Apply(ctx, with("b", "a")) },
		"a name that is an alias":      func() error { return second.Apply(ctx, with("q")) },
		"aliases of two new functions": func() error { return second.Apply(ctx, with("c", "x"), with("d", "x")) },
		"an alias by a changed function": func() error {
			return second.Change(ctx, "b", func(fn *function.Function) error { fn.Aliases = []string{"q"}; return nil })
		},
	} {
		var clash *function.ClashError
		if err := change(); !errors.As(err, &clash) {
			t.Errorf("%s: got %v, want a clash of names", what, err)
		}
	}
	expect(t, names(t, s), "[a b]")
	if fn, err := mustList(t, second).Model("Qwen/Qwen3-8B"); err != nil || fn.Name != "a" {
		t.Errorf("function by alias: got %s, %v; want a", fn.Name, err)
	}
	must(t, second.Apply(ctx, with("b", "q"), with("a", "Q"))) // an alias moves
	if fn, err := mustList(t, s).Model("q"); err != nil || fn.Name != "b" {
		t.Errorf("function by moved alias: got %s, %v; want b", fn.Name, err)
	}
}

func catalogInUse(t *testing.T, s, _ ports.Catalog) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f"), sampleFunction("g")))
	must(t, s.Reserve(ctx, sampleRecord("f-0", "f")))
	var used *ports.InUseError
	if err := s.Remove(ctx, "g", "f"); !errors.As(err, &used) || fmt.Sprint(used.Functions, used.IDs) != "[f] [f-0]" {
		t.Errorf("removing a function with instances: %v", err)
	}
	expect(t, names(t, s), "[f g]")
	must(t, s.Forget(ctx, "f-0"))
	must(t, s.Remove(ctx, "g", "f"))
	expect(t, names(t, s), "[]")
}

func catalogRecords(t *testing.T, s, _ ports.Catalog) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f")))
	want := sampleRecord("f-0", "f")
	must(t, s.Reserve(ctx, sampleRecord("f-1", "f"), want))
	list := mustList(t, s).Instances
	if len(list) != 2 || !reflect.DeepEqual(list[0], want) {
		t.Errorf("got %+v, want %+v first of two", list, want)
	}
}

func catalogReserve(t *testing.T, s, _ ports.Catalog) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f")))
	must(t, s.Reserve(ctx, sampleRecord("f-0", "f")))
	var exists *ports.ExistsError
	err := s.Reserve(ctx, sampleRecord("f-1", "f"), sampleRecord("f-0", "f"))
	if !errors.As(err, &exists) || fmt.Sprint(exists.IDs) != "[f-0]" {
		t.Errorf("reserving a taken id: %v", err)
	}
	err = s.Reserve(ctx, sampleRecord("f-2", "f"), sampleRecord("f-2", "f"))
	if !errors.As(err, &exists) {
		t.Errorf("reserving an id twice: %v", err)
	}
	var missing *ports.NotFoundError
	err = s.Reserve(ctx, sampleRecord("f-1", "f"), sampleRecord("g-0", "g"), sampleRecord("g-1", "g"))
	if !errors.As(err, &missing) || fmt.Sprint(missing.Kind, missing.Names) != "function[g]" {
		t.Errorf("reserving for a missing function: %v", err)
	}
	expect(t, ids(t, s), "[f-0]")
}

func catalogUpdate(t *testing.T, s, _ ports.Catalog) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f")))
	r := sampleRecord("f-0", "f")
	var missing *ports.NotFoundError
	if err := s.Update(ctx, r); !errors.As(err, &missing) {
		t.Errorf("update of a missing record: %v", err)
	}
	must(t, s.Reserve(ctx, r))
	r.State = instance.Ready
	must(t, s.Update(ctx, r))
	list := mustList(t, s).Instances
	if len(list) != 1 || list[0].State != instance.Ready {
		t.Errorf("got %+v", list)
	}
}

func catalogRace(t *testing.T, s, _ ports.Catalog) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f")))
	results := make([]error, 4)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i] = s.Reserve(context.WithoutCancel(ctx), sampleRecord("f-0", "f")) })
	}
	wg.Wait()
	won := 0
	for _, err := range results {
		var exists *ports.ExistsError
		switch {
		case err == nil:
			won++
		case !errors.As(err, &exists):
			t.Errorf("unexpected: %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d reservations of one id succeeded", won)
	}
}

// catalogRevisions checks that both catalogs see every change at once, whichever made it,
// and no other revision.
func catalogRevisions(t *testing.T, s, second ports.Catalog) {
	ctx := t.Context()
	r := sampleRecord("f-0", "f")
	ready := r
	ready.State = instance.Ready
	changed := sampleFunction("f")
	changed.SLO = time.Second
	for name, change := range []func(ports.Catalog) error{
		func(c ports.Catalog) error { return c.Apply(ctx, sampleFunction("f")) },
		func(c ports.Catalog) error { return c.Apply(ctx, changed) },
		func(c ports.Catalog) error { return c.Reserve(ctx, r) },
		func(c ports.Catalog) error { return c.Update(ctx, ready) },
		func(c ports.Catalog) error { return c.Forget(ctx, "f-0") },
		func(c ports.Catalog) error { return c.Remove(ctx, "f") },
	} {
		before := []ports.Listing{mustList(t, s), mustList(t, second)}
		writer := s
		if name%2 == 1 {
			writer = second
		}
		must(t, change(writer))
		for n, c := range []ports.Catalog{s, second} {
			after := mustList(t, c)
			if after.Revision == before[n].Revision || after.Revision == 0 {
				t.Errorf("change %d: revision %d, then %d", name, before[n].Revision, after.Revision)
			}
			if again := mustList(t, c); again.Revision != after.Revision {
				t.Errorf("change %d: revision %d, then %d without a change", name, after.Revision, again.Revision)
			}
		}
		if got, want := mustList(t, s), mustList(t, second); !reflect.DeepEqual(got.Functions, want.Functions) || !reflect.DeepEqual(got.Instances, want.Instances) {
			t.Errorf("change %d: %+v, the other sees %+v", name, got, want)
		}
	}
	before := mustList(t, s)
	if err := s.Remove(ctx, "nope"); err == nil || mustList(t, s).Revision != before.Revision {
		t.Errorf("refused change: %v, revision %d, then %d", err, before.Revision, mustList(t, s).Revision)
	}
}

func catalogWatch(t *testing.T, s, second ports.Catalog) {
	ctx := t.Context()
	l, err := s.Watch(ctx, 0) // returns at once, also for an empty state
	must(t, err)
	for n, writer := range []ports.Catalog{s, second, second} {
		seen := make(chan ports.Listing)
		go func() {
			next, err := s.Watch(ctx, l.Revision)
			if err != nil {
				t.Error(err)
			}
			seen <- next
		}()
		must(t, writer.Apply(ctx, sampleFunction(fmt.Sprintf("f%d", n))))
		next := <-seen
		if next.Revision == l.Revision || len(next.Functions) != n+1 {
			t.Errorf("watched %+v after %+v", next, l)
		}
		l = next
	}
	given, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Watch(given, l.Revision); !errors.Is(err, context.Canceled) {
		t.Errorf("Watch with a cancelled context: %v", err)
	}
}
