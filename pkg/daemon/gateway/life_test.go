package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// gfaasUp starts an instance in the same way as gfaas up, as if it were part of a plan.
func (w *world) gfaasUp(id string, f function.Function) instance.Record {
	w.t.Helper()
	return w.gfaasUpOn(id, f, noRate, "sim")
}

// gfaasUpWithRate is like gfaasUp, for an instance with a planned rate.
func (w *world) gfaasUpWithRate(id string, f function.Function, plannedRPS float64) instance.Record {
	w.t.Helper()
	return w.gfaasUpOn(id, f, plannedRPS, "sim")
}

// noRate is the planned rate of an instance for which the plan has none.
const noRate = 0

// gfaasUpOn is like gfaasUpWithRate, for an instance on the given GPUs.
func (w *world) gfaasUpOn(id string, f function.Function, plannedRPS float64, gpus ...string) instance.Record {
	w.t.Helper()
	ctx := context.Background()
	l := w.launcher()
	slice := gpu.Slice{SMPct: 50, QuotaRequest: 0.5, QuotaLimit: 0.5}
	if err := w.catalog.Reserve(ctx, instance.Record{ID: id, Function: f.Name, GPUs: gpus, Slice: slice, State: instance.Starting}); err != nil {
		w.t.Fatal(err)
	}
	r, err := l.Start(ctx, f, instance.Placement{ID: id, GPUs: gpus, Slice: slice, RPS: plannedRPS})
	if err == nil {
		err = w.catalog.Update(ctx, r)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	lost := r
	lost.Handle = instance.Handle{} // the handle may have changed by then
	w.t.Cleanup(func() { _ = l.Stop(context.Background(), lost) })
	return r
}

// startedIDs returns the IDs of the started instances that the gateway knows, in order.
func (w *world) startedIDs() []string {
	var ids []string
	for _, i := range w.Status().Instances {
		if i.State != "starting" {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// TestInstancesOfUp checks that the gateway prefers instances of gfaas up, and they keep
// running whatever the policy and the gateway do.
func TestInstancesOfUp(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	f := fn("f", func(f *function.Function) { f.Scale.Idle = 10 * time.Millisecond })
	w.apply(f)
	own := w.do("POST", "/function/f", "x")
	if got := own.header.Get("Gfaas-Instance"); got != "f.1" {
		t.Fatalf("got Gfaas-Instance %q, want f.1", got)
	}
	w.gfaasUp("f-0", f)
	w.until("f-0 is adopted", func() bool { return slices.Contains(w.startedIDs(), "f-0") })
	if a := w.do("POST", "/function/f", "x"); a.header.Get("Gfaas-Instance") != "f-0" {
		t.Errorf("got %+v; want Gfaas-Instance f-0", a)
	}
	w.until("the gateway's own idle instance is stopped", func() bool { return fmt.Sprint(w.startedIDs()) == "[f-0]" })
	w.close()
	if running := w.runtime.Running(); fmt.Sprint(running) != "[f-0]" {
		t.Errorf("%v run after the gateway's end, want [f-0]", running)
	}
	w.open()
	if a := w.do("POST", "/function/f", "x"); a.header.Get("Gfaas-Instance") != "f-0" || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("got %+v; want Gfaas-Instance f-0, Gfaas-Start gpu-warm", a)
	}
}

// TestPlannedInstancesTakeCallsFirst checks that instances of gfaas up serve calls
// regardless of other instances on their GPU, the instance with the highest planned rate
// first. They use none of the GPU's slots.
func TestPlannedInstancesTakeCallsFirst(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{}, 10)
	w := newWorld(t, pathHandlers{"/wait": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }},
		func(c *Config) { c.Concurrency = 1 })
	f := fn("f")
	w.apply(f, fn("g"))
	w.gfaasUpWithRate("f-0", f, 10)
	w.gfaasUpWithRate("f-1", f, 40)
	w.until("both instances are adopted", func() bool { return len(w.startedIDs()) == 2 })
	if rps := w.Status().Functions[0].PlannedRPS; rps == nil || *rps != 50 {
		t.Errorf("got a planned rate of %v, want 50", rps)
	}
	var calls sync.WaitGroup
	send := func(function, on string) {
		calls.Go(func() {
			a, err := w.try(context.Background(), "POST", "/function/"+function+"/wait", "x")
			if got := a.header.Get("Gfaas-Instance"); err != nil || a.status != 200 || got != on {
				t.Errorf("%s: got instance %s, %v; want %s", function, got, err, on)
			}
		})
		<-began
	}
	send("f", "f-1")
	send("g", "g.1") // uses the slot
	send("f", "f-0")
	close(release)
	calls.Wait()
}

// TestInstanceDies checks that if an instance dies, its running calls are answered, the
// next call gets another instance, and no trace of the dead instance remains.
func TestInstanceDies(t *testing.T) {
	began := make(chan struct{}, 10)
	w := newWorld(t, pathHandlers{"/hang": func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
	}}, nil)
	w.apply(fn("f"))
	var wg sync.WaitGroup
	wg.Go(func() {
		a, err := w.try(context.Background(), "POST", "/function/f/hang", "")
		if err != nil || a.status != 502 || a.reason() != refusal.InstanceDied {
			t.Errorf("got %+v, %v; want status 502, reason %v", a, err, refusal.InstanceDied)
		}
	})
	<-began
	w.runtime.Kill("f.1", 3)
	wg.Wait()
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f.2" {
		t.Errorf("got %+v; want status 200, Gfaas-Instance f.2", a)
	}
	w.until("the record of the dead instance is removed", func() bool {
		l, err := w.catalog.List(context.Background())
		return err == nil && len(l.Instances) == 1 && l.Instances[0].ID == "f.2"
	})
	// The same holds for an idle instance.
	w.runtime.Kill("f.2", 3)
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f.3" || a.header.Get("Gfaas-Attempts") != "1" {
		t.Errorf("got %+v; want status 200, Gfaas-Instance f.3, Gfaas-Attempts 1", a)
	}
}

