package workload

import (
	"cmp"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

// lalbModel is a row of Table I: MiB on the GPU, seconds to load and to infer.
type lalbModel struct {
	name            string
	mem             float64
	load, inference float64
}

var lalbModels = []lalbModel{
	{"squeezenet1.1", 1269, 2.41, 1.28}, {"resnet18", 1313, 2.52, 1.25}, {"resnet34", 1357, 2.60, 1.25},
	{"squeezenet1.0", 1435, 2.32, 1.33}, {"alexnet", 1437, 2.81, 1.25}, {"resnext50-32x4d", 1555, 2.64, 1.29},
	{"densenet121", 1601, 2.49, 1.28}, {"densenet169", 1631, 2.56, 1.30}, {"densenet201", 1665, 2.67, 1.40},
	{"resnet50", 1701, 2.67, 1.28}, {"resnet101", 1757, 2.95, 1.30}, {"resnet152", 1827, 3.10, 1.31},
	{"densenet161", 1919, 2.75, 1.32}, {"inception-v3", 2157, 4.42, 1.63}, {"resnext101-32x8d", 2191, 3.51, 1.33},
	{"vgg11", 2903, 3.94, 1.29}, {"wide-resnet50-2", 3611, 3.16, 1.31}, {"wide-resnet101-2", 3831, 3.91, 1.32},
	{"vgg13", 3887, 3.98, 1.30}, {"vgg16", 3907, 4.04, 1.27}, {"vgg16-bn", 3907, 4.03, 1.26}, {"vgg19", 3947, 4.07, 1.33},
}

// LALB describes the workload of LALB (section V.A): a working set of functions, each with its
// own model from Table I, and the same number of requests every minute.
//
// The paper takes the popularity of functions from the Azure trace, and states that the 15 most
// popular functions receive 56% of all requests. Here, shares are proportional to 1/rank^Zipf.
// The paper distributes model sizes evenly. Here, models are taken at even steps through the
// table, which is sorted by size, and the seed assigns them to the ranks. Requests are uniform
// within their minute, as in the paper.
type LALB struct {
	WorkingSet int
	Minutes    int
	PerMinute  int
	Zipf       float64
}

// DefaultLALB returns the paper's workload: 325 requests per minute for 6 minutes.
func DefaultLALB() LALB { return LALB{WorkingSet: 15, Minutes: 6, PerMinute: 325, Zipf: 1} }

// Generate draws the workload.
func (l LALB) Generate(seed uint64) Workload {
	return l.generate(seed, apportion(shares(l.WorkingSet, l.Zipf), l.PerMinute))
}

// generate draws a workload with these numbers of invocations per minute, by rank.
func (l LALB) generate(seed uint64, counts []int) Workload {
	r := newRandom(seed, 0)
	var w Workload
	for rank, i := range r.shuffled(l.WorkingSet) {
		m := lalbModels[i*len(lalbModels)/l.WorkingSet%len(lalbModels)]
		f := function(rank, l.WorkingSet, costsMS{warm: m.inference * 1000, cold: (m.inference + m.load) * 1000, load: m.load * 1000})
		f.Name += "-" + m.name
		f.Model, f.MemMiB = f.Name, m.mem
		w.Functions = append(w.Functions, f)
	}
	for minute := range l.Minutes {
		for i, n := range counts {
			for range n {
				at := time.Duration(minute)*time.Minute + micros(60*r.uniform())
				w.Rows = append(w.Rows, trace.Row{At: at, Function: int32(i)})
			}
		}
	}
	w.sort()
	return w
}

// apportion divides total by shares. It rounds down and gives the rest to the largest remainders.
func apportion(shares []float64, total int) []int {
	counts, order, remaining := make([]int, len(shares)), make([]int, len(shares)), total
	remainder := func(i int) float64 { return shares[i]*float64(total) - float64(counts[i]) }
	for i, s := range shares {
		counts[i], order[i] = int(s*float64(total)), i
		remaining -= counts[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainder(b), remainder(a)) })
	for _, i := range order[:remaining] {
		counts[i]++
	}
	return counts
}
