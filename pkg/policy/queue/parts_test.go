package queue

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestRuntimes compares the tree of runtimes with a scan.
func TestRuntimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, functions := runtimes{}, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 9).Draw(t, "grow") == 0 || functions == 0 {
				functions += rapid.IntRange(1, 5).Draw(t, "added")
				r.grow(functions)
			}
			f := int32(rapid.IntRange(0, functions-1).Draw(t, "function"))
			switch value := rapid.IntRange(0, 5).Draw(t, "value"); rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				r.setMem(f, int64(value))
			case 1:
				r.set(f, idle)
			default:
				r.set(f, float64(value))
			}
			if least := slices.Min(r.of); r.least() != least || r.has(f) != (r.of[f] != idle) {
				t.Fatalf("least runtime: got %g, want %g; has(%d): got %v", r.least(), least, f, r.has(f))
			}
			// The least runtime among the functions that pass, as cfs looks for it.
			passes := func(f int) bool { return f%3 != 1 }
			mem, got, want := int64(rapid.IntRange(-1, 6).Draw(t, "mem")), idle, idle
			r.each(mem, func(f int32) float64 {
				if r.mem[f] > mem || !r.has(f) || r.of[f] > got {
					t.Fatalf("each(%d) visited function %d, which needs %d bytes and has the runtime %g, want at most %g", mem, f, r.mem[f], r.of[f], got)
				}
				if passes(int(f)) {
					got = min(got, r.of[f])
				}
				return got
			})
			for f, runtime := range r.of {
				if r.mem[f] <= mem && passes(f) {
					want = min(want, runtime)
				}
			}
			if got != want {
				t.Fatalf("least runtime of the functions that pass: got %g, want %g", got, want)
			}
		}
	})
}

// TestHeap compares the heap with sorting.
func TestHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const functions = 12
		h, twin := heap{}, map[int32]key{}
		h.grow(functions)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			f := int32(rapid.IntRange(0, functions-1).Draw(t, "function"))
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				h.remove(f)
				delete(twin, f)
			} else {
				k := key{a: rapid.Int64Range(0, 3).Draw(t, "a"), b: float64(rapid.IntRange(0, 3).Draw(t, "b")), c: int64(f)}
				h.set(f, k)
				twin[f] = k
			}
			if h.len() != len(twin) {
				t.Fatalf("size of the heap: got %d, want %d", h.len(), len(twin))
			}
			if _, in := twin[f]; h.has(f) != in {
				t.Fatalf("has(%d): got %v, want %v", f, h.has(f), in)
			}
			isOdd := func(f int32) bool { return f%2 == 1 }
			first, found, _ := h.first(isOdd, nil)
			for f, k := range twin {
				if isOdd(f) && (!found || k.less(&first.key)) {
					t.Fatalf("first odd function: got %+v, %v; want %d with the key %+v, or a smaller key", first, found, f, k)
				}
			}
			if found && (!isOdd(first.function) || first.key != twin[first.function]) {
				t.Fatalf("first odd function: got %+v, want an odd one with key %+v", first, twin[first.function])
			}
			if len(twin) == 0 {
				continue
			}
			var keys []key
			for _, k := range twin {
				keys = append(keys, k)
			}
			slices.SortFunc(keys, func(a, b key) int {
				if a.less(&b) {
					return -1
				}
				return 1
			})
			if h.min().key != keys[0] {
				t.Fatalf("least key: got %+v, want %+v", h.min().key, keys[0])
			}
		}
	})
}

// TestWaiting compares the queues with slices.
func TestWaiting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, twin, id := newWaiting(3), [3][]int64{}, int64(0)
		var popped []member
		of := map[int64]int32{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			f := int32(rapid.IntRange(0, 2).Draw(t, "function"))
			switch operation := rapid.IntRange(0, 5).Draw(t, "what"); {
			case operation == 0 && len(twin[f]) > 0:
				got := w.pop(f)
				if got.id != twin[f][0] || got.at != time.Duration(got.id) {
					t.Fatalf("pop of function %d: got invocation %d, arrived at %v; want the first of %v", f, got.id, got.at, twin[f])
				}
				twin[f], popped = twin[f][1:], append(popped, got)
			case operation == 1:
				drop := int64(rapid.IntRange(0, int(id)).Draw(t, "id"))
				at := slices.Index(twin[f], drop)
				if got := w.drop(f, drop); got != (at >= 0) {
					t.Fatalf("drop of invocation %d from %v: got %v, want %v", drop, twin[f], got, at >= 0)
				}
				if at >= 0 {
					twin[f] = slices.Delete(twin[f], at, at+1)
				}
			case operation == 2 && len(popped) > 0:
				back := popped[0]
				popped = popped[1:]
				w.requeue(of[back.id], back)
				twin[of[back.id]] = append(twin[of[back.id]], back.id)
				slices.Sort(twin[of[back.id]])
			default:
				w.push(f, member{id, time.Duration(id)})
				twin[f] = append(twin[f], id)
				of[id] = f
				id++
			}
			if w.total != len(twin[0])+len(twin[1])+len(twin[2]) {
				t.Fatalf("number of waiting invocations: got %d, want the number in %v", w.total, twin)
			}
			for f := range int32(3) {
				var listed []int64
				for _, m := range w.list(f) {
					listed = append(listed, m.id)
				}
				if !slices.Equal(listed, twin[f]) || int(w.queues[f].len) != len(twin[f]) {
					t.Fatalf("waiting invocations of function %d: got %v, want %v", f, listed, twin[f])
				}
				if len(twin[f]) > 0 && (w.oldest(f) != twin[f][0] || w.since(f) != time.Duration(twin[f][0])) {
					t.Fatalf("oldest invocation of function %d: got %d, want %d", f, w.oldest(f), twin[f][0])
				}
			}
		}
	})
}

