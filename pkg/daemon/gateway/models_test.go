package gateway

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
)

// withModel returns a function that differs from others with the same model only in its name.
func withModel(name string) function.Function {
	return fn(name, func(f *function.Function) {
		f.Command, f.Model = []string{"./server"}, &function.Model{Name: "resnet50"}
	})
}

// lalbWorld starts a gateway with the policy lalb and the given number of GPUs.
func lalbWorld(t *testing.T, handler http.Handler, gpus ...GPU) *world {
	return newWorld(t, handler, func(c *Config) { c.Policy.Policy, c.Concurrency, c.GPUs = "lalb", 1, gpus })
}

// remove removes a function and waits until the gateway has none by that name.
func (w *world) remove(name string) {
	w.t.Helper()
	if err := w.catalog.Remove(context.Background(), name); err != nil {
		w.t.Fatal(err)
	}
	w.until("the gateway has no function "+name, func() bool { return w.dispatcher.Function(name) == nil })
}

// TestFunctionsWithSameModel checks that under lalb, a call runs on an instance of another function only
// if both are started in the same way, name the same model, and belong to one tenant.
func TestFunctionsWithSameModel(t *testing.T) {
	w := lalbWorld(t, http.HandlerFunc(echo), GPU{Name: "sim"})
	w.apply(withModel("a"), withModel("b"), fn("command", func(f *function.Function) { f.Model = &function.Model{Name: "resnet50"} }),
		fn("unnamed", func(f *function.Function) { f.Command = []string{"./server"} }), func() function.Function {
			other := withModel("tenant")
			other.Tenant = "other"
			return other
		}())
	for _, c := range []struct{ function, instance string }{
		{"a", "a.1"}, {"b", "a.1"}, {"command", "command.2"}, {"unnamed", "unnamed.3"}, {"tenant", "tenant.4"}, {"b", "a.1"},
	} {
		got := w.do("POST", "/function/"+c.function, "x")
		if got.status != 200 || got.header.Get("Gfaas-Instance") != c.instance {
			t.Errorf("%s: got status %d from instance %s, want 200 from %s", c.function, got.status, got.header.Get("Gfaas-Instance"), c.instance)
		}
	}
	w.remove("a")
	if got := w.do("POST", "/function/b", "x"); got.status != 200 || got.header.Get("Gfaas-Instance") != "b.5" {
		t.Errorf("b after the removal of a: got status %d from instance %s, want 200 from b.5", got.status, got.header.Get("Gfaas-Instance"))
	}
	w.awaitNoCalls()
}

// TestRemovalOfModelSharer checks that calls which wait for an instance of another function run after
// that function was removed.
func TestRemovalOfModelSharer(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	w := lalbWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) { close(began); <-release; echo(rw, r) }}, GPU{Name: "sim"})
	w.apply(withModel("a"), withModel("b"))
	var calls sync.WaitGroup
	for _, call := range []string{"/function/a/wait", "/function/b", "/function/b"} {
		calls.Go(func() {
			if got, err := w.try(context.Background(), "POST", call, "x"); err != nil || got.status != 200 {
				t.Errorf("%s: got status %d, %v; want 200", call, got.status, err)
			}
		})
		if call == "/function/a/wait" {
			<-began
		}
	}
	w.until("the calls of b wait", func() bool { return *w.Status().Functions[1].Waiting == 2 })
	w.remove("a")
	close(release)
	calls.Wait()
	w.awaitNoCalls()
}

// TestEndOfSharedInstance checks that a call is repeated on a new instance if it ran on an instance of
// another function and that instance ended.
func TestEndOfSharedInstance(t *testing.T) {
	var seen atomic.Int32
	w := lalbWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) {
		if seen.Add(1) == 1 {
			<-r.Context().Done()
			return
		}
		echo(rw, r)
	}}, GPU{Name: "sim"})
	w.apply(withModel("a"), withModel("b"))
	w.do("POST", "/function/a", "x")
	var call sync.WaitGroup
	call.Go(func() {
		got, err := w.try(context.Background(), "POST", "/function/b/wait", "", "Idempotency-Key", "1")
		if err != nil || got.status != 200 || got.header.Get("Gfaas-Attempts") != "2" {
			t.Errorf("got %+v, %v; want status 200 after 2 attempts", got, err)
		}
	})
	w.until("the call has reached the instance", func() bool { return seen.Load() == 1 })
	w.runtime.Kill("a.1", 3)
	call.Wait()
	w.awaitNoCalls()
}

// TestFalseMisses checks the counts of false misses and of GPUs with a function's memory.
func TestFalseMisses(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) { <-release; echo(rw, r) }},
		func(c *Config) {
			c.Policy.Policy, c.Concurrency, c.GPUs = "lb", 1, []GPU{{Name: "sim"}, {Name: "sim:1"}}
		})
	w.apply(withModel("a"))
	w.do("POST", "/function/a", "x")
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if got, err := w.try(context.Background(), "POST", "/function/a/wait", "x"); err != nil || got.status != 200 {
				t.Errorf("got status %d, %v; want 200", got.status, err)
			}
		})
	}
	w.until("both calls run", func() bool { return *w.Status().Functions[0].InFlight == 2 })
	close(release)
	calls.Wait()
	f := w.Status().Functions[0]
	if *f.FalseMisses != 1 || *f.LoadedGPUs != 2 || *f.ColdStarts != 2 {
		t.Errorf("got %d false misses, memory on %d GPUs, %d cold starts; want 1, 2, 2", *f.FalseMisses, *f.LoadedGPUs, *f.ColdStarts)
	}
	w.awaitNoCalls()
}

// TestTenantLimitStopsIdleInstances checks that a start within a tenant's limit on processes stops the
// tenant's least recently used idle instance, and no instance of another tenant.
func TestTenantLimitStopsIdleInstances(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Policy.Limits.Processes = 2 })
	w.apply(fn("a"), fn("b"), fn("c"), fn("other", func(f *function.Function) { f.Tenant = "other" }))
	for _, name := range []string{"other", "a", "b", "c", "b"} {
		if got := w.do("POST", "/function/"+name, "x"); got.status != 200 {
			t.Fatalf("call of %s: got status %d, want 200", name, got.status)
		}
	}
	w.until("the instance of a has stopped", func() bool { return len(w.startedIDs()) == 3 })
	if got := fmt.Sprint(w.startedIDs()); got != "[b.3 c.4 other.1]" {
		t.Errorf("instances: got %s, want those of b, c and other", got)
	}
}
