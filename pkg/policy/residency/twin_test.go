package residency

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// box is a container as the rules speak of it.
type box struct {
	function, gpu     int32
	mem               int64
	running, resident bool
	finished          int // the later, the larger
}

// twin is a pool that looks at all containers at every question.
type twin struct {
	config   shape
	slots    []int
	occupied []int64 // by GPU: memory that others have there
	boxes    []*box
	now      int
	changes  []string
}

func (w *twin) is(gpu int32, want func(*box) bool) (out []*box) {
	for _, b := range w.boxes {
		if (b.gpu == gpu || gpu == Any) && want(b) {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b *box) int { return cmp.Compare(a.finished, b.finished) })
	return out
}

func running(b *box) bool { return b.running }
func idle(b *box) bool    { return !b.running }
func movable(b *box) bool { return !b.running && b.resident && b.mem > 0 }
func sum(boxes []*box) (mem int64) {
	for _, b := range boxes {
		mem += b.mem
	}
	return mem
}

func (w *twin) used(gpu int32) int64 {
	return w.occupied[gpu] + sum(w.is(gpu, func(b *box) bool { return b.resident }))
}

// lookUp is R9.
func (w *twin) lookUp(function, gpu int32) (Start, *box) {
	mine := w.is(gpu, func(b *box) bool { return !b.running && b.function == function })
	if len(mine) == 0 {
		return Cold, nil
	}
	slices.SortStableFunc(mine, func(a, b *box) int {
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
	mem := w.occupied[gpu] + sum(w.is(gpu, running)) + w.config.Function[function].Mem
	return len(w.is(gpu, running)) < w.slots[gpu] && (w.config.Mem == 0 || mem <= w.config.Mem)
}

func (w *twin) worth(b *box, remove bool) float64 {
	d, gpus := w.config.Function[b.function].Duration, map[int32]bool{}
	for _, other := range w.is(Any, func(o *box) bool { return !o.running && o.function == b.function }) {
		gpus[other.gpu] = true
	}
	now, then := HostWarm, HostWarm
	if b.resident {
		now = GPUWarm
	}
	if remove {
		then = Cold
	}
	return w.config.Worth(b.function, max(d[then]-d[now], 0)) / float64(max(len(gpus), 1))
}

// least is what goes first, by R8 or by worth, and what it is worth.
func (w *twin) least(boxes []*box, remove bool) (first *box, worth float64) {
	price := func(b *box) float64 {
		switch {
		case w.config.Worth != nil && remove:
			return w.worth(b, true)
		case w.config.Worth != nil:
			return w.worth(b, false) / float64(b.mem)
		case w.config.Keep != nil && w.config.Keep(b.function):
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

func (w *twin) remove(b *box) {
	w.boxes = slices.DeleteFunc(w.boxes, func(o *box) bool { return o == b })
	w.changes = append(w.changes, fmt.Sprintf("gpu %d removes %d", b.gpu, b.function))
}

func (w *twin) removeTo(gpu int32, most int) {
	for w.config.Pool != Unlimited && len(w.is(gpu, func(*box) bool { return true })) > most && len(w.is(gpu, idle)) > 0 {
		first, _ := w.least(w.is(gpu, idle), true)
		w.remove(first)
	}
}

// hold brings the memory of a container to its GPU.
func (w *twin) hold(b *box) {
	if b.resident {
		return
	}
	w.makeRoom(b.gpu, b.mem)
	b.resident = true
}

func (w *twin) makeRoom(gpu int32, mem int64) {
	var moved []*box
	for w.config.Mem > 0 && w.used(gpu)+mem > w.config.Mem {
		first, _ := w.least(w.is(gpu, movable), false)
		first.resident = false
		moved = append(moved, first)
		w.changes = append(w.changes, fmt.Sprintf("gpu %d unloads %d", gpu, first.function))
	}
	w.removeObsolete(moved)
}

// removeObsolete removes those of some boxes, whose memory is on the host, that it can
// never leave again.
func (w *twin) removeObsolete(boxes []*box) {
	for _, b := range boxes {
		if w.config.Mem > 0 && b.mem > w.config.Mem-w.occupied[b.gpu] {
			w.remove(b)
		}
	}
}

func (w *twin) begin(function int32, at Place) *box {
	_, b := w.lookUp(function, at.GPU)
	if b == nil {
		w.removeTo(at.GPU, w.config.Pool-1)
		b = &box{function: function, gpu: at.GPU, mem: w.config.Function[function].Mem}
		w.boxes = append(w.boxes, b)
	}
	b.running = true
	w.hold(b)
	return b
}

func (w *twin) end(b *box) {
	w.now++
	b.running, b.finished = false, w.now
	w.removeTo(b.gpu, w.config.Pool)
}

// prefetch says which GPU, or none.
func (w *twin) prefetch(function int32) int32 {
	var back *box
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
	w.hold(back)
	w.now++
	back.finished = w.now
	return back.gpu
}

// best is R10; under worth the loss comes before the number running.
func (w *twin) best(function, only, except int32) (at Place, loss float64, ok bool) {
	d := w.config.Function[function].Duration
	type key struct {
		duration time.Duration
		loss     float64
		running  int
	}
	var least key
	var ties int
	for g := range int32(len(w.slots)) {
		if start, _ := w.lookUp(function, g); w.room(g, function) && (ties == 0 || d[start] <= least.duration) {
			if d[start] < least.duration {
				ties = 0
			}
			ties, least.duration = ties+1, d[start]
		}
	}
	for g := range int32(len(w.slots)) {
		if !w.room(g, function) || g == except || only != Any && g != only {
			continue
		}
		start, _ := w.lookUp(function, g)
		k := key{d[start], 0, len(w.is(g, running))}
		if w.config.Worth != nil {
			k.loss = w.loss(g, function, start, ties)
		}
		if !ok || cmp.Or(cmp.Compare(k.duration, least.duration), cmp.Compare(k.loss, least.loss), cmp.Compare(k.running, least.running)) < 0 {
			at, least, ok = Place{GPU: g, Start: start}, k, true
		}
	}
	return at, least.loss, ok
}

// loss is the worth of what goes to make room or, where nothing has to, of
// what waits meanwhile.
func (w *twin) loss(gpu, function int32, start Start, ties int) (worth float64) {
	mem := w.config.Function[function].Mem
	switch {
	case start == GPUWarm && (ties == 1 || w.config.Mem == 0):
	case start == GPUWarm:
		for _, b := range w.is(gpu, func(b *box) bool { return movable(b) && b.function != function }) {
			worth += w.worth(b, false)
		}
	case start == Cold && w.config.Pool != Unlimited && len(w.is(gpu, func(*box) bool { return true })) >= w.config.Pool:
		_, worth = w.least(w.is(gpu, idle), true)
	case w.config.Mem > 0 && w.used(gpu)+mem > w.config.Mem:
		_, worth = w.least(w.is(gpu, movable), false)
		worth *= float64(mem)
	}
	return worth
}

func told(changes []Change) (out []string) {
	for _, c := range changes {
		verb := "unloads"
		if c.Verb == Removed {
			verb = "removes"
		}
		out = append(out, fmt.Sprintf("gpu %d %s %d", c.GPU, verb, c.Function))
	}
	return out
}

// drawConfig is a small machine. Keep and Worth look at what a test may change
// meanwhile.
func drawConfig(t *rapid.T, active map[int32]bool) shape {
	c := shape{
		GPUs: rapid.IntRange(1, 3).Draw(t, "gpus"), Slots: rapid.IntRange(1, 3).Draw(t, "slots"),
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
		c.Keep = func(function int32) bool { return active[function] }
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
		containers := map[*box]int32{}
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
				slot, ok := prefetch(p, f)
				at := none
				if ok {
					at = p.instances[slot].gpu
				}
				if want := w.prefetch(f); at != want || ok != (want != none) {
					t.Fatalf("prefetch %d: on gpu %d, %v, want %d", f, at, ok, want)
				}
				if ok && p.Ready(slot) != time.Second {
					t.Fatalf("ready at %v", p.Ready(slot))
				}
			case 3, 4, 5:
				if all := w.is(Any, running); len(all) > 0 {
					b := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
					p.End(containers[b], 0)
					w.end(b)
				}
			case 6:
				g := drawGPU(0)
				w.occupied[g] = rapid.Int64Range(0, max(c.Mem-sum(w.is(g, running)), 0)).Draw(t, "occupied")
				p.Occupy(g, w.occupied[g])
				w.removeObsolete(w.is(g, func(b *box) bool { return idle(b) && !b.resident }))
				w.makeRoom(g, 0)
			default:
				only, except := Any, Any
				if c.Worth == nil {
					only, except = drawGPU(Any), drawGPU(Any)
				}
				at, ok := p.Best(f, only, except)
				for g := range int32(c.GPUs) {
					if got, want := p.Holds(g, f), c.Mem == 0 || w.occupied[g]+c.Function[f].Mem <= c.Mem; got != want {
						t.Fatalf("GPU %d holds %d: %v, want %v", g, f, got, want)
					}
				}
				if ok && !p.Could(f, p.Most()) {
					t.Fatalf("function %d could start nowhere with %d bytes at most, and does at %+v", f, p.Most(), at)
				}
				loss := 0.0
				if c.Worth != nil {
					at, loss, ok = p.Cheapest(f)
				}
				want, least, can := w.best(f, only, except)
				if ok != can || ok && (loss != least || at.GPU != want.GPU || at.Start != want.Start) {
					t.Fatalf("%d on gpu %d but %d: %v at %v, %v, want %v at %v, %v", f, only, except, at, loss, ok, want, least, can)
				}
				if ok {
					container, _ := p.Begin(f, at)
					containers[w.begin(f, at)] = container
				}
			}
			compare(t, p, w)
		}
	})
}

// compare says where what can be asked of both differs.
func compare(t *rapid.T, p *Pool, w *twin) {
	got, free := told(answered(p)), 0
	for g := range int32(len(w.slots)) {
		now := w.slots[g] - len(w.is(g, running))
		free += max(now, 0)
		if open := int(p.gpus[g].capacity-p.gpus[g].taken) / unit; open != now || p.Free(g) != (now > 0) {
			t.Fatalf("gpu %d has %d slots free, want %d", g, open, now)
		}
		if w.config.Mem > 0 && w.used(g) > w.config.Mem {
			t.Fatalf("gpu %d holds %d of %d bytes", g, w.used(g), w.config.Mem)
		}
	}
	for f := range int32(len(w.config.Function)) {
		least := time.Duration(-1)
		for g := range int32(len(w.slots)) {
			if p.Room(g, f) != w.room(g, f) {
				t.Fatalf("gpu %d has room for %d: %v", g, f, p.Room(g, f))
			}
			start, _ := w.lookUp(f, g)
			if d := w.config.Function[f].Duration[start]; least < 0 || d < least {
				least = d
			}
		}
		if p.Expected(f) != least {
			t.Fatalf("%d expects %v, want %v", f, p.Expected(f), least)
		}
	}
	if p.free != int64(free*unit) || p.AnyFree() != (free > 0) || !slices.Equal(got, w.changes) {
		t.Fatalf("%d free and %v, want %d and %v", p.free/unit, got, free, w.changes)
	}
	w.changes = nil
}
