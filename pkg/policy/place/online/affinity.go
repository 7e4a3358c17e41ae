package online

import (
	"cmp"
	"slices"
)

// affinity knows which functions run beside which: Dilu's workload affinity
// (section 3.3, principle 1). Where instances of two functions share a GPU,
// others of the two are best put neighbour again, so that the instances of one
// function all have the same company and none lags behind.
type affinity struct {
	ids        map[string]int32
	neighbours [][]neighbour // by function, in the order of the other's id
	marks      []int         // by function: the last query that marked it
	query      int
	any        bool // the last query marked something
}

// neighbour counts the pairs of instances of a function and another on a GPU.
type neighbour struct {
	other int32
	pairs int32
}

func newAffinity() affinity { return affinity{ids: map[string]int32{}} }

// id numbers functions as they are first seen.
func (a *affinity) id(function string) int32 {
	id, ok := a.ids[function]
	if !ok {
		id = int32(len(a.ids))
		a.ids[function] = id
		a.neighbours = append(a.neighbours, nil)
		a.marks = append(a.marks, 0)
	}
	return id
}

// come notes that an instance of the function comes beside others.
func (a *affinity) come(function int32, others []int32) { a.add(function, others, 1) }

// leave notes that it leaves them.
func (a *affinity) leave(function int32, others []int32) { a.add(function, others, -1) }

func (a *affinity) add(function int32, others []int32, n int32) {
	for _, other := range others {
		if other != function {
			a.count(function, other, n)
			a.count(other, function, n)
		}
	}
}

func (a *affinity) count(function, other, n int32) {
	list := &a.neighbours[function]
	i, found := slices.BinarySearchFunc(*list, other, func(t neighbour, id int32) int { return cmp.Compare(t.other, id) })
	if !found {
		*list = slices.Insert(*list, i, neighbour{other: other})
	}
	(*list)[i].pairs += n
	if (*list)[i].pairs == 0 {
		*list = slices.Delete(*list, i, i+1)
	}
}

// mark marks the functions that run beside instances of this one.
func (a *affinity) mark(function int32) {
	a.query++
	a.any = len(a.neighbours[function]) > 0
	for _, t := range a.neighbours[function] {
		a.marks[t.other] = a.query
	}
}

// has says whether one of the functions was marked by the last query.
func (a *affinity) has(functions []int32) bool {
	if !a.any {
		return false
	}
	for _, id := range functions {
		if a.marks[id] == a.query {
			return true
		}
	}
	return false
}
