package online

import (
	"cmp"
	"slices"
)

// ranked is a GPU and its score.
type ranked struct {
	score int64
	gpu   int
}

func byScore(a, b ranked) int {
	if a.score != b.score {
		return cmp.Compare(a.score, b.score)
	}
	return cmp.Compare(a.gpu, b.gpu)
}

// ranking is GPUs in the order of their score, least first; ties by number.
type ranking []ranked

func (r *ranking) insert(score int64, g int) {
	i, _ := slices.BinarySearchFunc(*r, ranked{score, g}, byScore)
	*r = slices.Insert(*r, i, ranked{score, g})
}

func (r *ranking) remove(score int64, g int) {
	i, _ := slices.BinarySearchFunc(*r, ranked{score, g}, byScore)
	*r = slices.Delete(*r, i, i+1)
}

// from is where scores of at least least begin.
func (r ranking) from(least int64) int {
	i, _ := slices.BinarySearchFunc(r, ranked{least, -1}, byScore)
	return i
}
