package online

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
)

// twin is a direct implementation of Dilu's Algorithm 1. It stores only the running instances, and tries
// all sets of GPUs. Units: hundredths of the SMs; GiB.
type twin struct {
	mem       []int // of each GPU
	perNode   int
	running   []run
	dilu      bool        // false: INFless, which packs by limits and without affinity
	without   DiluOptions // the principles that dilu leaves out
	byRequest bool        // INFless packs by requests
}

type run struct {
	request request
	gpus    []int
}

type request struct {
	instance, function        string
	gpus, request, limit, mem int
	large                     bool
}

// on returns the instances on a GPU.
func (w *twin) on(g int) []request {
	var out []request
	for _, r := range w.running {
		if slices.Contains(r.gpus, g) {
			out = append(out, r.request)
		}
	}
	return out
}

func (w *twin) free(g int) (request, limit, mem int) {
	request, limit, mem = 100, 150, w.mem[g]
	if !w.dilu {
		limit = 100
	}
	for _, a := range w.on(g) {
		request, limit, mem = request-a.request, limit-a.limit, mem-a.mem
	}
	return request, limit, mem
}

// affine reports whether the GPU hosts a function that shares another GPU with an instance of the given
// function.
func (w *twin) affine(function string, g int) bool {
	for other := range w.mem {
		here := w.on(other)
		if !slices.ContainsFunc(here, func(a request) bool { return a.function == function }) {
			continue
		}
		for _, neighbour := range here {
			if neighbour.function != function && slices.ContainsFunc(w.on(g), func(a request) bool { return a.function == neighbour.function }) {
				return true
			}
		}
	}
	return false
}

// price returns the cost of a set of GPUs, to be compared lexically: new GPUs, GPUs without affinity,
// score, idle GPUs of the node. The score of a GPU is 0.6 (1 - requests) + 0.4 (1 - memory / M) in units
// of a 40,000th.
func (w *twin) price(a request, set []int) [4]int {
	var p [4]int
	for _, g := range set {
		if len(w.on(g)) == 0 {
			p[0]++
		}
		if !w.dilu || w.without.NoAffinity || !w.affine(a.function, g) {
			p[1]++
		}
		request, _, mem := w.free(g)
		switch {
		case w.dilu && w.without.NoComplement:
		case w.dilu && a.large && a.gpus > 1:
			p[2] -= mem
		default:
			p[2] += 240*(request-a.request) + 400*40*(mem-a.mem)/w.mem[g]
		}
	}
	if a.gpus == 1 && p[0] == 0 {
		return p // ties between single GPUs in use go to the first, regardless of its node
	}
	first := set[0] / w.perNode * w.perNode
	for g := first; g < first+w.perNode; g++ {
		if len(w.on(g)) == 0 {
			p[3]++
		}
	}
	return p
}

// choose returns the GPUs with the lowest price among all sets of GPUs of every node, or nil if none has room.
func (w *twin) choose(a request) []int {
	var best []int
	var least [4]int
	for first := 0; first < len(w.mem); first += w.perNode {
		for _, set := range subsets(first, w.perNode, a.gpus) {
			fits := !slices.ContainsFunc(set, func(g int) bool {
				request, limit, mem := w.free(g)
				return a.request > request || a.limit > limit || a.mem > mem
			})
			if p := w.price(a, set); fits && (best == nil || slices.Compare(p[:], least[:]) < 0) {
				best, least = set, p
			}
		}
	}
	return best
}

// subsets returns all sets of n GPUs of the count GPUs first, first+1, …, in lexical order.
func subsets(first, count, n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for i := range count {
		for _, rest := range subsets(first+i+1, count-i-1, n-1) {
			out = append(out, append([]int{first + i}, rest...))
		}
	}
	return out
}

func drawRequest(t *rapid.T, i int) request {
	a := request{
		instance: fmt.Sprintf("i%d", i), function: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "function"),
		gpus:    rapid.SampledFrom([]int{1, 1, 1, 2, 3, 4}).Draw(t, "gpus"),
		request: 10 * rapid.IntRange(0, 8).Draw(t, "request"), mem: rapid.IntRange(0, 22).Draw(t, "mem"),
		large: rapid.Bool().Draw(t, "large"),
	}
	a.limit = a.request + 10*rapid.IntRange(0, (100-a.request)/10).Draw(t, "limit")
	return a
}

