package queue

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

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
				t.Fatalf("%d in the heap, want %d", h.len(), len(twin))
			}
			if _, in := twin[f]; h.has(f) != in {
				t.Fatalf("has %d: %v, want %v", f, h.has(f), in)
			}
			odd := func(f int32) bool { return f%2 == 1 }
			first, some, _ := h.first(odd, nil)
			for f, k := range twin {
				if odd(f) && (!some || k.less(&first.key)) {
					t.Fatalf("first of the odd: %+v, %v, want %d with %+v or less", first, some, f, k)
				}
			}
			if some && (!odd(first.function) || first.key != twin[first.function]) {
				t.Fatalf("first of the odd: %+v", first)
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
				t.Fatalf("least %+v, want %+v", h.min().key, keys[0])
			}
		}
	})
}

// TestWaiting compares the queues with slices.
func TestWaiting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, twin, id := newWaiting(3), [3][]int64{}, int64(0)
		var gone []member
		of := map[int64]int32{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			f := int32(rapid.IntRange(0, 2).Draw(t, "function"))
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what == 0 && len(twin[f]) > 0:
				got := w.pop(f)
				if got.id != twin[f][0] || got.at != time.Duration(got.id) {
					t.Fatalf("popped %d of %v", got.id, twin[f])
				}
				twin[f], gone = twin[f][1:], append(gone, got)
			case what == 1:
				drop := int64(rapid.IntRange(0, int(id)).Draw(t, "id"))
				at := slices.Index(twin[f], drop)
				if got := w.drop(f, drop); got != (at >= 0) {
					t.Fatalf("dropped %d of %v: %v", drop, twin[f], got)
				}
				if at >= 0 {
					twin[f] = slices.Delete(twin[f], at, at+1)
				}
			case what == 2 && len(gone) > 0:
				back := gone[0]
				gone = gone[1:]
				w.putBack(of[back.id], back)
				twin[of[back.id]] = append(twin[of[back.id]], back.id)
				slices.Sort(twin[of[back.id]])
			default:
				w.push(f, member{id, time.Duration(id)})
				twin[f] = append(twin[f], id)
				of[id] = f
				id++
			}
			if w.total != len(twin[0])+len(twin[1])+len(twin[2]) {
				t.Fatalf("%d wait in all, want %v", w.total, twin)
			}
			for f := range int32(3) {
				var listed []int64
				for _, m := range w.list(f) {
					listed = append(listed, m.id)
				}
				if !slices.Equal(listed, twin[f]) || int(w.queues[f].len) != len(twin[f]) {
					t.Fatalf("%v wait, want %v", listed, twin[f])
				}
				if len(twin[f]) > 0 && (w.oldest(f) != twin[f][0] || w.since(f) != time.Duration(twin[f][0])) {
					t.Fatalf("oldest %d, want %d", w.oldest(f), twin[f][0])
				}
			}
		}
	})
}

// TestRequests compares LALB's global queue with a slice, and marks on prefixes with a
// counter on each request: also when invocations do not come in the order of their
// numbers.
func TestRequests(t *testing.T) {
	type counted struct {
		request
		visits int64
	}
	rapid.Check(t, func(t *rapid.T) {
		const numbers = 60
		r, twin, gone := newRequests(), []counted(nil), []request(nil)
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
			case 1: // take the oldest of a model
				if first >= 0 {
					if got := r.take(r.models[model].head); got.id != twin[first].id {
						t.Fatalf("took %d, want %d", got.id, twin[first].id)
					}
					gone = append(gone, twin[first].request)
					twin = slices.Delete(twin, first, first+1)
				}
			case 2: // pass over all before the oldest of a model
				r.visit(r.models[model].head)
				for i := range twin {
					if i < first || first < 0 {
						twin[i].visits++
					}
				}
			case 3: // take any
				id := rapid.Int64Range(0, numbers-1).Draw(t, "id")
				at := slices.IndexFunc(twin, func(c counted) bool { return c.id == id && c.model == model })
				n := r.find(model, id)
				if (n != none) != (at >= 0) {
					t.Fatalf("%d of %d: found %v, want %v", id, model, n != none, at >= 0)
				}
				if at >= 0 {
					if got := r.take(n); got.id != id {
						t.Fatalf("took %d, want %d", got.id, id)
					}
					gone = append(gone, twin[at].request)
					twin = slices.Delete(twin, at, at+1)
				}
			case 4:
				if len(gone) > 0 {
					back := counted{request: gone[0]}
					gone = gone[1:]
					r.putBack(back.request)
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
				t.Fatalf("%d wait, want %d", r.total, len(twin))
			}
			if len(twin) > 0 && r.marks != twin[0].visits {
				t.Fatalf("first %d visited %d times, want %+v", r.nodes[r.head].id, r.marks, twin[0])
			}
			n, lines := r.head, [3]int32{r.models[0].head, r.models[1].head, r.models[2].head}
			for _, c := range twin {
				if r.nodes[n].id != c.id || lines[c.model] != n {
					t.Fatalf("%+v in place of %+v, which is first of its model: %v", r.nodes[n], c, lines[c.model] == n)
				}
				n, lines[c.model] = r.nodes[n].next, r.nodes[n].later
			}
		}
	})
}

// TestSets compares rows of bits with maps, while there come to be more of both.
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
				var want []int32
				for member := range int32(members) {
					if in := twin[[2]int32{row, member}]; in {
						want = append(want, member)
					}
					if s.has(row, member) != twin[[2]int32{row, member}] {
						t.Fatalf("%d has %d: %v", row, member, s.has(row, member))
					}
				}
				if got := slices.Collect(s.of(row)); !slices.Equal(got, want) || s.some(row) != (len(want) > 0) {
					t.Fatalf("%d has %v, want %v", row, got, want)
				}
			}
		}
	})
}

// TestHits compares what a GPU's hits say with a look at all that waits: also when
// invocations do not come in the order of their numbers.
func TestHits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const models, gpus = 4, 2
		pool := residency.New(residency.Config{Pool: residency.Unlimited})
		pool.SetFunction(0, residency.Function{})
		for g := range int32(gpus) {
			pool.SetGPU(g, 1, 0)
		}
		p := newLALB(&engine{queues: newWaiting(1), pool: pool}, 0, true)
		p.gpus, p.hits = make([]worker, gpus), make([]heap, gpus)
		p.size(models)
		var gone []request
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
				p.cached(g, model, !p.copies.has(model, g))
			case what == 1 && p.global.models[model].head != none:
				gone = append(gone, *p.pick(p.global.models[model].head))
			case what == 2 && len(gone) > 0:
				p.global.putBack(gone[0])
				p.follow(gone[0].model)
				gone = gone[1:]
			default:
				p.global.push(request{member: member{id: ids[0]}, model: model})
				if p.global.models[model].len == 1 {
					p.follow(model)
				}
				ids = ids[1:]
			}
			want := none
			for model, line := range p.global.models {
				if n := line.head; n != none && p.copies.has(int32(model), g) && (want == none || p.global.nodes[n].id < p.global.nodes[want].id) {
					want = n
				}
			}
			if got, foremost := p.firstHit(g), p.foremost(g); got != want || foremost != want {
				t.Fatalf("first of GPU %d: %d, by its hits %d, want %d", g, got, foremost, want)
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
		t.Errorf("after b was forgotten: %+v", n)
	}
}
