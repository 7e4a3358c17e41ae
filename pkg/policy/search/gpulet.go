package search

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/profile"
)

// gpuletValues is the number of SM shares and of batch sizes that gpulet measures.
const gpuletValues = 4

// gpulet is the search of GPUlet (USENIX ATC 2022) as the Dilu paper counts it: 16 trials for every model
// (table 2). It measures four SM shares with four batch sizes, evenly spread from the least to the largest, at
// the largest quota. The choice is the best efficacy, as for the other searches; GPUlet itself takes the knee
// of the throughput, which noise moves far on a curve without one.
type gpulet struct {
	book  *book
	trial []profile.Config // all of them
}

func newGPUlet(b *book) planner {
	p := gpulet{book: b}
	var sm []float64
	var batch []int
	quota := 0.0
	for _, c := range b.open {
		sm, batch, quota = append(sm, c.SMPct), append(batch, c.Batch), max(quota, c.Quota)
	}
	for _, s := range spread(ascending(sm)) {
		for _, n := range spread(ascending(batch)) {
			if c := (profile.Config{SMPct: s, Quota: quota, Batch: n}); b.isOpen(c) {
				p.trial = append(p.trial, c)
			}
		}
	}
	return p
}

// spread returns gpuletValues of the values, evenly spread with the first and the last, or all if there are
// no more.
func spread[T any](values []T) []T {
	const steps = gpuletValues - 1
	if len(values) <= gpuletValues {
		return values
	}
	var chosen []T
	for i := range gpuletValues {
		chosen = append(chosen, values[(i*(len(values)-1)+steps/2)/steps])
	}
	return chosen
}

func (p gpulet) next() (step, bool) {
	at := slices.IndexFunc(p.trial, p.book.isOpen)
	if at < 0 {
		return step{}, false
	}
	return step{p.trial[at], "one of four SM shares with one of four batch sizes"}, true
}

func (p gpulet) choice() Choice {
	return p.book.bestChoice("the best efficacy of %d evenly spread configurations")
}
