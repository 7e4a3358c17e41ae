package queue

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// runtimes holds the runtimes of the waiting functions of cfs. It finds those with the least
// runtime among the functions that need at most a given amount of memory: while memory is scarce,
// most functions fit on no GPU.
//
// The tree has a leaf for each function, by memory. Node i has the children 2i and 2i+1 and holds
// their minimum. Node 1 is the root.
type runtimes struct {
	of     []float64 // by function; idle if it does not wait
	mem    []int64   // by function
	sorted []int32   // functions by memory; empty after a change of functions, until least sorts them
	place  []int32   // by function: its index in sorted
	tree   []float64
}

// idle is the runtime of functions that do not wait.
var idle = math.Inf(1)

// grow makes room for that many functions.
func (r *runtimes) grow(functions int) {
	for len(r.of) < functions {
		r.of, r.mem, r.sorted = append(r.of, idle), append(r.mem, 0), nil
	}
}

// setMem sets the memory of a function.
func (r *runtimes) setMem(f int32, mem int64) {
	if r.mem[f] != mem {
		r.mem[f], r.sorted = mem, nil
	}
}

func (r *runtimes) has(f int32) bool { return r.of[f] < idle }

// set adds a function or changes its runtime. A runtime of idle removes it.
func (r *runtimes) set(f int32, runtime float64) {
	if r.of[f] = runtime; len(r.sorted) == 0 {
		return
	}
	i := len(r.tree)/2 + int(r.place[f])
	for r.tree[i] = runtime; i > 1; i /= 2 {
		r.tree[i/2] = min(r.tree[i], r.tree[i^1])
	}
}

// least returns the least runtime, or idle if no function waits.
func (r *runtimes) least() float64 {
	if len(r.sorted) == 0 {
		r.sort()
	}
	return r.tree[1]
}

// sort sorts the functions by memory and builds the tree.
func (r *runtimes) sort() {
	leaves := 1
	for leaves < len(r.of) {
		leaves *= 2
	}
	r.place, r.tree = make([]int32, len(r.of)), slices.Repeat([]float64{idle}, 2*leaves)
	for f := range r.of {
		r.sorted = append(r.sorted, int32(f))
	}
	slices.SortFunc(r.sorted, func(f, g int32) int { return cmp.Compare(r.mem[f], r.mem[g]) })
	for i, f := range r.sorted {
		r.place[f] = int32(i)
		r.set(f, r.of[f])
	}
}

// each calls visit with the waiting functions that need at most mem bytes, in no particular order.
// It skips functions whose runtime exceeds the last result of visit.
func (r *runtimes) each(mem int64, visit func(f int32) (most float64)) {
	if r.least() == idle {
		return
	}
	most, leaves := idle, len(r.tree)/2
	fitting := sort.Search(len(r.sorted), func(i int) bool { return r.mem[r.sorted[i]] > mem })
	var below func(node, first, width int)
	below = func(node, first, width int) {
		switch {
		case first >= fitting || r.tree[node] > most || r.tree[node] == idle:
		case width == 1:
			most = visit(r.sorted[first])
		default:
			width /= 2
			if r.tree[2*node] <= r.tree[2*node+1] {
				below(2*node, first, width)
				below(2*node+1, first+width, width)
			} else {
				below(2*node+1, first+width, width)
				below(2*node, first, width)
			}
		}
	}
	below(1, 0, leaves)
}
