package residency

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// container is a container as in docs/simulation.md.
type container struct {
	function, gpu     int32
	mem               int64
	running, resident bool
	finished          int // sequence number of the last completion
}

// twin is a simple pool that scans all containers for every decision.
type twin struct {
	config     shape
	slots      []int
	occupied   []int64 // by GPU: memory used by others
	containers []*container
	now        int
	changes    []string
}

func (w *twin) containersOn(gpu int32, matches func(*container) bool) (found []*container) {
	for _, b := range w.containers {
		if (b.gpu == gpu || gpu == Any) && matches(b) {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b *container) int { return cmp.Compare(a.finished, b.finished) })
	return found
}

func running(b *container) bool { return b.running }
func idle(b *container) bool    { return !b.running }
func movable(b *container) bool { return !b.running && b.resident && b.mem > 0 }
func sum(boxes []*container) (mem int64) {
	for _, b := range boxes {
		mem += b.mem
	}
	return mem
}

func (w *twin) used(gpu int32) int64 {
	return w.occupied[gpu] + sum(w.containersOn(gpu, func(b *container) bool { return b.resident }))
}

// lookUp implements R9.
func (w *twin) lookUp(function, gpu int32) (Start, *container) {
	mine := w.containersOn(gpu, func(b *container) bool { return !b.running && b.function == function })
	if len(mine) == 0 {
		return Cold, nil
	}
	slices.SortStableFunc(mine, func(a, b *container) int {
		switch {
		case a.resident == b.resident:
			return 0
		case b.resident:
			return -1
		}
		return 1
	})
	last := mine[len(mine)-1]
	if w.config.Mem > 0 && !last.resident {
		return HostWarm, last
	}
	return GPUWarm, last
}

func (w *twin) room(gpu, function int32) bool {
	mem := w.occupied[gpu] + sum(w.containersOn(gpu, running)) + w.config.Function[function].Mem
	return len(w.containersOn(gpu, running)) < w.slots[gpu] && (w.config.Mem == 0 || mem <= w.config.Mem)
}

func (w *twin) worth(b *container, remove bool) float64 {
	d, gpus := w.config.Function[b.function].Duration, map[int32]bool{}
	for _, other := range w.containersOn(Any, func(o *container) bool { return !o.running && o.function == b.function }) {
		gpus[other.gpu] = true
	}
	before, after := HostWarm, HostWarm
	if b.resident {
		before = GPUWarm
	}
	if remove {
		after = Cold
	}
	return w.config.Worth(b.function, max(d[after]-d[before], 0)) / float64(max(len(gpus), 1))
}

// firstToEvict returns the first container in eviction order, by R8 or by worth, and its worth.
func (w *twin) firstToEvict(boxes []*container, remove bool) (first *container, worth float64) {
	price := func(b *container) float64 {
		switch {
		case w.config.Worth != nil && remove:
			return w.worth(b, true)
		case w.config.Worth != nil:
			return w.worth(b, false) / float64(b.mem)
		case w.config.EvictLast != nil && w.config.EvictLast(b.function):
			return 1
		}
		return 0
	}
	for _, b := range boxes {
		if p := price(b); first == nil || p < worth {
			first, worth = b, p
		}
	}
	return first, worth
}

func (w *twin) remove(b *container) {
	w.containers = slices.DeleteFunc(w.containers, func(o *container) bool { return o == b })
	w.changes = append(w.changes, fmt.Sprintf("gpu %d removes %d", b.gpu, b.function))
}

func (w *twin) removeTo(gpu int32, limit int) {
	for w.config.Pool != Unlimited && len(w.containersOn(gpu, func(*container) bool { return true })) > limit && len(w.containersOn(gpu, idle)) > 0 {
		first, _ := w.firstToEvict(w.containersOn(gpu, idle), true)
		w.remove(first)
	}
}

// moveToGPU moves the memory of a container to its GPU.
func (w *twin) moveToGPU(b *container) {
	if b.resident {
		return
	}
	w.makeRoom(b.gpu, b.mem)
	b.resident = true
}

func (w *twin) makeRoom(gpu int32, mem int64) {
	var moved []*container
	for w.config.Mem > 0 && w.used(gpu)+mem > w.config.Mem {
		first, _ := w.firstToEvict(w.containersOn(gpu, movable), false)
		first.resident = false
		moved = append(moved, first)
		w.changes = append(w.changes, fmt.Sprintf("gpu %d unloads %d", gpu, first.function))
	}
	w.removeObsolete(moved)
}

// removeObsolete removes the given containers, with memory on the host, whose memory can never
// return.
func (w *twin) removeObsolete(boxes []*container) {
	for _, b := range boxes {
		if w.config.Mem > 0 && b.mem > w.config.Mem-w.occupied[b.gpu] {
			w.remove(b)
		}
	}
}

