package gateway

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestPark: where memory can wait on the host, it makes room for another function's
// that way, and its instance is host-warm; where it does not go, the instance does.
func TestPark(t *testing.T) {
	for _, goes := range []bool{true, false} {
		var w *world
		var asked atomic.Bool
		w = newWorld(t, http.HandlerFunc(echo), func(c *Config) {
			c.Park, c.GPUs = true, []GPU{{Name: "sim", Mem: int64(gpu.GiB)}}
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
		c.Park, c.Concurrency, c.GPUs, c.Record = true, 1, []GPU{{Name: "sim", Mem: int64(1500 * gpu.MiB)}}, &text
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
	w.until("there is room for it again", func() bool { return len(w.runtime.Running()) == 2 })
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
