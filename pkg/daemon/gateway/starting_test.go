package gateway

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// reserve creates the record of an instance that another process is about to start.
func (w *world) reserve(id, function string, mem gpu.Bytes, gpus ...string) instance.Record {
	w.t.Helper()
	r := instance.Record{ID: id, Function: function, Runtime: instance.Process, GPUs: gpus, State: instance.Starting,
		Slice: gpu.Slice{SMPct: 50, QuotaRequest: 0.5, QuotaLimit: 0.5, Mem: mem}}
	if err := w.catalog.Reserve(context.Background(), r); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// starts completes the start of a reserved instance.
func (w *world) starts(r instance.Record, f function.Function) {
	w.t.Helper()
	ctx, l := context.Background(), w.launcher()
	started, err := l.Start(ctx, f, instance.Placement{ID: r.ID, GPUs: r.GPUs, Slice: r.Slice})
	if err == nil {
		err = w.catalog.Update(ctx, started)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	started.Handle = instance.Handle{}
	w.t.Cleanup(func() { _ = l.Stop(context.Background(), started) })
}

// starting returns a function that reports whether the gateway knows the instance as
// starting.
func (w *world) starting(id string) func() bool {
	return func() bool {
		for _, i := range w.Status().Instances {
			if i.ID == id {
				return i.State == "starting"
			}
		}
		return false
	}
}

// TestStartingElsewhere checks that calls wait for an instance that gfaas up is starting,
// until it is ready or its start has failed. Meanwhile the gateway starts no other
// instance for them.
func TestStartingElsewhere(t *testing.T) {
	t.Parallel()
	f := fn("f")
	for _, c := range []struct {
		name string
		ends func(w *world, r instance.Record, atWork *atomic.Bool)
		on   string // the instance that answers
	}{
		{"it becomes ready", func(w *world, r instance.Record, _ *atomic.Bool) { w.starts(r, f) }, "f-0"},
		{"it fails", func(w *world, r instance.Record, _ *atomic.Bool) { _ = w.catalog.Forget(context.Background(), r.ID) }, "f.1"},
		{"what starts it is killed", func(_ *world, _ instance.Record, atWork *atomic.Bool) { atWork.Store(false) }, "f.1"},
		{"it is ready when what starts it ends", func(w *world, r instance.Record, atWork *atomic.Bool) {
			w.starts(r, f)
			atWork.Store(false)
		}, "f-0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var text bytes.Buffer
			var atWork atomic.Bool
			atWork.Store(true)
			w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.AtWork, c.Record = atWork.Load, &text })
			w.apply(f)
			r := w.reserve("f-0", "f", 0, "sim")
			w.until("the gateway knows the start of f-0", w.starting("f-0"))
			var calls sync.WaitGroup
			for range 3 {
				calls.Go(func() {
					if a, err := w.try(context.Background(), "POST", "/function/f", "x"); err != nil || a.status != 200 || c.on == "f-0" && a.header.Get("Gfaas-Instance") != c.on {
						t.Errorf("got %+v, %v; want status 200, and Gfaas-Instance f-0 if the start succeeds", a, err)
					}
				})
			}
			w.until("three calls of f are queued", func() bool { return queuedCalls(w, "f") == 3 })
			if n := len(w.Status().Instances); n != 1 {
				t.Errorf("got %d instances, want 1", n)
			}
			c.ends(w, r, &atWork)
			calls.Wait()
			w.close()
			if err := replayed(text.Bytes()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAbandonedStartsDelayNothing checks that records of starts that have been abandoned,
// or on other GPUs, do not delay calls.
func TestAbandonedStartsDelayNothing(t *testing.T) {
	var atWork atomic.Bool
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.AtWork = atWork.Load })
	f, g, h := fn("f"), fn("g"), fn("h")
	w.apply(f, g, h)
	w.reserve("f-0", "f", 0, "sim") // the process that started it has ended
	if a := w.do("POST", "/function/f", "x"); a.header.Get("Gfaas-Instance") != "f.1" {
		t.Errorf("got %+v; want Gfaas-Instance f.1", a)
	}
	atWork.Store(true)
	w.reserve("h-1", "h", 0, "sim:7") // on a GPU of another gateway
	r := w.reserve("g-0", "g", 0, "sim")
	if a := w.do("POST", "/function/h", "x"); a.header.Get("Gfaas-Instance") != "h.2" {
		t.Errorf("got %+v; want Gfaas-Instance h.2", a)
	}
	w.until("the gateway knows the start of g-0", w.starting("g-0"))
	for _, id := range []string{"f-0", "h-1"} {
		if w.starting(id)() {
			t.Errorf("abandoned start of %s: the gateway counts it as starting, want it ignored", id)
		}
	}
	ended := make(chan answer)
	go func() { ended <- w.do("POST", "/function/g", "x") }()
	w.until("the call of g is queued", func() bool { return queuedCalls(w, "g") == 1 })
	if err := w.catalog.Forget(t.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	if a := <-ended; a.header.Get("Gfaas-Instance") != "g.3" {
		t.Errorf("got %+v; want Gfaas-Instance g.3", a)
	}
}

// TestStartingElsewhereMemory checks that the planned memory of an instance that gfaas up
// is starting counts as used. The gateway stops idle instances to make room for it, and
// calls whose instance does not fit are queued.
func TestStartingElsewhereMemory(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.GPUs = []GPU{{Name: "sim", Mem: int64(16 * gpu.GiB)}} })
	of := func(name string, mem gpu.Bytes) function.Function {
		return fn(name, func(f *function.Function) { f.GPUMem = mem })
	}
	a, b, c := of("a", 10*gpu.GiB), of("b", 4*gpu.GiB), of("c", 0)
	w.apply(a, b, c)
	w.answers("a")
	w.answers("b")
	r := w.reserve("c-0", "c", 10*gpu.GiB, "sim")
	w.until("the gateway knows the start of c-0", w.starting("c-0"))
	w.until("a is stopped, and b.2 runs", func() bool { return fmt.Sprint(w.startedIDs()) == "[b.2]" })
	var calls sync.WaitGroup
	calls.Go(func() { w.answers("a") })
	w.until("a call of a is queued", func() bool { return queuedCalls(w, "a") == 1 })
	w.answers("b") // fits on the GPU together with c-0
	w.starts(r, c)
	w.until("b.2 and c-0 run", func() bool { return fmt.Sprint(w.startedIDs()) == "[b.2 c-0]" })
	w.answers("c")
	if queuedCalls(w, "a") != 1 {
		t.Errorf("queued calls of a, which does not fit: got %d, want 1", queuedCalls(w, "a"))
	}
	w.runtime.Kill("c-0", 0)
	calls.Wait()
}

// TestStartingElsewhereAtRestart checks that a new gateway counts instances whose start
// is in progress.
func TestStartingElsewhereAtRestart(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	f, span := fn("f"), fn("s", func(f *function.Function) { f.GPUs = 2 })
	w.apply(f, span)
	w.close()
	r, s := w.reserve("f-0", "f", 0, "sim"), w.reserve("s-0", "s", 0, "sim", "sim:1")
	w.open()
	if !w.starting("f-0")() || !w.starting("s-0")() {
		t.Errorf("got %+v; want f-0 and s-0 starting", w.Status().Instances)
	}
	var calls sync.WaitGroup
	for name, on := range map[string]string{"f": "f-0", "s": "s-0"} {
		calls.Go(func() {
			if a := w.do("POST", "/function/"+name, "x"); a.header.Get("Gfaas-Instance") != on {
				t.Errorf("%s: got %+v; want Gfaas-Instance %v", name, a, on)
			}
		})
	}
	w.until("a call of f and one of s are queued", func() bool { return queuedCalls(w, "f") == 1 && queuedCalls(w, "s") == 1 })
	w.starts(r, f)
	w.starts(s, span)
	calls.Wait()
}

// TestStartingAgain checks that calls wait while the gateway restarts an instance of
// gfaas up. If the restart fails, they go to a new instance.
func TestStartingAgain(t *testing.T) {
	t.Parallel()
	for _, becomes := range []bool{true, false} {
		var loads atomic.Bool
		w := newWorld(t, nil, nil)
		w.runtime.Handler = func(s instance.Spec) http.Handler {
			return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				if s.ID == "f-0" && loads.Load() {
					out.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				echo(out, r)
			})
		}
		f := fn("f", func(f *function.Function) { f.Restart = "always" })
		w.apply(f)
		w.gfaasUp("f-0", f)
		w.until("f-0 is adopted", func() bool { return fmt.Sprint(w.startedIDs()) == "[f-0]" })
		loads.Store(true)
		w.runtime.Kill("f-0", 1)
		w.until("the gateway restarts f-0", w.starting("f-0"))
		ended := make(chan answer)
		go func() { ended <- w.do("POST", "/function/f", "x") }()
		w.until("a call of f is queued", func() bool { return queuedCalls(w, "f") == 1 })
		on := "f-0"
		if becomes {
			loads.Store(false)
		} else {
			w.runtime.Kill("f-0", 1)
			on = "f.1"
		}
		if a := <-ended; a.header.Get("Gfaas-Instance") != on {
			t.Errorf("queued call: got %+v, want an answer of %s", a, on)
		}
		w.close()
	}
}