// TestDrain checks that during shutdown, the gateway completes running and queued calls,
// refuses new calls, and cuts off calls that exceed --drain.
func TestDrain(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{}, 10)
	hang := func(rw http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		select {
		case <-release:
			echo(rw, r)
		case <-r.Context().Done():
		}
	}
	for _, c := range []struct {
		drain time.Duration
		ends  bool
	}{{patience, true}, {50 * time.Millisecond, false}} {
		w := newWorld(t, pathHandlers{"/hang": hang}, func(cfg *Config) { cfg.Drain, cfg.Concurrency = c.drain, 1 })
		w.apply(fn("f"))
		var wg sync.WaitGroup
		for range 2 { // one call runs, the other one is queued
			wg.Go(func() {
				a, err := w.try(context.Background(), "POST", "/function/f/hang", "")
				switch {
				case c.ends && (err != nil || a.status != 200):
					t.Errorf("a call that ends in time: got %+v, %v; want status 200", a, err)
				case !c.ends && (err != nil || a.status != 503 || a.reason() != refusal.Draining):
					t.Errorf("a call that exceeds --drain: got %+v, %v; want status 503, reason %s", a, err, refusal.Draining)
				}
			})
		}
		<-began
		w.until("one call is queued", func() bool { return *w.Status().Functions[0].Waiting == 1 })
		w.stop()
		if c.ends {
			w.until("the gateway drains", func() bool { return w.dispatcher.Draining.IsSet() })
			checkRefusal(t, w.do("POST", "/function/f", "x"), 503, refusal.Draining)
			if a := w.do("GET", "/readyz", ""); a.status != 503 {
				t.Errorf("/readyz: got status %d, want 503", a.status)
			}
			release <- struct{}{}
			release <- struct{}{}
		}
		wg.Wait()
		w.close()
		if running := w.runtime.Running(); len(running) > 0 {
			t.Errorf("%v run after the gateway's end, want none", running)
		}
		for len(began) > 0 {
			<-began
		}
	}
}

// TestAdoption checks that a gateway adopts the running instances of the gateway before
// it, and stops instances whose start was not complete.
func TestAdoption(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Keep = true })
	f := fn("f")
	w.apply(f)
	w.do("POST", "/function/f", "x")
	w.until("the record of the instance is ready", func() bool {
		l, _ := w.catalog.List(context.Background())
		return len(l.Instances) == 1 && l.Instances[0].State == instance.Ready
	})
	w.close()
	// A gateway that was killed during two starts leaves these records: one instance has
	// a process, the other has none yet.
	half := w.gfaasUp("f.7", f)
	half.State, half.Owner = instance.Starting, instance.Gateway
	if err := w.catalog.Update(context.Background(), half); err != nil {
		t.Fatal(err)
	}
	if err := w.catalog.Reserve(context.Background(), instance.Record{ID: "f.8", Function: "f", Runtime: instance.Process, GPUs: []string{"sim"}, State: instance.Starting, Owner: instance.Gateway}); err != nil {
		t.Fatal(err)
	}
	w.cfg.Keep = false
	w.open()
	a := w.do("POST", "/function/f", "x")
	if a.header.Get("Gfaas-Instance") != "f.1" || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("got %+v; want Gfaas-Instance f.1, Gfaas-Start gpu-warm", a)
	}
	w.until("the instances with incomplete starts are stopped", func() bool {
		l, _ := w.catalog.List(context.Background())
		return len(l.Instances) == 1 && fmt.Sprint(w.runtime.Running()) == "[f.1]"
	})
	w.close()
	if running := w.runtime.Running(); len(running) > 0 {
		t.Errorf("%v run after the gateway's end, want none", running)
	}
}