// TestRequests compares LALB's global queue with a slice, and its marks on prefixes with a
// counter for each request. Invocations may arrive out of order.
func TestRequests(t *testing.T) {
	type counted struct {
		request
		visits int64
	}
	rapid.Check(t, func(t *rapid.T) {
		const numbers = 60
		r, twin, popped := newRequests(), []counted(nil), []request(nil)
		r.grow(3)
		ids := rapid.Permutation(slices.Collect(func(yield func(int64) bool) {
			for id := int64(0); id < numbers && yield(id); id++ {
			}
		})).Draw(t, "ids")
		if rapid.Bool().Draw(t, "in order") {
			slices.Sort(ids)
		}
		for len(ids) > 0 {
			model := int32(rapid.IntRange(0, 2).Draw(t, "model"))
			first := slices.IndexFunc(twin, func(c counted) bool { return c.model == model })
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				it := request{member: member{id: ids[0]}, model: model}
				r.push(it)
				twin, ids = append(twin, counted{request: it}), ids[1:]
			case 1: // remove the oldest of a model
				if first >= 0 {
					if got := r.pop(r.models[model].head); got.id != twin[first].id {
						t.Fatalf("took %d, want %d", got.id, twin[first].id)
					}
					popped = append(popped, twin[first].request)
					twin = slices.Delete(twin, first, first+1)
				}
			case 2: // visit all before the oldest of a model
				r.visit(r.models[model].head)
				for i := range twin {
					if i < first || first < 0 {
						twin[i].visits++
					}
				}
			case 3: // remove any
				id := rapid.Int64Range(0, numbers-1).Draw(t, "id")
				at := slices.IndexFunc(twin, func(c counted) bool { return c.id == id && c.model == model })
				n := r.find(model, id)
				if (n != none) != (at >= 0) {
					t.Fatalf("invocation %d of model %d: found %v, want %v", id, model, n != none, at >= 0)
				}
				if at >= 0 {
					if got := r.pop(n); got.id != id {
						t.Fatalf("took %d, want %d", got.id, id)
					}
					popped = append(popped, twin[at].request)
					twin = slices.Delete(twin, at, at+1)
				}
			case 4:
				if len(popped) > 0 {
					back := counted{request: popped[0]}
					popped = popped[1:]
					r.requeue(back.request)
					at := slices.IndexFunc(twin, func(c counted) bool { return c.id > back.id })
					if at < 0 {
						at = len(twin)
					} else {
						back.visits = twin[at].visits
					}
					twin = slices.Insert(twin, at, back)
				}
			}
			if r.total != len(twin) {
				t.Fatalf("number of waiting invocations: got %d, want %d", r.total, len(twin))
			}
			if len(twin) > 0 && r.marks != twin[0].visits {
				t.Fatalf("first invocation %d: got %d visits, want %+v", r.nodes[r.head].id, r.marks, twin[0])
			}
			n, lines := r.head, [3]int32{r.models[0].head, r.models[1].head, r.models[2].head}
			for _, c := range twin {
				if r.nodes[n].id != c.id || lines[c.model] != n {
					t.Fatalf("queue position of %+v: got %+v, first of its model %v; want the same, true", c, r.nodes[n], lines[c.model] == n)
				}
				n, lines[c.model] = r.nodes[n].next, r.nodes[n].nextOfModel
			}
		}
	})
}

// TestSets compares rows of bits with maps, while rows and members are added.
func TestSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sets
		twin, rows, members := map[[2]int32]bool{}, 1, 1
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			rows, members = rows+rapid.IntRange(0, 1).Draw(t, "rows"), members+rapid.IntRange(0, 20).Draw(t, "members")
			s.grow(rows, members)
			row, member := int32(rapid.IntRange(0, rows-1).Draw(t, "row")), int32(rapid.IntRange(0, members-1).Draw(t, "member"))
			in := rapid.Bool().Draw(t, "in")
			s.set(row, member, in)
			twin[[2]int32{row, member}] = in
			for row := range int32(rows) {
				for member := range int32(members) {
					if s.has(row, member) != twin[[2]int32{row, member}] {
						t.Fatalf("has(%d, %d): got %v, want %v", row, member, s.has(row, member), twin[[2]int32{row, member}])
					}
				}
			}
		}
	})
}

