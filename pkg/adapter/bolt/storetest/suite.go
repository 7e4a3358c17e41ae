// Package storetest is the conformance suite of bolt.Store.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Run checks a Store. Each call of open gives an empty one.
func Run(t *testing.T, open func(*testing.T) bolt.Store) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, bolt.Store)
	}{
		{"empty", empty},
		{"functions", functions},
		{"functions in use stay", inUse},
		{"records round-trip", records},
		{"a reservation is whole or nothing", reserve},
		{"an update needs its record", update},
		{"one of two reservations wins", race},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func sampleFunction(name string) function.Function {
	return function.Function{
		Name: name, Command: []string{"./server", "--fast"}, Env: map[string]string{"A": "1"}, Port: 8080,
		Contract: "http", Kind: "inference", SLO: 69 * time.Millisecond, GPUMem: 100 * gpu.MiB,
		GPUs: 1, Weight: 1, Tenant: "default", Model: &function.Model{Name: "m", Size: gpu.MiB}, Dir: "/srv/f",
	}
}

func sampleRecord(id, fn string) instance.Record {
	return instance.Record{
		ID: id, Function: fn, Runtime: "process", GPUs: []string{"sim"}, State: instance.Starting,
		Slice:      gpu.Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: gpu.GiB},
		Registered: []string{id}, Contract: "http",
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

func names(t *testing.T, s bolt.Store) string {
	t.Helper()
	list, err := s.Functions(t.Context())
	must(t, err)
	var out []string
	for _, f := range list {
		out = append(out, f.Name)
	}
	return fmt.Sprint(out)
}

func ids(t *testing.T, s bolt.Store) string {
	t.Helper()
	list, err := s.Instances(t.Context())
	must(t, err)
	var out []string
	for _, r := range list {
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

func empty(t *testing.T, s bolt.Store) {
	expect(t, names(t, s), "[]")
	expect(t, ids(t, s), "[]")
	var missing *bolt.NotFoundError
	if err := s.Remove(t.Context(), "nothing"); !errors.As(err, &missing) {
		t.Errorf("remove from an empty state: %v", err)
	}
	expect(t, names(t, s), "[]")
	expect(t, ids(t, s), "[]")
	must(t, s.Forget(t.Context(), "nobody"))
}

func functions(t *testing.T, s bolt.Store) {
	ctx := t.Context()
	want := sampleFunction("b")
	must(t, s.Apply(ctx, want, sampleFunction("a")))
	expect(t, names(t, s), "[a b]")
	list, err := s.Functions(ctx)
	must(t, err)
	if !reflect.DeepEqual(list[1], want) {
		t.Errorf("got %+v, want %+v", list[1], want)
	}
	want.SLO = time.Second
	must(t, s.Apply(ctx, want))
	list, err = s.Functions(ctx)
	must(t, err)
	if len(list) != 2 || list[1].SLO != time.Second {
		t.Errorf("apply did not replace: %+v", list)
	}
	var missing *bolt.NotFoundError
	if err := s.Remove(ctx, "a", "nope"); !errors.As(err, &missing) || fmt.Sprint(missing.Names) != "[nope]" {
		t.Errorf("remove of a missing function: %v", err)
	}
	expect(t, names(t, s), "[a b]")
	must(t, s.Remove(ctx, "a"))
	expect(t, names(t, s), "[b]")
}

func inUse(t *testing.T, s bolt.Store) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f"), sampleFunction("g")))
	must(t, s.Reserve(ctx, sampleRecord("f-0", "f")))
	var used *bolt.InUseError
	if err := s.Remove(ctx, "g", "f"); !errors.As(err, &used) || fmt.Sprint(used.Functions, used.IDs) != "[f] [f-0]" {
		t.Errorf("remove of a function in use: %v", err)
	}
	expect(t, names(t, s), "[f g]")
	must(t, s.Forget(ctx, "f-0"))
	must(t, s.Remove(ctx, "g", "f"))
	expect(t, names(t, s), "[]")
}

func records(t *testing.T, s bolt.Store) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f")))
	want := sampleRecord("f-0", "f")
	must(t, s.Reserve(ctx, sampleRecord("f-1", "f"), want))
	list, err := s.Instances(ctx)
	must(t, err)
	if len(list) != 2 || !reflect.DeepEqual(list[0], want) {
		t.Errorf("got %+v, want %+v first of two", list, want)
	}
}

func reserve(t *testing.T, s bolt.Store) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f")))
	must(t, s.Reserve(ctx, sampleRecord("f-0", "f")))
	var exists *bolt.ExistsError
	err := s.Reserve(ctx, sampleRecord("f-1", "f"), sampleRecord("f-0", "f"))
	if !errors.As(err, &exists) || fmt.Sprint(exists.IDs) != "[f-0]" {
		t.Errorf("reserving a taken id: %v", err)
	}
	err = s.Reserve(ctx, sampleRecord("f-2", "f"), sampleRecord("f-2", "f"))
	if !errors.As(err, &exists) {
		t.Errorf("reserving an id twice: %v", err)
	}
	var missing *bolt.NotFoundError
	err = s.Reserve(ctx, sampleRecord("f-1", "f"), sampleRecord("g-0", "g"), sampleRecord("g-1", "g"))
	if !errors.As(err, &missing) || fmt.Sprint(missing.Kind, missing.Names) != "function[g]" {
		t.Errorf("reserving for a missing function: %v", err)
	}
	expect(t, ids(t, s), "[f-0]")
}

func update(t *testing.T, s bolt.Store) {
	ctx := t.Context()
	must(t, s.Apply(ctx, sampleFunction("f")))
	r := sampleRecord("f-0", "f")
	var missing *bolt.NotFoundError
	if err := s.Update(ctx, r); !errors.As(err, &missing) {
		t.Errorf("update of nothing: %v", err)
	}
	must(t, s.Reserve(ctx, r))
	r.State = instance.Ready
	must(t, s.Update(ctx, r))
	list, err := s.Instances(ctx)
	must(t, err)
	if len(list) != 1 || list[0].State != instance.Ready {
		t.Errorf("got %+v", list)
	}
}

func race(t *testing.T, s bolt.Store) {
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
		var exists *bolt.ExistsError
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