// TestAdoptionBeforeMin checks that a restarted gateway starts only those instances of
// scale.min that are not running, and reuses no instance ID.
func TestAdoptionBeforeMin(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Keep = true })
	f := fn("f", func(f *function.Function) { f.Scale.Min = 2 })
	w.apply(f)
	ready := func() bool {
		l, _ := w.catalog.List(context.Background())
		return len(l.Instances) == 2 && l.Instances[0].State == instance.Ready && l.Instances[1].State == instance.Ready
	}
	w.until("both instances of scale.min are ready", ready)
	w.close()
	w.runtime.Kill("f.2", 1)
	w.open()
	w.until("f.3 replaces the dead instance", func() bool { return fmt.Sprint(w.startedIDs()) == "[f.1 f.3]" && ready() })
	w.apply(fn("g"))
	if id := w.do("POST", "/function/g", "").header.Get("Gfaas-Instance"); id != "g.4" {
		t.Errorf("the next instance is %s, want g.4", id)
	}
	w.cfg.Keep = false
	w.close()
	w.open()
	w.until("three instances are adopted or started", func() bool { return len(w.startedIDs()) == 3 })
}

// silent is a Starter whose first Adopt calls fail, as if the runtime did not answer.
type silent struct {
	ports.Starter
	times atomic.Int32 // remaining failures
}

func (s *silent) Adopt(ctx context.Context, r instance.Record) error {
	if s.times.Add(-1) >= 0 {
		return errors.New("no answer in time")
	}
	return s.Starter.Adopt(ctx, r)
}

// TestAdoptionIsRetried checks that a running instance that cannot be adopted when the
// gateway starts keeps running, and the gateway adopts it as soon as it can. This applies
// to its own instances and to instances of gfaas up.
func TestAdoptionIsRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Keep = true })
	f, g := fn("f"), fn("g")
	w.apply(f, g)
	w.do("POST", "/function/f", "x")
	w.until("the record of f.1 is ready", func() bool { return w.record("f.1").State == instance.Ready })
	w.gfaasUp("g-0", g)
	w.close()
	s := &silent{Starter: w.cfg.Starter}
	s.times.Store(2) // one failure per instance
	w.cfg.Keep, w.cfg.Starter = false, s
	w.open()
	w.until("f.1 and g-0 are adopted", func() bool { return fmt.Sprint(slices.Sorted(slices.Values(w.startedIDs()))) == "[f.1 g-0]" })
	for name, id := range map[string]string{"f": "f.1", "g": "g-0"} {
		if a := w.do("POST", "/function/"+name, "x"); a.header.Get("Gfaas-Instance") != id || a.header.Get("Gfaas-Start") != "gpu-warm" {
			t.Errorf("got %+v; want Gfaas-Instance %v, Gfaas-Start gpu-warm", a, id)
		}
	}
	w.close()
	if running := w.runtime.Running(); fmt.Sprint(running) != "[g-0]" {
		t.Errorf("%v run after the gateway's end, want [g-0]", running)
	}
}

// TestUnadoptedInstancesAreStopped checks that at shutdown, the gateway stops the
// instances that its predecessor started, even if it could not adopt them.
func TestUnadoptedInstancesAreStopped(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Keep = true })
	w.apply(fn("f"))
	w.do("POST", "/function/f", "x")
	w.until("the record of f.1 is ready", func() bool { return w.record("f.1").State == instance.Ready })
	w.close()
	s := &silent{Starter: w.cfg.Starter}
	s.times.Store(1)
	w.cfg.Keep, w.cfg.Starter = false, s
	w.open()
	w.close()
	if running := w.runtime.Running(); len(running) > 0 || w.record("f.1").ID != "" {
		t.Errorf("%v run after the gateway's end, want none, and no record of f.1", running)
	}
}