// TestCopies compares the results of a model's heaps with a scan of all its copies.
func TestCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const gpus, models = 3 * fewCopies, 2
		var w gpuQueues
		w.grow(gpus)
		for g := range w.gpus {
			w.gpus[g].open = true
		}
		c := copies{gpuQueues: &w}
		c.grow(models, gpus)
		for g := range int32(gpus) {
			c.set(0, g, true)
			c.set(1, g, g%2 == 0)
		}
		now := time.Duration(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now++
			g, model := int32(rapid.IntRange(0, gpus-1).Draw(t, "gpu")), int32(rapid.IntRange(0, models-1).Draw(t, "model"))
			switch it := &w.gpus[g]; rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				c.set(model, g, !c.cached.has(model, g))
			case 1:
				if it.open = !it.open; it.open {
					c.moveToIdle(g)
				}
			case 2, 3:
				w.push(g, request{}, time.Duration(rapid.IntRange(0, 9).Draw(t, "takes")))
			case 4:
				w.clear(g)
				c.updateBusyKeys(g)
			case 5:
				if it.busy {
					w.extend(g, now)
				}
			case 6, 7, 8, 9:
				if it.busy {
					w.stop(g)
					c.moveToIdle(g)
				} else if it.open {
					w.start(g, model, 0, now, now+time.Duration(rapid.IntRange(0, 50).Draw(t, "expected")))
				}
			}
			cannot := int32(rapid.IntRange(1, 60).Draw(t, "cannot"))
			can := func(g int32) bool { return g%cannot == 0 }
			model = int32(rapid.IntRange(0, models-1).Draw(t, "model"))
			var all heap
			for n, m := range c.entries {
				if m.model == model && c.cached.has(model, m.gpu) && slices.Contains(c.on[m.gpu], int32(n)) {
					all.items = append(all.items, item{function: int32(n)})
				}
			}
			wantIdle, wantBusy := c.scan(&all, can, none, none)
			idle, busy := c.find(model, can)
			if idle != wantIdle || idle == none && busy != wantBusy {
				t.Fatalf("first of %d copies: got idle %d, busy %d; want %d, %d", len(all.items), idle, busy, wantIdle, wantBusy)
			}
		}
	})
}

// TestHits compares the first hit of a GPU with a scan of the queue. Invocations may arrive out
// of order.
func TestHits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const models, gpus = 4, 2
		pool := residency.New(residency.Config{Pool: residency.Unlimited})
		pool.SetFunction(0, residency.Function{})
		for g := range int32(gpus) {
			pool.SetGPU(g, 1, 0)
		}
		p := newLALB(&view{queues: newWaiting(1), pool: pool}, 0, true)
		p.gpuQueues.grow(gpus)
		p.growModels(models)
		var removed []request
		ids := rapid.Permutation(slices.Collect(func(yield func(int64) bool) {
			for id := int64(0); id < 40 && yield(id); id++ {
			}
		})).Draw(t, "ids")
		if rapid.Bool().Draw(t, "in order") {
			slices.Sort(ids)
		}
		for len(ids) > 0 {
			model, g := int32(rapid.IntRange(0, models-1).Draw(t, "model")), int32(rapid.IntRange(0, gpus-1).Draw(t, "gpu"))
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what == 0:
				p.copies.set(model, g, !p.copies.cached.has(model, g))
			case what == 1 && p.global.models[model].head != none:
				removed = append(removed, *p.global.pop(p.global.models[model].head))
			case what == 2 && len(removed) > 0:
				p.global.requeue(removed[0])
				removed = removed[1:]
			default:
				p.global.push(request{member: member{id: ids[0]}, model: model})
				ids = ids[1:]
			}
			want := none
			for model, line := range p.global.models {
				if n := line.head; n != none && p.copies.cached.has(int32(model), g) && (want == none || p.global.nodes[n].id < p.global.nodes[want].id) {
					want = n
				}
			}
			if got, foremost := p.firstHit(g), p.foremost(g); got != want || foremost != want {
				t.Fatalf("first of GPU %d: %d, by models %d, want %d", g, got, foremost, want)
			}
		}
	})
}

func TestNumbers(t *testing.T) {
	var n Numbers
	for i, name := range []string{"a", "b", "a", "c"} {
		if got, want := n.Of(name), []int32{0, 1, 0, 2}[i]; got != want || n.Name(got) != name {
			t.Errorf("%s is %d, which is %q; want %d", name, got, n.Name(got), want)
		}
	}
	n.Forget(1)
	n.Forget(7)
	if n.Name(1) != "" || n.Name(-1) != "" || n.Of("d") != 1 || n.Of("b") != 3 {
		t.Errorf("after b was forgotten: got %+v, want no name of 1, d at 1 and b at 3", n)
	}
}
