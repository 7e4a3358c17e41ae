package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestPark checks that to make room, the gateway parks the memory of another function's
// idle instance on the host, so that the instance becomes host-warm. If that memory
// cannot be parked, the gateway stops the instance.
func TestPark(t *testing.T) {
	t.Parallel()
	for _, goes := range []bool{true, false} {
		var w *world
		var asked atomic.Bool
		w = newWorld(t, http.HandlerFunc(echo), func(c *Config) {
			c.Park, c.GPUs = ParkSwap, []GPU{{Name: "sim", Mem: int64(gpu.GiB)}}
			c.Usage = func(context.Context) (wire.Status, error) {
				asked.Store(true)
				s := wire.Status{GPUs: []wire.GPUStatus{{GPU: "sim"}}}
				for _, id := range w.runtime.Running() {
					row := wire.ClientStatus{Instance: id, MemUsedMiB: 600}
					if goes {
						row.MemParkedMiB = 600
					}
					s.GPUs[0].Clients = append(s.GPUs[0].Clients, row)
				}
				return s, nil
			}
		})
		of := func(name string) function.Function {
			return fn(name, func(f *function.Function) { f.GPUMem = 600 * gpu.MiB })
		}
		w.apply(of("a"), of("b"))
		calls := []string{"a", "b", "a", "b"}
		if !goes {
			calls = calls[:2] // each call takes as long as the gateway waits for memory to move
		}
		for _, name := range calls {
			if a := w.do("POST", "/function/"+name, "x"); a.status != 200 {
				t.Fatalf("got %+v; want status 200", a)
			}
		}
		warm := *w.Status().Functions[0].HostWarmStarts + *w.Status().Functions[1].HostWarmStarts
		if goes && warm != 2 || !goes && warm != 0 || !asked.Load() {
			t.Errorf("memory can be parked: %v: got %d host-warm starts, want 2 if it can and 0 if not", goes, warm)
		}
		w.close()
	}
}

// parker is a Parker that records which instances are parked.
type parker struct {
	mu    sync.Mutex
	away  map[string]bool
	did   []string
	fails error // error of the next Unpark
}

func (p *parker) Park(_ context.Context, id string) error {
	return p.do("park", id, true)
}

func (p *parker) Unpark(_ context.Context, id string) error { return p.do("unpark", id, false) }

func (p *parker) do(what, id string, away bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did = append(p.did, what+" "+id)
	if err := p.fails; err != nil && !away {
		p.fails = nil
		return err
	}
	p.away[id] = away
	return nil
}

// usage returns the usage that the token daemon would report: 600 MiB per instance.
func (p *parker) usage(w **world) func(context.Context) (wire.Status, error) {
	return func(context.Context) (wire.Status, error) {
		s := wire.Status{GPUs: []wire.GPUStatus{{GPU: "sim"}}}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, id := range (*w).runtime.Running() {
			row := wire.ClientStatus{Instance: id, MemUsedMiB: 600}
			if p.away[id] {
				row.MemParkedMiB = 600
			}
			s.GPUs[0].Clients = append(s.GPUs[0].Clients, row)
		}
		return s, nil
	}
}

// onGPU reports whether the memory of an instance is on the GPU.
func (p *parker) onGPU(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.away[id]
}

// TestCheckpoint checks that if the driver moves memory, it is back on the GPU before a
// call reaches the instance. If an unpark fails, the call goes to another instance. A
// restarted gateway can unpark an instance that a killed gateway has parked.
func TestCheckpoint(t *testing.T) {
	p := &parker{away: map[string]bool{}}
	var w *world
	var text bytes.Buffer
	w = newWorld(t, nil, func(c *Config) {
		c.Park, c.Parker, c.Keep, c.Record, c.GPUs = ParkCheckpoint, p, true, &text, []GPU{{Name: "sim", Mem: int64(gpu.GiB)}}
		c.Usage = p.usage(&w)
	})
	w.runtime.Handler = func(s instance.Spec) http.Handler {
		return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Leaves") == "" && !p.onGPU(s.ID) { // a call whose caller has disconnected has ended, so its memory may be anywhere
				t.Errorf("call of %s: its memory is parked, want it on the GPU", s.ID)
			}
			echo(out, r)
		})
	}
	for _, name := range []string{"a", "b"} {
		w.apply(fn(name, func(f *function.Function) { f.GPUMem = 600 * gpu.MiB }))
	}
	found := func(name, how, on string) {
		t.Helper()
		a := w.do("POST", "/function/"+name, "x")
		if a.status != 200 || a.header.Get("Gfaas-Start") != how || a.header.Get("Gfaas-Instance") != on {
			t.Errorf("%s: %+v, want %s %s", name, a, how, on)
		}
	}
	found("a", "cold", "a.1")
	found("b", "cold", "b.2")
	found("a", "host-warm", "a.1")
	found("a", "gpu-warm", "a.1")
	found("b", "host-warm", "b.2")
	if got := fmt.Sprint(p.did); got != "[park a.1 park b.2 unpark a.1 park a.1 unpark b.2]" {
		t.Errorf("got %s, want [park a.1 park b.2 unpark a.1 park a.1 unpark b.2]", got)
	}
	p.fails = errors.New("out of memory")
	found("a", "cold", "a.3")
	w.until("the instance whose unpark failed is stopped", func() bool { return fmt.Sprint(w.runtime.Running()) == "[a.3 b.2]" })

	// Callers connect and disconnect while memory moves.
	var all sync.WaitGroup
	for n := range 40 {
		all.Go(func() {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var headers []string
			if n%4 == 0 {
				headers = []string{"X-Leaves", "yes"}
				time.AfterFunc(time.Duration(n)*time.Millisecond, leave)
			}
			a, err := w.try(ctx, "POST", "/function/"+[]string{"a", "b"}[n%2], "x", headers...)
			if n%4 != 0 && (err != nil || a.status != 200) {
				t.Errorf("got %+v, %v; want status 200", a, err)
			}
		})
	}
	all.Wait()

	// b is parked when the gateway ends, and its instances remain as if the gateway had
	// been killed.
	w.do("POST", "/function/a", "x")
	found("b", "host-warm", "b.2")
	found("a", "host-warm", "a.3")
	w.close()
	if err := replayed(text.Bytes()); err != nil {
		t.Error(err)
	}
	w.cfg.Park, w.cfg.Keep, w.cfg.Record = "", false, nil
	w.open()
	if p.onGPU("b.2") {
		t.Fatal("memory of b.2: got it on the GPU, want it parked")
	}
	found("b", "host-warm", "b.2")
	w.close()
}