// slowCatalog is a catalog whose Watch blocks until let is closed.
type slowCatalog struct {
	ports.Catalog
	let chan struct{}
}

func (c slowCatalog) Watch(ctx context.Context, last ports.Revision) (ports.Listing, error) {
	select {
	case <-c.let:
		return c.Catalog.Watch(ctx, last)
	case <-ctx.Done():
		return ports.Listing{}, ctx.Err()
	}
}

// TestCallsBeforeAdoption checks that a call that arrives before the gateway has read the
// catalog waits for that, and then uses a running instance.
func TestCallsBeforeAdoption(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Keep = true })
	w.apply(fn("f"))
	w.do("POST", "/function/f", "x")
	w.until("the record of f.1 is ready", func() bool { return w.record("f.1").State == instance.Ready })
	w.close()
	let := make(chan struct{})
	w.cfg.Catalog, w.cfg.Keep = slowCatalog{w.catalog, let}, false
	g, err := Open(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.Gateway, w.stop, w.ended = g, stop, make(chan error, 1)
	go func() { w.ended <- g.Serve(ctx) }()
	t.Cleanup(w.close)
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if a, err := w.try(short, "POST", "/function/f", "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v, %v; want a call that waits until its deadline", a, err)
	}
	if a := w.do("GET", "/system/status", ""); a.status != 200 {
		t.Errorf("got %+v; want status 200", a)
	}
	var calls sync.WaitGroup
	calls.Go(func() {
		a, err := w.try(context.Background(), "POST", "/function/f", "x")
		if err != nil || a.status != 200 || a.header.Get("Gfaas-Instance") != "f.1" || a.header.Get("Gfaas-Start") != "gpu-warm" {
			t.Errorf("got %+v, %v; want status 200, Gfaas-Instance f.1, Gfaas-Start gpu-warm", a, err)
		}
	})
	close(let)
	calls.Wait()
}

// TestApplyAndRemove checks that functions can be changed under load without a failed
// call.
func TestApplyAndRemove(t *testing.T) {
	var version atomic.Int32
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.runtime.Handler = func(spec instance.Spec) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(rw, spec.Env["VERSION"]) })
	}
	of := func(v string, min int) function.Function {
		return fn("f", func(f *function.Function) { f.Env, f.Scale.Min = map[string]string{"VERSION": v}, min })
	}
	w.apply(of("1", 0))
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var calls atomic.Int32
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				old := version.Load()
				a, err := w.try(context.Background(), "POST", "/function/f", "x")
				if err != nil || a.status != 200 || old == 2 && a.body != "2" {
					t.Errorf("version %d: got %+v, %v; want status 200, and body 2 for version 2", old, a, err)
					return
				}
				calls.Add(1)
			}
		})
	}
	w.until("calls of f are answered", func() bool { return calls.Load() > 20 })
	before, _ := w.catalog.List(context.Background())
	w.apply(of("2", 1))
	w.until("no instance of the old version runs", func() bool {
		l, _ := w.catalog.List(context.Background())
		return len(l.Instances) > 0 && !slices.ContainsFunc(l.Instances, func(r instance.Record) bool { return r.Definition == before.Instances[0].Definition })
	})
	version.Store(2)
	n := calls.Load()
	w.until("calls of f are answered", func() bool { return calls.Load() > n+20 })
	stop()
	wg.Wait()
	if err := w.catalog.Remove(context.Background(), "f"); err != nil {
		t.Fatal(err)
	}
	w.until("no instance and no record remains", func() bool {
		l, _ := w.catalog.List(context.Background())
		return len(l.Instances) == 0 && len(w.runtime.Running()) == 0
	})
	checkRefusal(t, w.do("POST", "/function/f", "x"), 404, refusal.NoFunction)
}

