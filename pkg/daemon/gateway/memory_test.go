package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

const mibs = int64(gpu.MiB)

// card simulates a GPU: an instance starts only if its memory fits.
type card struct {
	ports.Starter
	total   int64
	context int64
	swaps   bool // memory that instances allocate moves to the host when another instance needs the GPU

	mu        sync.Mutex
	allocates map[string]int64 // by function
	holds     map[string]int64 // allocated bytes by instance
	imports   map[string]int64 // mapped bytes of model weights by instance
	others    int64            // used by other programs
	failed    int
	silent    bool // neither the library nor the driver reports memory
	mute      bool // the driver reports no memory
}

func newCard(total, context int64, allocates map[string]int64) *card {
	c := &card{total: total * mibs, context: context * mibs, allocates: map[string]int64{}, holds: map[string]int64{}, imports: map[string]int64{}}
	for name, mib := range allocates {
		c.allocates[name] = mib * mibs
	}
	return c
}

// on configures a gateway to use the card.
func (c *card) on(cfg *Config) {
	c.Starter, cfg.Starter = cfg.Starter, c
	cfg.GPUs = []GPU{{Name: "sim", Mem: c.total}}
	cfg.Usage = c.usage
	if !c.silent && !c.mute {
		cfg.Memory = c.memory
	}
}

func (c *card) Start(ctx context.Context, f function.Function, p instance.Placement) (instance.Record, error) {
	if !c.hold(p.ID, f.Name) {
		return instance.Record{ID: p.ID, Function: f.Name}, &ports.StartError{ID: p.ID, Err: errors.New("exited with status 3"), OutOfMemory: !c.silent}
	}
	r, err := c.Starter.Start(ctx, f, p)
	if err != nil {
		c.release(p.ID)
	}
	return r, err
}

func (c *card) Stop(ctx context.Context, r instance.Record) error {
	err := c.Starter.Stop(ctx, r)
	if err == nil {
		c.release(r.ID)
	}
	return err
}

// hold allocates the memory of a new instance. It returns false if too little memory is
// free.
func (c *card) hold(id, function string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	need := c.allocates[function] + c.context
	if c.swaps {
		need = c.context
	}
	if need > c.free() {
		c.failed++
		return false
	}
	c.holds[id] = c.allocates[function]
	return true
}

func (c *card) release(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holds, id)
	delete(c.imports, id)
}

// set sets the memory that other programs use, in MiB.
func (c *card) set(others int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others = others * mibs
}

// grow makes an instance allocate mib MiB more.
func (c *card) grow(id string, mib int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds[id] += mib * mibs
}

// free returns the free memory in bytes. The caller holds c.mu.
func (c *card) free() int64 {
	free := c.total - c.others
	for _, bytes := range c.holds {
		free -= c.context
		if !c.swaps {
			free -= bytes
		}
	}
	most := int64(0)
	for _, bytes := range c.imports {
		most = max(most, bytes)
	}
	return free - most
}

func asMiB(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func (c *card) pids() map[string]int {
	out := map[string]int{}
	for n, id := range slices.Sorted(maps.Keys(c.holds)) {
		out[id] = 1<<30 + n
	}
	return out
}

func (c *card) memory(context.Context) map[string]Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return map[string]Memory{"sim": {Total: c.total, Free: c.free(), Processes: map[int]int64{1 << 29: c.others}}}
}

func (c *card) usage(context.Context) (wire.Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	on := wire.GPUStatus{GPU: "sim"}
	for id, pid := range c.pids() {
		row := wire.ClientStatus{Instance: id, PID: pid, MemUsedMiB: asMiB(c.holds[id]), ContextMiB: asMiB(c.context), MemImportedMiB: asMiB(c.imports[id])}
		if c.swaps {
			row.MemParkedMiB = row.MemUsedMiB
		}
		on.Clients = append(on.Clients, row)
	}
	return wire.Status{GPUs: []wire.GPUStatus{on}}, nil
}

func (c *card) failures() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// of returns a function that declares mib MiB of GPU memory, or none if mib is 0.
func of(name string, mib int64) function.Function {
	return fn(name, func(f *function.Function) { f.GPUMem = gpu.Bytes(mib * mibs) })
}

