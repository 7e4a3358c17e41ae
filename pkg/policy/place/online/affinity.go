package online

import (
	"cmp"
	"slices"
)

// affinity counts which functions share GPUs: Dilu's workload affinity (section 3.3, principle 1).
// If instances of two functions share a GPU, further instances of the two should share GPUs again.
// All instances of a function then have the same neighbours, and no instance lags behind.
type affinity struct {
	ids        map[string]int32
	neighbours [][]neighbour // by function, in the order of other
	marks      []int         // by function: the last query that marked it
	query      int           // number of the current query
	hasMarks   bool          // the current query marked a function
}

// neighbour counts the pairs of instances, of a function and another, that share a GPU.
type neighbour struct {
	other int32
	pairs int32
}

func newAffinity() affinity { return affinity{ids: map[string]int32{}} }

// id returns the number of a function. It numbers functions in the order of first use.
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

// addPairs counts n instances of the function that share a GPU with instances of others. n is -1
// for an instance that is removed.
func (a *affinity) addPairs(function int32, others []int32, n int32) {
	for _, other := range others {
		if other != function {
			a.addToPair(function, other, n)
			a.addToPair(other, function, n)
		}
	}
}

func (a *affinity) addToPair(function, other, n int32) {
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

// mark marks the functions that share a GPU with the given function. It starts a new query.
func (a *affinity) mark(function int32) {
	a.query++
	a.hasMarks = len(a.neighbours[function]) > 0
	for _, t := range a.neighbours[function] {
		a.marks[t.other] = a.query
	}
}

// hasMarked reports whether any of the functions was marked by the current query.
func (a *affinity) hasMarked(functions []int32) bool {
	return a.hasMarks && slices.ContainsFunc(functions, func(id int32) bool { return a.marks[id] == a.query })
}