// TestSameDecisionsAsTheTwin gives random starts and stops to a scheduler and its twin, and compares their
// decisions.
func TestSameDecisionsAsTheTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perNode, nodes, events := rapid.IntRange(1, 4).Draw(t, "GPUs per node"), rapid.IntRange(1, 3).Draw(t, "nodes"), 25
		if rapid.IntRange(0, 9).Draw(t, "many nodes") == 0 {
			perNode, nodes, events = 1, 2*blockSize+5, 2*blockSize
		}
		w := twin{perNode: perNode, dilu: rapid.Bool().Draw(t, "dilu")}
		var list []plan.Device
		for n := range nodes {
			for g := range perNode {
				mem := rapid.SampledFrom([]int{20, 40}).Draw(t, "GiB")
				w.mem = append(w.mem, mem)
				list = append(list, plan.Device{Node: fmt.Sprint(n), Index: g, MemMiB: float64(mem) * 1024})
			}
		}
		var f *Fleet
		switch {
		case w.dilu:
			w.without = DiluOptions{NoAffinity: rapid.Bool().Draw(t, "no affinity"), NoComplement: rapid.Bool().Draw(t, "no complement")}
			options := DiluDefaults()
			options.NoAffinity, options.NoComplement = w.without.NoAffinity, w.without.NoComplement
			f = Dilu(list, options)
		case rapid.Bool().Draw(t, "by request"):
			w.byRequest = true
			f = INFlessRequests(list)
		default:
			f = INFless(list)
		}
		for i := range rapid.IntRange(events/3, events).Draw(t, "events") {
			if len(w.running) > 0 && rapid.IntRange(0, 3).Draw(t, "stop") == 0 {
				at := rapid.IntRange(0, len(w.running)-1).Draw(t, "which")
				if !f.Remove(w.running[at].request.instance) {
					t.Fatalf("Remove(%s): got false, want true for a running instance", w.running[at].request.instance)
				}
				w.running = slices.Delete(w.running, at, at+1)
				continue
			}
			a := drawRequest(t, i)
			got := f.Place(Request{
				Instance: a.instance, Function: a.function, GPUs: a.gpus, SMRequest: float64(a.request) / 100, SMLimit: float64(a.limit) / 100,
				Mem: gpu.Bytes(a.mem) * gpu.GiB, Large: a.large,
			})
			counted := a
			switch {
			case w.byRequest:
				counted.limit = a.request
			case !w.dilu:
				counted.request = a.limit
			}
			want := w.choose(counted)
			if !slices.Equal(got.GPUs, want) || Reasons.Check(got.Reason) != nil {
				t.Fatalf("%+v: got %+v, want %v", a, got, want)
			}
			if want != nil {
				w.running = append(w.running, run{counted, want})
			}
		}
	})
}

// TestRemoveReleasesAllResources checks that a fleet equals a new fleet after all instances were removed.
func TestRemoveReleasesAllResources(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Dilu(devices(3, 4, 40), DiluDefaults())
		var names []string
		for i := range rapid.IntRange(1, 30).Draw(t, "instances") {
			a := drawRequest(t, i)
			r := Request{Instance: a.instance, Function: a.function, GPUs: a.gpus, SMRequest: 0.1 / 3 * float64(i%7), SMLimit: 0.9, Mem: gpu.Bytes(a.mem)*gpu.GiB/7 + 1}
			if len(f.Place(r).GPUs) > 0 {
				names = append(names, a.instance)
			}
		}
		for _, name := range rapid.Permutation(names).Draw(t, "order") {
			f.Remove(name)
		}
		empty := Dilu(devices(3, 4, 40), DiluDefaults())
		for i := range f.gpus {
			if f.gpus[i].free != empty.gpus[i].free || len(f.gpus[i].functions) > 0 {
				t.Errorf("GPU %d: got %+v, want free %v and no functions", i, f.gpus[i], empty.gpus[i].free)
			}
		}
		for i := range f.nodes {
			if f.nodes[i] != empty.nodes[i] {
				t.Errorf("node %d: got %+v, want %+v", i, f.nodes[i], empty.nodes[i])
			}
		}
		for _, c := range f.classes {
			if len(c.used) > 0 {
				t.Errorf("GPUs in use: got %v, want none", c.used)
			}
		}
		for function, list := range f.affinity.neighbours {
			if len(list) > 0 {
				t.Errorf("neighbours of function %d: got %v, want none", function, list)
			}
		}
	})
}

// TestModelsAndUnlimitedMemory checks which GPUs are allowed by the models and the memory of a request. Node b has
// unlimited memory, and the model of node c's GPU is unknown.
func TestModelsAndUnlimitedMemory(t *testing.T) {
	list := []plan.Device{{Node: "a", Model: "T4", MemMiB: 15360}, {Node: "b", Model: "A100"}, {Node: "c", MemMiB: 40960, UsedMemMiB: 1024}}
	f := Dilu(list, DiluDefaults())
	for _, c := range []struct {
		models []string
		gib    gpu.Bytes
		want   []int
	}{
		{[]string{"A100", "V100"}, 500, []int{1}}, // memory of node b is unlimited
		{[]string{"V100"}, 30, []int{2}},          // a GPU of unknown model suits any request
		{[]string{"V100"}, 10, nil},               // only 9 of its 39 free GiB remain
		{[]string{"T4"}, 20, nil},
		{nil, 15, []int{1}}, // the GPU in use
	} {
		r := Request{Instance: fmt.Sprint(c), Function: "f", GPUs: 1, SMRequest: 0.4, SMLimit: 0.5, Mem: c.gib * gpu.GiB, Models: c.models}
		if d := f.Place(r); !slices.Equal(d.GPUs, c.want) {
			t.Errorf("%v on models %v: got %+v, want GPUs %v", c.gib*gpu.GiB, c.models, d, c.want)
		}
	}
}

// TestDemandedModelsAreAvoided checks that an instance that allows any GPU model does not use a model that
// other instances have required, if there is another GPU with room.
func TestDemandedModelsAreAvoided(t *testing.T) {
	f := INFless([]plan.Device{{Node: "a", Model: "A100"}, {Node: "b", Model: "T4"}, {Node: "b", Index: 1, Model: "T4"}})
	place := func(name string, models ...string) []int {
		return f.Place(Request{Instance: name, Function: name, GPUs: 1, SMRequest: 1, SMLimit: 1, Models: models}).GPUs
	}
	for i, c := range []struct {
		models []string
		want   []int
	}{
		{nil, []int{0}}, // no instance has named a model yet
		{[]string{"A100"}, nil},
		{nil, []int{1}},
		{nil, []int{2}},
	} {
		if got := place(fmt.Sprint(i), c.models...); !slices.Equal(got, c.want) {
			t.Errorf("instance %d, models %v: GPUs %v, want %v", i, c.models, got, c.want)
		}
		if i == 1 {
			f.Remove("0")
		}
	}
}