// TestScale checks that the gateway keeps scale.min instances ready, starts no more than
// scale.max, and stops an instance beyond the minimum when it has been idle for
// scale.idle.
func TestScale(t *testing.T) {
	t.Parallel()
	w := newWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, _ *http.Request) { time.Sleep(20 * time.Millisecond) }}, func(c *Config) { c.Concurrency = 8 })
	w.apply(fn("f", func(f *function.Function) { f.Scale = function.Scale{Min: 2, Max: 3, Idle: 50 * time.Millisecond} }))
	w.until("two instances are ready", func() bool { return w.Status().Functions[0].Instances == 2 && w.Status().Functions[0].State == "ready" })
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if a, err := w.try(context.Background(), "POST", "/function/f/wait", "x"); err != nil || a.status != 200 {
				t.Errorf("got %+v, %v; want status 200", a, err)
			}
		})
	}
	most := 0
	w.until("all calls are answered", func() bool {
		f := w.Status().Functions[0]
		most = max(most, f.Instances)
		return *f.ColdStarts+*f.GPUWarmStarts == 40 && *f.Waiting+*f.InFlight == 0
	})
	wg.Wait()
	if most > 3 {
		t.Errorf("got %d instances, want at most 3", most)
	}
	w.until("the instance beyond scale.min is stopped", func() bool { return w.Status().Functions[0].Instances == 2 })
	w.runtime.Kill(w.startedIDs()[0], 1)
	w.until("the dead instance is replaced", func() bool { return len(w.startedIDs()) == 2 && len(w.runtime.Running()) == 2 })
}

// TestInflight checks that an instance runs several calls concurrently as long as no
// other function's calls are queued.
func TestInflight(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{}, 10)
	w := newWorld(t, pathHandlers{"/wait": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }}, func(c *Config) { c.Concurrency = 1 })
	w.apply(fn("f", func(f *function.Function) { f.Inflight = 3 }))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if a, err := w.try(context.Background(), "POST", "/function/f/wait", "x"); err != nil || a.status != 200 || a.header.Get("Gfaas-Instance") != "f.1" {
				t.Errorf("got %+v, %v; want status 200, Gfaas-Instance f.1", a, err)
			}
		})
	}
	for range 3 {
		<-began
	}
	w.until("three calls run and the fourth is queued", func() bool { f := w.Status().Functions[0]; return *f.InFlight == 3 && *f.Waiting == 1 })
	close(release)
	wg.Wait()
	w.awaitNoCalls()
}

// TestOpenAI checks that a call goes to the function that it names as its model.
func TestOpenAI(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"), fn("llama", func(f *function.Function) { f.Contract = "openai" }))
	const body = `{"messages":[{"role":"user","content":"model: {\"model\":\"f\"}"}],"model":"llama"}`
	a := w.do("POST", "/v1/chat/completions?x=1", body, "Content-Type", "application/json")
	if a.status != 200 || a.body != body || a.header.Get("Gfaas-Instance") != "llama.1" || !strings.HasPrefix(a.header.Get("Seen"), "POST /v1/chat/completions?x=1 ") {
		t.Errorf("got %+v; want status 200 and the unchanged request at llama.1", a)
	}
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nllama\r\n--b--\r\n"
	if a := w.do("POST", "/v1/audio/transcriptions", form, "Content-Type", "multipart/form-data; boundary=b"); a.status != 200 || a.body != form {
		t.Errorf("got %+v; want status 200, body %.200q", a, form)
	}
	if a := w.do("GET", "/v1/models", ""); a.status != 200 || !strings.Contains(a.body, `"data":[{"id":"llama","object":"model",`) || strings.Contains(a.body, `"f"`) {
		t.Errorf("got %+v; want status 200 and the only model llama", a)
	}
	if a := w.do("GET", "/v1/models/llama", ""); a.status != 200 || !strings.HasPrefix(a.body, `{"id":"llama",`) {
		t.Errorf("got %+v; want status 200 and the model llama", a)
	}
	checkModelRefusal(t, w.do("GET", "/v1/models/f", ""), 404, refusal.NoFunction)
	checkModelRefusal(t, w.do("DELETE", "/v1/chat/completions", ""), 405, refusal.Method)
	checkModelRefusal(t, w.do("POST", "/v1/models", ""), 405, refusal.Method)
	checkModelRefusal(t, w.do("POST", "/v1/completions", `{"model":"gpt"}`), 404, refusal.NoFunction)
	for _, body := range []string{"", "[]", "{", `{"model":3}`, `{"x":1}`, `{"prompt":"` + strings.Repeat("x", 4000) + `"}`} {
		checkModelRefusal(t, w.do("POST", "/v1/completions", body), 400, refusal.BadRequest)
	}
}