func (w *twin) dispatch(function int32, at Place) *container {
	_, b := w.lookUp(function, at.GPU)
	if b == nil {
		w.removeTo(at.GPU, w.config.Pool-1)
		b = &container{function: function, gpu: at.GPU, mem: w.config.Function[function].Mem}
		w.containers = append(w.containers, b)
	}
	b.running = true
	w.moveToGPU(b)
	return b
}

func (w *twin) end(b *container) {
	w.now++
	b.running, b.finished = false, w.now
	w.removeTo(b.gpu, w.config.Pool)
}

// prefetch returns the GPU, or none.
func (w *twin) prefetch(function int32) int32 {
	var back *container
	for g := range int32(len(w.slots)) {
		start, b := w.lookUp(function, g)
		if start == GPUWarm {
			return none
		}
		if start == HostWarm && back == nil && w.used(g)+b.mem <= w.config.Mem {
			back = b
		}
	}
	if back == nil {
		return none
	}
	w.moveToGPU(back)
	w.now++
	back.finished = w.now
	return back.gpu
}

// best implements R10. With Config.Worth, it compares the loss before the number of running
// containers.
func (w *twin) best(function, only, except int32) (at Place, loss float64, ok bool) {
	d := w.config.Function[function].Duration
	type key struct {
		duration time.Duration
		loss     float64
		running  int
	}
	var least key
	for g := range int32(len(w.slots)) {
		if !w.room(g, function) || g == except || only != Any && g != only {
			continue
		}
		start, _ := w.lookUp(function, g)
		k := key{d[start], 0, len(w.containersOn(g, running))}
		if w.config.Worth != nil {
			k.loss = w.loss(g, function, start)
		}
		if !ok || cmp.Or(cmp.Compare(k.duration, least.duration), cmp.Compare(k.loss, least.loss), cmp.Compare(k.running, least.running)) < 0 {
			at, least, ok = Place{GPU: g, Start: start}, k, true
		}
	}
	return at, least.loss, ok
}

// loss returns the worth of the evicted containers or, for a gpu-warm start, of the containers
// that would be unused meanwhile.
func (w *twin) loss(gpu, function int32, start Start) (worth float64) {
	mem := w.config.Function[function].Mem
	switch {
	case start == GPUWarm && w.config.Mem == 0:
	case start == GPUWarm:
		for _, b := range w.containersOn(gpu, func(b *container) bool { return movable(b) && b.function != function }) {
			worth += w.worth(b, false)
		}
	case start == Cold && w.config.Pool != Unlimited && len(w.containersOn(gpu, func(*container) bool { return true })) >= w.config.Pool:
		_, worth = w.firstToEvict(w.containersOn(gpu, idle), true)
	case w.config.Mem > 0 && w.used(gpu)+mem > w.config.Mem:
		_, worth = w.firstToEvict(w.containersOn(gpu, movable), false)
		worth *= float64(mem)
	}
	return worth
}

func changeStrings(changes []Change) (list []string) {
	for _, c := range changes {
		verb := "unloads"
		if c.Verb == ToRemove {
			verb = "removes"
		}
		list = append(list, fmt.Sprintf("gpu %d %s %d", c.GPU, verb, c.Function))
	}
	return list
}

// drawConfig draws a small pool. EvictLast and Worth depend on active, which a test may change.
func drawConfig(t *rapid.T, active map[int32]bool) shape {
	c := shape{
		GPUs: rapid.SampledFrom([]int{1, 2, 3, 66}).Draw(t, "gpus"), Slots: rapid.IntRange(1, 3).Draw(t, "slots"),
		Config: Config{Pool: rapid.SampledFrom([]int{Unlimited, 0, 1, 2, 4}).Draw(t, "pool")}, Mem: rapid.SampledFrom([]int64{0, 10, 25}).Draw(t, "memory"),
	}
	for range rapid.IntRange(1, 5).Draw(t, "functions") {
		warm := time.Duration(rapid.IntRange(1, 3).Draw(t, "warm"))
		load := time.Duration(rapid.IntRange(0, 3).Draw(t, "load"))
		cold := time.Duration(rapid.IntRange(0, 3).Draw(t, "cold"))
		c.Function = append(c.Function, Function{Duration: [3]time.Duration{warm + load + cold, warm + load, warm}, Mem: rapid.Int64Range(0, 10).Draw(t, "mem")})
	}
	switch rapid.IntRange(0, 2).Draw(t, "order") {
	case 1:
		c.EvictLast = func(function int32) bool { return active[function] }
	case 2:
		c.Worth = func(function int32, extra time.Duration) float64 { return float64(function%3+1) * float64(extra) }
	}
	return c
}

func TestPoolAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		active := map[int32]bool{}
		c := drawConfig(t, active)
		p, w := c.pool(), &twin{config: c, slots: slices.Repeat([]int{c.Slots}, c.GPUs), occupied: make([]int64, c.GPUs)}
		containers := map[*container]int32{}
		drawGPU := func(from int32) int32 { return rapid.Int32Range(from, int32(c.GPUs-1)).Draw(t, "gpu") }
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			f := rapid.Int32Range(0, int32(len(c.Function)-1)).Draw(t, "function")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				active[f] = !active[f]
			case 1:
				g, n := drawGPU(0), rapid.IntRange(0, 3).Draw(t, "slots")
				p.SetSlots(g, n)
				w.slots[g] = n
			case 2:
				index, ok := prefetch(p, f)
				at := none
				if ok {
					at = p.instances[index].gpu
				}
				if want := w.prefetch(f); at != want || ok != (want != none) {
					t.Fatalf("prefetch of function %d: got GPU %d, %v; want %d", f, at, ok, want)
				}
				if ok && p.Ready(index) != time.Second {
					t.Fatalf("prefetch of function %d: got ready at %v, want 1s", f, p.Ready(index))
				}
			case 3, 4, 5:
				if all := w.containersOn(Any, running); len(all) > 0 {
					b := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
					p.End(containers[b], 0)
					w.end(b)
				}
			case 6:
				g := drawGPU(0)
				w.occupied[g] = rapid.Int64Range(0, max(c.Mem-sum(w.containersOn(g, running)), 0)).Draw(t, "occupied")
				p.Occupy(g, w.occupied[g])
				w.removeObsolete(w.containersOn(g, func(b *container) bool { return idle(b) && !b.resident }))
				w.makeRoom(g, 0)
			default:
				only, except := Any, Any
				if c.Worth == nil {
					only, except = drawGPU(Any), drawGPU(Any)
				}
				at, ok := p.Best(f, only, except)
				for g := range int32(c.GPUs) {
					if got, want := p.FitsOn(g, f), c.Mem == 0 || w.occupied[g]+c.Function[f].Mem <= c.Mem; got != want {
						t.Fatalf("FitsOn(GPU %d, function %d): got %v, want %v", g, f, got, want)
					}
				}
				if got, want := p.MaxFreeMem(), maxFreeMem(p); got != want {
					t.Fatalf("MaxFreeMem() = %d, want %d", got, want)
				}
				if ok && !p.MightFit(f, p.MaxFreeMem()) {
					t.Fatalf("MightFit(%d, %d): got false, want true, since Best returns %+v", f, p.MaxFreeMem(), at)
				}
				loss := 0.0
				if c.Worth != nil {
					at, loss, ok = p.Cheapest(f)
				}
				want, least, can := w.best(f, only, except)
				if ok != can || ok && (loss != least || at.GPU != want.GPU || at.Start != want.Start) {
					t.Fatalf("function %d, only GPU %d, except GPU %d: got %+v, loss %v, %v; want %+v, loss %v, %v", f, only, except, at, loss, ok, want, least, can)
				}
				if ok {
					container, _ := p.Begin(f, at)
					containers[w.dispatch(f, at)] = container
				}
			}
			compare(t, p, w)
		}
	})
}

// compare checks that all methods of both pools agree.
func compare(t *rapid.T, p *Pool, w *twin) {
	got, free := changeStrings(confirmAll(p)), 0
	for g := range int32(len(w.slots)) {
		now := w.slots[g] - len(w.containersOn(g, running))
		free += max(now, 0)
		if open := int(p.gpus[g].capacity-p.gpus[g].used) / unit; open != now || p.Free(g) != (now > 0) {
			t.Fatalf("free slots of GPU %d: got %d, want %d", g, open, now)
		}
		if w.config.Mem > 0 && w.used(g) > w.config.Mem {
			t.Fatalf("memory used on GPU %d: got %d bytes, want at most %d", g, w.used(g), w.config.Mem)
		}
	}
	for f := range int32(len(w.config.Function)) {
		least := time.Duration(-1)
		for g := range int32(len(w.slots)) {
			if p.Room(g, f) != w.room(g, f) {
				t.Fatalf("Room(GPU %d, function %d): got %v, want %v", g, f, p.Room(g, f), w.room(g, f))
			}
			start, _ := w.lookUp(f, g)
			if d := w.config.Function[f].Duration[start]; least < 0 || d < least {
				least = d
			}
		}
		if p.Expected(f) != least {
			t.Fatalf("expected start time of function %d: got %v, want %v", f, p.Expected(f), least)
		}
	}
	if p.freeCapacity != int64(free*unit) || p.AnyFree() != (free > 0) || !slices.Equal(got, w.changes) {
		t.Fatalf("got %d free slots and changes %v, want %d and %v", p.freeCapacity/unit, got, free, w.changes)
	}
	w.changes = nil
}

// maxFreeMem computes MaxFreeMem from the GPUs.
func maxFreeMem(p *Pool) (mem int64) {
	mem = -1
	for gpu := range p.EachFree {
		d := &p.gpus[gpu]
		if d.limit == 0 {
			return math.MaxInt64
		}
		mem = max(mem, d.limit-d.mem.running)
	}
	return mem
}
