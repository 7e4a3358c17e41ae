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

// TestPark: where memory can wait on the host, it makes room for another function's
// that way, and its instance is host-warm; where it does not go, the instance does.
func TestPark(t *testing.T) {
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
			calls = calls[:2] // each takes as long as memory may
		}
		for _, name := range calls {
			if a := w.do("POST", "/function/"+name, "x"); a.status != 200 {
				t.Fatalf("%+v", a)
			}
		}
		warm := *w.Status().Functions[0].HostWarmStarts + *w.Status().Functions[1].HostWarmStarts
		if goes && warm != 2 || !goes && warm != 0 || !asked.Load() {
			t.Errorf("memory goes %v: %d host-warm starts", goes, warm)
		}
		w.close()
	}
}

// parker is a Parker whose instances say of themselves whether they are away.
type parker struct {
	mu    sync.Mutex
	away  map[string]bool
	did   []string
	fails error // of the next Unpark
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

// usage is what the token daemon would say: 600 MiB an instance.
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

// here fails a call whose instance's memory is on the host.
func (p *parker) here(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.away[id]
}

// TestCheckpoint: where the driver moves memory, a call finds its instance's back; of
// an instance whose memory does not come back the call goes to another; what a killed
// gateway parked the next one brings back.
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
			if r.Header.Get("X-Leaves") == "" && !p.here(s.ID) { // a call whose caller has left is over, be it here or not
				t.Errorf("%s was called with its memory away", s.ID)
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
		t.Error(got)
	}
	p.fails = errors.New("out of memory")
	found("a", "cold", "a.3")
	w.until("the one that did not come back is gone", func() bool { return fmt.Sprint(w.runtime.Running()) == "[a.3 b.2]" })

	// Callers come and leave while memory moves.
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
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	all.Wait()

	// b is away when the gateway ends, and its instances stay as if it were killed.
	w.do("POST", "/function/a", "x")
	found("b", "host-warm", "b.2")
	found("a", "host-warm", "a.3")
	w.close()
	if err := replayed(text.Bytes()); err != nil {
		t.Error(err)
	}
	w.cfg.Park, w.cfg.Keep, w.cfg.Record = "", false, nil
	w.open()
	if p.here("b.2") {
		t.Fatal("b.2 is not away")
	}
	found("b", "host-warm", "b.2")
	w.close()
}

// TestPrefetch: a policy that brings memory back when a function becomes active counts
// it as back for no longer than until it is told that it comes with the next call
// alone, whether that call comes or its caller leaves, and what a call found is said
// as it was.
func TestPrefetch(t *testing.T) {
	var w *world
	var text bytes.Buffer
	began, goOn := make(chan bool), make(chan bool)
	w = newWorld(t, mixed{"/wait": func(http.ResponseWriter, *http.Request) { began <- true; <-goOn }}, func(c *Config) {
		c.Policy.Policy, c.Policy.Options.Prefetch, c.Set = "mqfq-sticky", true, map[string]string{"prefetch": "true"}
		c.Park, c.Concurrency, c.GPUs, c.Record = ParkSwap, 1, []GPU{{Name: "sim", Mem: int64(1500 * gpu.MiB)}}, &text
		c.Usage = func(context.Context) (wire.Status, error) { // all that is idle is parked at once
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
	found("b", "cold") // a's memory makes room
	if err := w.catalog.Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	w.until("there is room for it again", func() bool {
		w.engine.mu.Lock()
		defer w.engine.mu.Unlock()
		return len(w.engine.policy.Snapshot().Instances) == 2
	})
	ended := make(chan answer)
	go func() { ended <- w.do("POST", "/function/b/wait", "x") }()
	<-began
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := w.try(ctx, "POST", "/function/a", "x")
			left <- err
		}()
		w.until("it waits", func() bool { return waits(w, "a") == 1 })
		leave()
		if err := <-left; err == nil {
			t.Error("a caller that left was answered")
		}
		w.until("it does not", func() bool { return waits(w, "a") == 0 })
	}
	close(goOn)
	if a := <-ended; a.status != 200 {
		t.Errorf("%+v", a)
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

func waits(w *world, name string) int64 {
	for _, f := range w.Status().Functions {
		if f.Function == name {
			return int64(*f.Waiting)
		}
	}
	return -1
}