// TestAuth checks that over TCP, management requests require the password.
func TestAuth(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Auth = api.NewCredentials("me", "secret") })
	w.apply(fn("f"))
	for path, status := range map[string]int{"/system/status": 401, "/metrics": 401, "/ui/": 401, "/healthz": 200, "/readyz": 200, "/function/f": 200} {
		if a := w.do("GET", path, ""); a.status != status || status == 401 && (a.reason() != refusal.Auth || a.header.Get("WWW-Authenticate") == "") {
			t.Errorf("%s: %+v, want %d", path, a, status)
		}
	}
	if a := w.do("GET", "/system/status", "", "Authorization", auth("me", "secret")); a.status != 200 {
		t.Errorf("got %+v; want status 200", a)
	}
	checkRefusal(t, w.do("GET", "/system/status", "", "Authorization", auth("me", "secret"), "Origin", "http://x"), 403, refusal.Auth) // a browser's
	checkRefusal(t, w.do("GET", "/system/status", "", "Authorization", auth("me", "secret2")), 401, refusal.Auth)
	checkRefusal(t, w.do("GET", "/system/status", "", "Authorization", auth("you", "secret")), 401, refusal.Auth)
	// After a reload of the settings, calls require the password too.
	w.Gateway.cfg.Reload = func() (Settings, error) {
		return Settings{Access: api.Access{Auth: api.NewCredentials("me", "new"), AuthFunctions: true}}, nil
	}
	if err := w.reload(); err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, w.do("GET", "/function/f", ""), 401, refusal.Auth)
	if a := w.do("GET", "/function/f", "", "Authorization", auth("me", "new")); a.status != 200 {
		t.Errorf("got %+v; want status 200", a)
	}
	w.Gateway.cfg.Reload = func() (Settings, error) { return Settings{}, context.Canceled }
	if err := w.reload(); err == nil {
		t.Error("reload of an invalid password file: got no error, want one")
	}
	checkRefusal(t, w.do("GET", "/function/f", ""), 401, refusal.Auth)
}

// TestMetrics checks that all metrics exist, and that unknown function names do not
// become labels.
func TestMetrics(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	w.do("POST", "/function/f", "x")
	w.do("POST", "/function/unknown-name", "x")
	w.awaitNoCalls()
	text := w.do("GET", "/metrics", "").body
	for _, want := range []string{
		`gfaas_requests_total{code="200",function="f"} 1.0`, `gfaas_request_seconds_count{function="f"} 1`, `gfaas_queue_seconds_count{function="f"} 1`,
		`gfaas_starts_total{function="f",start="cold"} 1.0`, `gfaas_queue_length{function="f"} 0.0`, `gfaas_in_flight{function="f"} 0.0`,
		`gfaas_instances{function="f",state="idle"} 1.0`, `gfaas_gpu_seconds_total{function="f"} `, `gfaas_gpu_slots{gpu="sim"} 2.0`, `gfaas_gpu_running{gpu="sim"} 0.0`,
		`gateway_function_invocation_total{code="200",function_name="f.openfaas-fn"} 1.0`, `gateway_functions_seconds_count{function_name="f.openfaas-fn"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "unknown-name") {
		t.Error("labels of the metrics: got the name of an unknown function, want none")
	}
}

// TestAdoptionAfterChange checks that if a function has changed since its instance was
// started, the next gateway does not adopt the instance.
func TestAdoptionAfterChange(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*function.Function)
		adopted bool
	}{
		{"nothing", func(*function.Function) {}, true},
		{"what a gateway goes by", func(f *function.Function) { f.Scale.Max, f.Inflight, f.Timeout = 3, 2, time.Minute }, true},
		{"its command", func(f *function.Function) { f.Command = []string{"./other"} }, false},
		{"its environment", func(f *function.Function) { f.Env = map[string]string{"VERSION": "2"} }, false},
		{"its memory", func(f *function.Function) { f.GPUMem = 1 << 20 }, false},
		{"its folder", func(f *function.Function) { f.Dir = "/elsewhere" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Keep = true })
			w.apply(fn("f"))
			w.do("POST", "/function/f", "x")
			w.until("the record of f.1 is ready", func() bool { return w.record("f.1").State == instance.Ready })
			w.close()
			if err := w.catalog.Apply(context.Background(), fn("f", c.change)); err != nil {
				t.Fatal(err)
			}
			w.cfg.Keep = false
			w.open()
			want := "f.2"
			if c.adopted {
				want = "f.1"
			}
			if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != want {
				t.Errorf("call after the restart: got %+v, want an answer of %s", a, want)
			}
			w.until("only "+want+" runs", func() bool { return fmt.Sprint(w.runtime.Running()) == "["+want+"]" })
		})
	}
}

// auth returns the value of Authorization for a user and a password.
func auth(user, password string) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, password)
	return r.Header.Get("Authorization")
}