// TestPrefetch checks that a policy that prefetches memory when a function becomes active
// assumes that it is on the GPU only until the gateway reports that the memory moves with
// the next call. This holds whether that call arrives or its caller disconnects. The
// record keeps the state that a call found.
func TestPrefetch(t *testing.T) {
	var w *world
	var text bytes.Buffer
	began, goOn := make(chan bool), make(chan bool)
	w = newWorld(t, pathHandlers{"/wait": func(http.ResponseWriter, *http.Request) { began <- true; <-goOn }}, func(c *Config) {
		c.Policy.Policy, c.Policy.Options.Prefetch, c.Set = "mqfq-sticky", true, map[string]string{"prefetch": "true"}
		c.Park, c.Concurrency, c.GPUs, c.Record = ParkSwap, 1, []GPU{{Name: "sim", Mem: int64(1500 * gpu.MiB)}}, &text
		c.Usage = func(context.Context) (wire.Status, error) { // all idle memory is parked at once
			s := wire.Status{GPUs: []wire.GPUStatus{{GPU: "sim"}}}
			for _, id := range w.runtime.Running() {
				s.GPUs[0].Clients = append(s.GPUs[0].Clients, wire.ClientStatus{Instance: id, MemUsedMiB: 600, MemParkedMiB: 600})
			}
			return s, nil
		}
	})
	for _, name := range []string{"a", "b", "c"} {
		w.apply(fn(name, func(f *function.Function) { f.GPUMem = 600 * gpu.MiB }))
	}
	found := func(name, want string) {
		t.Helper()
		if a := w.do("POST", "/function/"+name, "x"); a.status != 200 || a.header.Get("Gfaas-Start") != want {
			t.Errorf("%s found %+v, want %s", name, a, want)
		}
	}
	found("a", "cold")
	found("c", "cold")
	found("b", "cold") // the memory of a is moved to make room
	if err := w.catalog.Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	w.until("the removed function has no instance", func() bool {
		return len(w.dispatcher.Snapshot().Instances) == 2
	})
	ended := make(chan answer)
	go func() { ended <- w.do("POST", "/function/b/wait", "x") }()
	<-began
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		result := make(chan error)
		go func() {
			_, err := w.try(ctx, "POST", "/function/a", "x")
			result <- err
		}()
		w.until("a call of a is queued", func() bool { return queuedCalls(w, "a") == 1 })
		leave()
		if err := <-result; err == nil {
			t.Error("call of a caller that disconnected: got an answer, want an error")
		}
		w.until("no call of a is queued", func() bool { return queuedCalls(w, "a") == 0 })
	}
	close(goOn)
	if a := <-ended; a.status != 200 {
		t.Errorf("got %+v; want status 200", a)
	}
	found("a", "host-warm")
	found("a", "gpu-warm")
	found("b", "gpu-warm")
	w.close()
	if n := strings.Count(text.String(), `"action":"prefetch"`); n != 4 {
		t.Errorf("%d prefetches, want 4", n)
	}
	if err := replayed(text.Bytes()); err != nil {
		t.Error(err)
	}
}

// queuedCalls returns the number of queued calls of a function, or -1 if the gateway does not know it.
func queuedCalls(w *world, name string) int64 {
	for _, f := range w.Status().Functions {
		if f.Function == name {
			return int64(*f.Waiting)
		}
	}
	return -1
}
