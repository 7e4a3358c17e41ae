package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestPark checks that to make room, the gateway parks the memory of another function's
// idle instance on the host, so that the instance becomes host-warm. If that memory
// cannot be parked, the gateway stops the instance. The gateway learns the memory of a
// function without gpu_mem.
func TestPark(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		fails   error
		learned bool
		want    string // starts of calls of a, b, a, b
	}{
		{"moves", nil, false, "cold cold host-warm host-warm"},
		{"fails", errors.New("2 MiB remain"), false, "cold cold cold cold"},
		{"moves without gpu_mem", nil, true, "cold cold host-warm host-warm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &parker{away: map[string]bool{}, cannotPark: c.fails}
			w := newWorld(t, http.HandlerFunc(echo), func(cfg *Config) {
				cfg.Park, cfg.Swapper, cfg.GPUs = ParkSwap, p, []GPU{{Name: "sim", Mem: int64(gpu.GiB)}}
				cfg.Usage, cfg.Memory = p.usage, p.memory
			})
			p.observe(w, http.HandlerFunc(echo))
			for _, name := range []string{"a", "b"} {
				w.apply(fn(name, func(f *function.Function) {
					if f.GPUMem = 600 * gpu.MiB; c.learned {
						f.GPUMem = 0
					}
				}))
			}
			var found []string
			for _, name := range []string{"a", "b", "a", "b"} {
				a := w.do("POST", "/function/"+name, "x")
				if a.status != 200 {
					t.Fatalf("got %+v; want status 200", a)
				}
				found = append(found, a.header.Get("Gfaas-Start"))
				if c.learned {
					w.until("the memory of the instance is known, and the other has moved", func() bool {
						known, idle := false, true
						for _, i := range w.dispatcher.Snapshot().Instances {
							known = known || i.Mem >= int64(600*gpu.MiB) && w.Status().Functions[i.Function].Function == name
							idle = idle && i.State == "idle"
						}
						return known && idle
					})
				}
			}
			if got := strings.Join(found, " "); got != c.want {
				t.Errorf("starts of a, b, a and b: got %s, want %s", got, c.want)
			}
			w.close()
		})
	}
}

// parker is a Parker that records which instances are parked.
type parker struct {
	mu    sync.Mutex
	away  map[string]bool
	did   []string
	fails error // error of the next Unpark

	cannotPark error // error of every Park
	world      *world
}

// observe makes usage and resident report the instances of a gateway. On every call of an instance, its
// memory moves to the GPU, as if the preload library moved it.
func (p *parker) observe(w *world, handler http.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.world = w
	w.runtime.Handler = func(s instance.Spec) http.Handler {
		return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			p.mu.Lock()
			p.away[s.ID] = false
			p.mu.Unlock()
			handler.ServeHTTP(out, r)
		})
	}
}

// running returns the instances of the gateway, once it is known. The caller holds the lock.
func (p *parker) running() []string {
	if p.world == nil {
		return nil
	}
	return p.world.runtime.Running()
}

func (p *parker) Park(_ context.Context, id string) error {
	return p.do("park", id, true)
}

func (p *parker) Unpark(_ context.Context, id string) error { return p.do("unpark", id, false) }

func (p *parker) do(what, id string, away bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did = append(p.did, what+" "+id)
	if p.cannotPark != nil && away {
		return p.cannotPark
	}
	if err := p.fails; err != nil && !away {
		p.fails = nil
		return err
	}
	p.away[id] = away
	return nil
}

// usage returns the usage that the token daemon would report: 600 MiB per instance.
func (p *parker) usage(context.Context) (wire.Status, error) {
	s := wire.Status{GPUs: []wire.GPUStatus{{GPU: "sim"}}}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.running() {
		row := wire.ClientStatus{Instance: id, MemUsedMiB: 600}
		if p.away[id] {
			row.MemParkedMiB = 600
		}
		s.GPUs[0].Clients = append(s.GPUs[0].Clients, row)
	}
	return s, nil
}

// memory returns the figures that the driver of a GPU with 1 GiB would report.
func (p *parker) memory(context.Context) map[string]Memory {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := Memory{Total: int64(gpu.GiB), Free: int64(gpu.GiB)}
	for _, id := range p.running() {
		if !p.away[id] {
			m.Free -= int64(600 * gpu.MiB)
		}
	}
	return map[string]Memory{"sim": m}
}

// list returns the moves since the last call of forget.
func (p *parker) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.did)
}