func (w *world) answers(name string) {
	w.t.Helper()
	if a := w.do("POST", "/function/"+name, "x"); a.status != 200 {
		w.t.Errorf("%s: got %+v; want status 200", name, a)
	}
}

// TestMemory checks that the gateway counts memory that functions do not declare, and
// stops idle instances if memory is short.
func TestMemory(t *testing.T) {
	needs := map[string]int64{"a": 450, "b": 450}
	for _, c := range []struct {
		name      string
		context   int64
		declared  int64
		allocates map[string]int64
		others    int64
		with      func(*card)
		fails     int // starts of each function that may fail before a call is answered
	}{
		{name: "contexts", context: 300, declared: 500, allocates: needs},
		{name: "contexts, and the driver reports nothing", context: 300, declared: 500, allocates: needs, with: func(c *card) { c.mute = true }, fails: 1},
		{name: "functions that declare none", context: 100, allocates: map[string]int64{"a": 600, "b": 600}, fails: 1},
		{name: "functions that declare none, and the driver reports nothing", context: 100, allocates: map[string]int64{"a": 600, "b": 600}, with: func(c *card) { c.mute = true }, fails: 1},
		{name: "an instance takes more than it declares", declared: 300, allocates: map[string]int64{"a": 800, "b": 300}},
		{name: "a new instance needs more than it declares", declared: 300, allocates: map[string]int64{"a": 300, "b": 800}, fails: 1},
		{name: "other programs", declared: 300, allocates: map[string]int64{"a": 300, "b": 300}, others: 500},
	} {
		for _, policy := range []string{"gfaas", "mqfq-sticky", "fcfs", "lalb"} {
			t.Run(c.name+"/"+policy, func(t *testing.T) {
				var text bytes.Buffer
				on := newCard(1024, c.context, c.allocates)
				if c.with != nil {
					c.with(on)
				}
				on.set(c.others)
				w := newWorld(t, http.HandlerFunc(echo), func(cfg *Config) {
					on.on(cfg)
					cfg.Policy.Policy, cfg.Record = policy, &text
				})
				w.apply(of("a", c.declared), of("b", c.declared))
				for _, name := range []string{"a", "b", "b", "a"} {
					w.answers(name)
				}
				if n := on.failures(); n > 2*c.fails {
					t.Errorf("%d starts failed, want at most %d for each", n, c.fails)
				}
				w.close()
				if err := replayed(text.Bytes()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestMemoryGrows checks that the gateway counts memory that an instance allocates or
// frees after its start.
func TestMemoryGrows(t *testing.T) {
	t.Parallel()
	on := newCard(1024, 0, map[string]int64{"a": 200, "b": 400})
	w := newWorld(t, http.HandlerFunc(echo), on.on)
	w.apply(of("a", 0), of("b", 400))
	w.answers("a")
	w.answers("b")
	both := func() bool { return fmt.Sprint(w.startedIDs()) == "[a.1 b.2]" }
	w.until("a.1 and b.2 run", both)
	counts := func(mib float64) func() bool {
		return func() bool {
			s := w.dispatcher.Snapshot()
			for _, i := range s.Instances {
				if s.Functions[i.Function].Name == "a" {
					return float64(i.Mem)/float64(mibs) == mib
				}
			}
			return false
		}
	}
	w.until("a counts with the 200 MiB of its start", counts(200))
	on.grow("a.1", 300)
	w.until("a counts with 500 MiB after it allocated 300", counts(500))
	w.until("a.1 and b.2 still run", both)
	on.grow("a.1", -400)
	w.until("a counts with 100 MiB after it freed 400", counts(100))
	on.grow("a.1", 524)
	w.until("a counts with 624 MiB, and the GPU is full", counts(624))
	on.set(200)
	w.until("one instance is stopped to make room for other programs", func() bool { return len(w.startedIDs()) == 1 })
}

// TestMemoryOfOthers checks that the status shows the memory of other programs, and calls
// whose instance fits are answered. Other calls fail at once with the reason until enough
// memory is free.
func TestMemoryOfOthers(t *testing.T) {
	t.Parallel()
	on := newCard(16<<10, 300, map[string]int64{"a": 3000, "b": 8000, "c": 8000})
	on.set(10 << 10)
	w := newWorld(t, http.HandlerFunc(echo), on.on)
	w.apply(of("a", 3000), of("b", 8000), of("c", 0), of("d", 20<<10))
	w.until("the status shows 10 GiB of other programs", func() bool {
		g := w.Status().GPUs[0]
		return g.MemUsedMiB != nil && *g.MemUsedMiB == 10<<10 && g.MemOtherMiB != nil && *g.MemOtherMiB == 10<<10
	})
	w.answers("a")
	a := w.do("POST", "/function/b", "x")
	checkRefusal(t, a, 503, refusal.MemoryInUse)
	for _, part := range []string{"function b needs 8000MiB of GPU memory", "GPU sim has ", " of 16GiB free", "instances of this gateway use 3300MiB", "other programs use 10GiB (process 536870912: 10GiB)"} {
		if !strings.Contains(a.body, part) {
			t.Errorf("got %s, want a text with %q", a.body, part)
		}
	}
	if a.header.Get("Retry-After") == "" {
		t.Error("header of the refusal: got no Retry-After, want one")
	}
	checkRefusal(t, w.do("POST", "/function/d", "x"), 503, refusal.LargerThanGPU)
	a = w.do("POST", "/function/c", "x") // declares no memory, so only the start can fail
	checkRefusal(t, a, 502, refusal.StartFailed)
	if !strings.Contains(a.body, "exited with status 3; GPU sim has ") || !strings.Contains(a.body, "other programs use 10GiB") {
		t.Errorf("got %s, want the exit status and the memory of other programs", a.body)
	}
	on.set(0)
	w.until("b is answered, because other programs freed their memory", func() bool { return w.do("POST", "/function/b", "x").status == 200 })
}

// TestBusyInstancesMakeNoRoom checks that busy instances and instances of gfaas up are
// not stopped to free memory. Calls wait for it.
func TestBusyInstancesMakeNoRoom(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	on := newCard(1024, 300, map[string]int64{"a": 450, "b": 450})
	w := newWorld(t, pathHandlers{"/wait": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }}, on.on)
	a, b := of("a", 500), of("b", 500)
	w.apply(a, b)
	var calls sync.WaitGroup
	call := func(path, on string) {
		calls.Go(func() {
			if got, err := w.try(context.Background(), "POST", "/function/"+path, "x"); err != nil || got.status != 200 || got.header.Get("Gfaas-Instance") != on {
				t.Errorf("%s: got %+v, %v; want status 200, Gfaas-Instance %v", path, got, err, on)
			}
		})
	}
	call("a/wait", "a.1")
	<-began
	call("b", "b.2")
	w.until("a call of b is queued", func() bool { return queuedCalls(w, "b") == 1 })
	if w.record("a.1").ID == "" {
		t.Error("record of the busy instance a.1: got none, want it to run")
	}
	release <- struct{}{}
	calls.Wait()
	w.until("a.1 is stopped, and b.2 runs", func() bool { return fmt.Sprint(w.startedIDs()) == "[b.2]" })

	w.apply(fn("b", func(f *function.Function) { f.GPUMem = a.GPUMem; f.Env = map[string]string{"X": "1"} })) // the changed definition stops the old instance
	w.until("no instance runs", func() bool { return len(w.startedIDs()) == 0 })
	on.hold("a-0", "a")
	w.gfaasUp("a-0", a)
	w.until("a-0 is adopted", func() bool { return fmt.Sprint(w.startedIDs()) == "[a-0]" })
	w.until("the status counts the context of a-0", func() bool { return *w.Status().GPUs[0].MemUsedMiB == 750 })
	call("b", "b.3")
	w.until("a call of b is queued", func() bool { return queuedCalls(w, "b") == 1 })
	w.answers("a")
	if n := on.failures(); n > 0 {
		t.Errorf("%d starts failed, want 0", n)
	}
	on.release("a-0")
	w.runtime.Kill("a-0", 0)
	calls.Wait()
}

// TestMemoryParked checks that the CUDA context of an instance whose memory is parked
// counts.
func TestMemoryParked(t *testing.T) {
	t.Parallel()
	on := newCard(1024, 200, map[string]int64{"a": 300, "b": 300, "c": 300, "d": 300})
	on.swaps = true
	var log lines
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		on.on(c)
		c.Park, c.Swapper, c.Record = ParkSwap, &parker{away: map[string]bool{}}, &log
	})
	for _, name := range []string{"a", "b", "c", "d"} {
		w.apply(of(name, 300))
	}
	w.answers("a")
	w.answers("b")
	w.until("the record counts both contexts", func() bool {
		return log.count(fmt.Sprintf(`"stays_bytes":%d`, 200*mibs)) == 2
	})
	for _, name := range []string{"c", "d", "a", "b"} {
		w.answers(name)
	}
	w.until("at most three instances run", func() bool {
		n := len(w.startedIDs())
		return n <= 3
	})
	if n := on.failures(); n > 0 {
		t.Errorf("%d starts failed, want 0", n)
	}
}

// TestSharedWeightsCountOnce checks that shared model weights count once. They are freed
// with the last instance that uses them, and do not count as memory of other programs.
func TestSharedWeightsCountOnce(t *testing.T) {
	on := newCard(1024, 0, map[string]int64{"a": 100, "b": 100, "c": 600})
	w := newWorld(t, http.HandlerFunc(echo), on.on)
	model := func(f *function.Function) {
		f.GPUMem, f.Model = gpu.Bytes(100*mibs), &function.Model{Name: "m"}
	}
	w.apply(fn("a", model), fn("b", model), of("c", 600))
	for n, name := range []string{"a", "b"} {
		w.answers(name)
		on.mu.Lock()
		on.imports[fmt.Sprintf("%s.%d", name, n+1)] = 500 * mibs
		on.mu.Unlock()
	}
	w.until("the status counts the weights once", func() bool {
		sum := int64(0)
		for _, i := range w.dispatcher.Snapshot().Instances {
			sum += i.Mem
		}
		return sum == 700*mibs && *w.Status().GPUs[0].MemOtherMiB == 0
	})
	w.until("c is answered, because the weights were freed", func() bool { return w.do("POST", "/function/c", "x").status == 200 })
}

// TestMemoryCapacity checks that if no list gives the memory of a GPU, as for a MIG
// instance, the gateway uses the size that the driver reports. --gpu-mem leaves the rest
// to other programs.
func TestMemoryCapacity(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                string
		limit, others, want int64
	}{
		{"no list has it", 0, 300, 724}, {"all of it", 1024, 300, 724}, {"a part of it", 512, 300, 512}, {"a part of it, and others use more", 512, 800, 224},
		{"a part, and others use all", 512, 1024, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log lines
			on := newCard(1024, 0, nil)
			on.set(c.others)
			w := newWorld(t, http.HandlerFunc(echo), func(cfg *Config) {
				on.on(cfg)
				cfg.GPUs[0].Mem, cfg.Record = c.limit*mibs, &log
			})
			w.until("the record has the expected memory of the GPU", func() bool {
				return log.last(`"mem_bytes":`) == fmt.Sprint(max(c.want*mibs, 1))
			})
		})
	}
}

// TestMemoryWithoutMeasurements checks that without measurements, only gpu_mem counts.
func TestMemoryWithoutMeasurements(t *testing.T) {
	on := newCard(1024, 300, map[string]int64{"a": 450, "b": 450})
	on.silent = true
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { on.on(c); c.Usage = nil })
	w.apply(of("a", 500), of("b", 500))
	w.answers("a")
	checkRefusal(t, w.do("POST", "/function/b", "x"), 502, refusal.StartFailed)
	if g := w.Status().GPUs[0]; g.MemUsedMiB != nil || g.MemOtherMiB != nil {
		t.Errorf("got mem_used_mib %v, mem_other_mib %v; want none", g.MemUsedMiB, g.MemOtherMiB)
	}
}
