package workload

import "math"

// mqfqFunctions are Table 1 of MQFQ-Sticky: seconds on a V100, warm and cold.
var mqfqFunctions = []struct {
	name       string
	warm, cold float64
}{
	{"imagenet", 2.253, 11.286}, {"roberta", 0.268, 15.481}, {"ffmpeg", 4.483, 4.612}, {"fft", 0.897, 3.322},
	{"isoneural", 0.026, 9.963}, {"lud", 2.050, 2.359}, {"needle", 1.979, 2.177}, {"pathfinder", 1.472, 1.797},
}

// mqfqMem is the memory of one function, in MiB: the paper prints that of FFT
// alone (section 4.2). Moving it is overlapped with other work there, so that
// it costs no time here.
const mqfqMem = 1536

// MQFQ is a mix of MQFQ-Sticky's evaluation (section 6): copies of the functions
// of Table 1, each with arrivals of its own.
//
// The paper samples rates from the Azure trace and prints of each sample how
// many requests a second it has and how busy they keep the GPU (Table 3, section
// 6.2). Here gaps are exponential and rates go with 1/rank^Zipf, as in the
// paper's Zipfian workload. Which function of the table each rank is a copy of is
// drawn by the seed: of many draws the one that comes closest to both figures,
// warm executions taken as what keeps the GPU busy. (As many copies of each
// cannot meet both: short functions have to be the popular ones.)
type MQFQ struct {
	Functions   int
	Duration    float64 // seconds
	Rate        float64 // invocations a second
	Utilization float64
	Zipf        float64
}

// DefaultMQFQ is the mix of section 6.2, trace 4: 19 functions, 2.69 requests a
// second, a GPU that is busy for around 70% of the time; for ten minutes.
func DefaultMQFQ() MQFQ {
	return MQFQ{Functions: 19, Duration: 600, Rate: 2.69, Utilization: 0.7, Zipf: 1.5}
}

// mqfqDraws is how many mixes are looked at.
const mqfqDraws = 200_000

// Make draws the workload.
func (q MQFQ) Make(seed uint64) Workload {
	var w Workload
	for rank, i := range q.deal(newRandom(seed, 0)) {
		kind := mqfqFunctions[i]
		f := function(rank, q.Functions, kind.warm*1000, kind.cold*1000, 0)
		f.Name += "-" + kind.name
		f.Model, f.MemMiB = f.Name, mqfqMem
		w.Functions = append(w.Functions, f)
	}
	Mixed{Pattern: Pattern{Shape: "poisson"}, Rate: q.Rate, Duration: q.Duration, Zipf: q.Zipf}.arrive(&w, seed)
	return w
}

// deal draws the row of the table for each rank.
func (q MQFQ) deal(r random) []int {
	share, least := shares(q.Functions, q.Zipf), math.Inf(1)
	best, drawn := make([]int, q.Functions), make([]int, q.Functions)
	for range mqfqDraws {
		work := 0.0
		for rank := range drawn {
			drawn[rank] = r.below(len(mqfqFunctions))
			work += q.Rate * share[rank] * mqfqFunctions[drawn[rank]].warm
		}
		if off := math.Abs(work - q.Utilization); off < least {
			least = off
			copy(best, drawn)
		}
	}
	return best
}
