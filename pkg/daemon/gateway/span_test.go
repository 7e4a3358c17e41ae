package gateway

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/record"
)

// TestFunctionOnSeveralGPUs checks that a function that spans several GPUs is served by
// the planned instances. Without a planned instance, its calls are refused at once.
func TestFunctionOnSeveralGPUs(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{}, 10)
	w := newWorld(t, pathHandlers{"/wait": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }}, nil)
	f := fn("f", func(f *function.Function) { f.GPUs, f.Scale.Min = 2, 1 })
	w.apply(f, fn("g"))
	a := w.do("POST", "/function/f", "x")
	checkRefusal(t, a, 502, refusal.StartFailed)
	if !strings.Contains(a.body, "spans 2 GPUs") || !strings.Contains(a.body, "gfaas up PLAN.json") {
		t.Errorf("got %s; want spans 2 GPUs, and the hint gfaas up PLAN.json", a.body)
	}
	if a := w.do("POST", "/system/scale-function/f", `{"replicas":1}`); a.status != 400 || !strings.Contains(a.body, "spans 2 GPUs") {
		t.Errorf(`got %+v; want status 400, a body with "spans 2 GPUs"`, a)
	}
	w.gfaasUp("f-0", f)
	w.until("the planned instance is adopted", func() bool { return len(w.startedIDs()) == 1 })
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if a, err := w.try(context.Background(), "POST", "/function/f/wait", "x"); err != nil || a.status != 200 || a.header.Get("Gfaas-Instance") != "f-0" {
				t.Errorf("got %+v, %v; want status 200, Gfaas-Instance f-0", a, err)
			}
		})
	}
	<-began
	w.until("the second call is queued", func() bool { return *w.Status().Functions[0].Waiting == 1 })
	close(release)
	calls.Wait()
	w.runtime.Kill("f-0", 1)
	w.until("no instance runs", func() bool { return len(w.startedIDs()) == 0 })
	checkRefusal(t, w.do("POST", "/function/f", "x"), 502, refusal.StartFailed)
	if a := w.do("POST", "/function/g", "x"); a.status != 200 {
		t.Errorf("another function: got %+v; want status 200", a)
	}
}

// TestSpanMemory checks that an instance that spans two GPUs uses memory on both. Idle
// instances on either GPU are stopped to make room for it, instances that do not fit wait
// until it has ended, and a replay of the record makes the same decisions.
func TestSpanMemory(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			var text bytes.Buffer
			began, release := make(chan struct{}), make(chan struct{})
			w := newWorld(t, pathHandlers{"/wait": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }}, func(c *Config) {
				c.Policy.Policy, c.Record, c.Concurrency = policy, &text, 1
				c.GPUs = []GPU{{Name: "sim", Mem: int64(4 * gpu.GiB)}, {Name: "sim:1", Mem: int64(4 * gpu.GiB)}}
			})
			of := func(mem gpu.Bytes) func(*function.Function) { return func(f *function.Function) { f.GPUMem = mem } }
			f := fn("f", of(3*gpu.GiB), func(f *function.Function) { f.GPUs = 2 })
			w.apply(f, fn("g", of(2*gpu.GiB)), fn("h", of(gpu.GiB)))
			var calls sync.WaitGroup
			call := func(path, instance string) {
				calls.Go(func() {
					if a, err := w.try(context.Background(), "POST", "/function/"+path, "x"); err != nil || a.status != 200 || !strings.HasPrefix(a.header.Get("Gfaas-Instance"), instance) {
						t.Errorf("%s: got %+v, %v; want status 200, Gfaas-Instance %s…", path, a, err, instance)
					}
				})
			}
			call("g/wait", "g.") // one call on each GPU
			call("g/wait", "g.")
			<-began
			<-began
			release <- struct{}{}
			release <- struct{}{}
			calls.Wait()
			w.gfaasUpOn("f-0", f, noRate, "sim", "sim:1")
			w.until("only f-0 runs", func() bool { return slices.Equal(w.startedIDs(), []string{"f-0"}) })
			call("f/wait", "f-0")
			<-began
			for _, g := range w.Status().GPUs {
				if *g.Running != 1 {
					t.Errorf("%d run on GPU %s, want 1", *g.Running, g.GPU)
				}
			}
			release <- struct{}{}
			calls.Wait()
			if a := w.do("POST", "/function/h", "x"); a.status != 200 {
				t.Errorf("what fits beside it: got %+v; want status 200", a)
			}
			call("g", "g.")
			w.until("the call whose instance does not fit is queued", func() bool { return *w.Status().Functions[1].Waiting == 1 })
			if why := w.Status().Functions[1].Why; policy == "gfaas" && why != "no-gpu-with-room" {
				t.Errorf("got the reason %q, want that no GPU has room", why)
			}
			w.runtime.Kill("f-0", 1)
			calls.Wait()
			w.close()
			if err := replayed(text.Bytes()); err != nil {
				t.Fatal(err)
			}
			const taken = `"event":"occupied","gpu":1,"mem_bytes":3221225472`
			var other *record.Difference
			if err := replayed([]byte(strings.Replace(text.String(), taken, `"event":"occupied","gpu":1`, 1))); !errors.As(err, &other) {
				t.Errorf("without its memory on the second GPU: got %v, want a Difference", err)
			}
		})
	}
}

// TestSpanStart checks that the gateway itself starts an instance that spans two GPUs: for a
// call, after idle instances there were stopped. A replay of the record makes the same
// decisions, and the next gateway adopts the instance with its memory on both GPUs.
func TestSpanStart(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"gfaas", "lalb-o3"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			var text bytes.Buffer
			w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
				c.Policy.Policy, c.Record, c.Concurrency, c.Keep = policy, &text, 1, true
				c.GPUs = []GPU{{Name: "sim", Mem: int64(4 * gpu.GiB)}, {Name: "sim:1", Mem: int64(4 * gpu.GiB)}}
			})
			of := func(mem gpu.Bytes, gpus int) func(*function.Function) {
				return func(f *function.Function) { f.GPUMem, f.GPUs = mem, gpus }
			}
			w.apply(fn("f", of(3*gpu.GiB, 2)), fn("g", of(2*gpu.GiB, 1)))
			for _, name := range []string{"g", "f"} {
				if a := w.do("POST", "/function/"+name, "x"); a.status != 200 || !strings.HasPrefix(a.header.Get("Gfaas-Instance"), name+".") {
					t.Fatalf("%s: got %+v, want status 200 from an own instance", name, a)
				}
			}
			if a := w.do("POST", "/system/scale-function/f", `{"replicas":1}`); a.status != 202 {
				t.Errorf("got %+v, want status 202", a)
			}
			w.until("the instances of g have stopped, and one of f spans both GPUs", func() bool {
				list := w.Status().Instances
				return len(list) == 1 && list[0].Function == "f" && list[0].GPU == "sim,sim:1"
			})
			before := w.Status().Instances[0].ID
			w.close()
			if err := replayed(text.Bytes()); err != nil {
				t.Error(err)
			}
			w.cfg.Record, w.cfg.Keep = nil, false
			w.open()
			if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != before {
				t.Errorf("after a restart: got %+v, want status 200 from %s", a, before)
			}
		})
	}
}