func (p *parker) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did = nil
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
		c.Usage = p.usage
	})
	w.runtime.Handler = func(s instance.Spec) http.Handler {
		return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Leaves") == "" && !p.onGPU(s.ID) { // a call whose caller has disconnected has ended, so its memory may be anywhere
				t.Errorf("call of %s: its memory is parked, want it on the GPU", s.ID)
			}
			echo(out, r)
		})
	}
	p.world = w
	for _, name := range []string{"a", "b"} {
		// On a slow host, the policy would start a second instance in place of the other function's.
		w.apply(fn(name, func(f *function.Function) { f.GPUMem, f.Scale.Max = 600*gpu.MiB, 1 }))
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

// TestFollow checks that the memory of a function follows the state of its queue: it moves to the
// host when the function is inactive, although no call needs the room, and back when a call of the
// function waits, also if the preload library moves it. If a prefetch fails, the call finds the
// memory on the host.
func TestFollow(t *testing.T) {
	for _, policy := range []string{"mqfq-sticky", "gfaas"} {
		t.Run(policy, func(t *testing.T) {
			p := &parker{away: map[string]bool{}}
			var text bytes.Buffer
			began, goOn := make(chan bool), make(chan bool)
			w := newWorld(t, nil, func(c *Config) {
				c.Policy.Policy, c.Policy.Alpha, c.Policy.Prefetch, c.Policy.Swap = policy, 0, true, true // inactive when idle
				c.Set = map[string]string{"prefetch": "true", "swap": "true", "alpha": "0"}
				c.Park, c.Swapper, c.Concurrency, c.GPUs, c.Record = ParkSwap, p, 1, []GPU{{Name: "sim", Mem: int64(2 * gpu.GiB)}}, &text
				c.Usage = p.usage
			})
			p.observe(w, pathHandlers{"/wait": func(http.ResponseWriter, *http.Request) { began <- true; <-goOn }})
			for _, name := range []string{"a", "b"} {
				w.apply(fn(name, func(f *function.Function) { f.GPUMem = 600 * gpu.MiB }))
			}
			found := func(name, want string) {
				t.Helper()
				a := w.do("POST", "/function/"+name, "x")
				if a.status != 200 || a.header.Get("Gfaas-Start") != want {
					t.Errorf("%s found %+v, want %s", name, a, want)
				}
			}
			parked := func(id string) {
				t.Helper()
				w.until("the memory of the inactive instance is on the host", func() bool {
					for _, i := range w.dispatcher.Snapshot().Instances {
						if i.State != "idle" {
							return false
						}
					}
					return !p.onGPU(id)
				})
			}
			found("a", "cold")
			parked("a.1")
			found("b", "cold")
			parked("b.2")
			p.forget()

			// Calls of a wait while b runs, so the memory of a moves back. Their callers leave.
			wait := func(name string, then func()) {
				t.Helper()
				ended := make(chan answer)
				go func() { ended <- w.do("POST", "/function/"+name+"/wait", "x") }()
				<-began
				then()
				goOn <- true
				if a := <-ended; a.status != 200 {
					t.Errorf("got %+v; want status 200", a)
				}
			}
			type result struct {
				answer
				err error
			}
			waits := make(chan result, 1)
			for _, fails := range []error{nil, errors.New("out of luck")} {
				want := "gpu-warm"
				if fails != nil {
					want = "host-warm"
				}
				p.fails = fails
				wait("b", func() {
					go func() {
						a, err := w.try(t.Context(), "POST", "/function/a", "x")
						waits <- result{a, err}
					}()
					w.until("the prefetch of a has ended", func() bool {
						for _, i := range w.dispatcher.Snapshot().Instances {
							if i.State == "prefetching" {
								return false
							}
						}
						return queuedCalls(w, "a") == 1 && strings.Contains(fmt.Sprint(p.list()), "unpark a.1")
					})
				})
				if r := <-waits; r.err != nil || r.status != 200 || r.header.Get("Gfaas-Start") != want {
					t.Errorf("a call of a after a prefetch with the error %v found %+v, %v; want %s", fails, r.answer, r.err, want)
				}
				parked("a.1")
				parked("b.2")
				p.forget()
			}
			w.close()
			if !strings.Contains(text.String(), `"queue-not-active"`) {
				t.Error("the record has no move with the reason queue-not-active")
			}
			if err := replayed(text.Bytes()); err != nil {
				t.Error(err)
			}
		})
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
