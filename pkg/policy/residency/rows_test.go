package residency

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestRows compares rows with a map, while GPUs are added.
func TestRows(t *testing.T) {
	type cell struct{ instance, resident int32 }
	rapid.Check(t, func(t *rapid.T) {
		var r rows
		functions := make([]hotFields, 3)
		want := make([]map[int32]cell, len(functions))
		for f := range want {
			want[f] = map[int32]cell{}
		}
		for range rapid.IntRange(1, 70).Draw(t, "first") {
			r.widen(functions)
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "what") == 0 {
				r.widen(functions)
				continue
			}
			f, gpu := rapid.IntRange(0, len(functions)-1).Draw(t, "function"), int32(rapid.IntRange(0, r.gpus-1).Draw(t, "gpu"))
			c := cell{rapid.Int32Range(none, 5).Draw(t, "instance"), rapid.Int32Range(0, 1).Draw(t, "resident")}
			r.set(&functions[f], gpu, c.instance, c.resident == 1)
			if want[f][gpu] = c; c.instance == none {
				delete(want[f], gpu)
			}
		}
		for f := range functions {
			var on [2][]int32 // GPUs, by resident
			for gpu := range int32(r.gpus) {
				c, set := want[f][gpu]
				if !set {
					c.instance = none
				} else {
					on[c.resident] = append(on[c.resident], gpu)
				}
				if got := r.on(&functions[f], gpu); got != c.instance {
					t.Fatalf("instance of function %d on GPU %d: got %d, want %d", f, gpu, got, c.instance)
				}
			}
			warm, host := int(functions[f].warm), int(functions[f].host)
			if warm != len(on[1]) || host != len(on[0]) ||
				!slices.Equal(slices.Collect(r.each(&functions[f], kind(GPUWarm), math.MaxInt)), on[1]) ||
				!slices.Equal(slices.Collect(r.each(&functions[f], kind(HostWarm), math.MaxInt)), on[0]) {
				t.Fatalf("function %d: got %d GPUs with its memory and %d without, want %v and %v", f, warm, host, on[1], on[0])
			}
		}
	})
}

// TestVisits compares the number of GPUs examined per decision between pools of different sizes
// with the same load for each GPU.
func TestVisits(t *testing.T) {
	visits := func(gpus int) float64 {
		const slots, decisions = 4, 20000
		r := rand.New(rand.NewPCG(1, 2))
		s := shape{Config: Config{Pool: Unlimited, Worth: func(int32, time.Duration) float64 { return 1 }}, GPUs: gpus, Slots: slots}
		for range 100 {
			s.Function = append(s.Function, Function{Duration: [3]time.Duration{3, 2, 1}, Mem: 10})
		}
		p := s.pool()
		var running []int32
		decide := func() {
			f := int32(r.IntN(r.IntN(len(s.Function)) + 1)) // functions with low numbers are the most frequent
			p.Expected(f)
			p.MaxFreeMem()
			if at, ok := p.Best(f, Any, Any); ok {
				if cheapest, _, _ := p.Cheapest(f); cheapest != at {
					t.Fatalf("%d GPUs: Cheapest returns %+v and Best %+v, want the same", gpus, cheapest, at)
				}
				index, _ := p.Begin(f, at)
				running = append(running, index)
			}
		}
		for range gpus * slots * 9 / 10 {
			decide()
		}
		p.visits = 0
		for range decisions {
			i := r.IntN(len(running))
			p.End(running[i], 0)
			running[i] = running[len(running)-1]
			running = running[:len(running)-1]
			decide()
		}
		return float64(p.visits) / decisions
	}
	small, large := visits(1<<10), visits(1<<16)
	t.Logf("GPUs examined per decision: %.1f of 1,024, %.1f of 65,536", small, large)
	if large > 2*small {
		t.Errorf("GPUs examined per decision: got %.1f of 65,536, want at most %.1f, twice as many as of 1,024", large, 2*small)
	}
}

// TestFreeMem compares the tree of free memory with a scan.
func TestFreeMem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tree maxTree
		var values []int64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			gpu := int32(rapid.IntRange(0, 600).Draw(t, "gpu"))
			for len(values) <= int(gpu) {
				values = append(values, -1)
				tree.set(int32(len(values)-1), -1)
			}
			values[gpu] = rapid.Int64Range(-1, 5).Draw(t, "value")
			tree.set(gpu, values[gpu])
			if largest := slices.Max(values); tree.max() != largest {
				t.Fatalf("largest value: got %d, want %d", tree.max(), largest)
			}
			first, least := rapid.IntRange(0, (len(values)-1)/pageGPUs).Draw(t, "page"), rapid.Int64Range(0, 6).Draw(t, "least")
			want := slices.IndexFunc(values[first*pageGPUs:], func(v int64) bool { return v >= least })
			if want >= 0 {
				want = first + want/pageGPUs
			}
			if got := tree.nextPage(first, least); got != want {
				t.Fatalf("first page from %d on with %d bytes: got %d, want %d", first, least, got, want)
			}
		}
	})
}
