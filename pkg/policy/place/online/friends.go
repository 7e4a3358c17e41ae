package online

import (
	"cmp"
	"slices"
)

// friends knows which functions run beside which: Dilu's workload affinity
// (section 3.3, principle 1). Where instances of two functions share a GPU,
// others of the two are best put together again, so that the instances of one
// function all have the same company and none lags behind.
type friends struct {
	ids    map[string]int32
	beside [][]together // by function, in the order of the other's id
	marks  []int        // by function: the last query that marked it
	query  int
	any    bool // the last query marked something
}

// together counts the pairs of instances of a function and another on a GPU.
type together struct {
	other int32
	pairs int32
}

func newFriends() friends { return friends{ids: map[string]int32{}} }

// id numbers functions as they are first seen.
func (fs *friends) id(function string) int32 {
	id, ok := fs.ids[function]
	if !ok {
		id = int32(len(fs.ids))
		fs.ids[function] = id
		fs.beside = append(fs.beside, nil)
		fs.marks = append(fs.marks, 0)
	}
	return id
}

// meet notes that an instance of the function comes beside others.
func (fs *friends) meet(function int32, others []int32) { fs.add(function, others, 1) }

// part notes that it leaves them.
func (fs *friends) part(function int32, others []int32) { fs.add(function, others, -1) }

func (fs *friends) add(function int32, others []int32, n int32) {
	for _, other := range others {
		if other != function {
			fs.count(function, other, n)
			fs.count(other, function, n)
		}
	}
}

func (fs *friends) count(function, other, n int32) {
	list := &fs.beside[function]
	i, found := slices.BinarySearchFunc(*list, other, func(t together, id int32) int { return cmp.Compare(t.other, id) })
	if !found {
		*list = slices.Insert(*list, i, together{other: other})
	}
	(*list)[i].pairs += n
	if (*list)[i].pairs == 0 {
		*list = slices.Delete(*list, i, i+1)
	}
}

// mark marks the functions that run beside instances of this one.
func (fs *friends) mark(function int32) {
	fs.query++
	fs.any = len(fs.beside[function]) > 0
	for _, t := range fs.beside[function] {
		fs.marks[t.other] = fs.query
	}
}

// has says whether one of the functions was marked by the last query.
func (fs *friends) has(functions []int32) bool {
	if !fs.any {
		return false
	}
	for _, id := range functions {
		if fs.marks[id] == fs.query {
			return true
		}
	}
	return false
}
