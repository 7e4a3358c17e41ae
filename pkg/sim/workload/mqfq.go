package workload

import "math"

// mqfqFunctions is Table 1 of MQFQ-Sticky: seconds on a V100, warm and cold.
var mqfqFunctions = []struct {
	name       string
	warm, cold float64
}{
	{"imagenet", 2.253, 11.286}, {"roberta", 0.268, 15.481}, {"ffmpeg", 4.483, 4.612}, {"fft", 0.897, 3.322},
	{"isoneural", 0.026, 9.963}, {"lud", 2.050, 2.359}, {"needle", 1.979, 2.177}, {"pathfinder", 1.472, 1.797},
}

// mqfqMem is the memory of each function in MiB. The paper gives only the value of FFT (section
// 5.2). In the paper's system, moves of memory between the host and the GPU overlap with the
// execution of other invocations, so loading takes no time in this workload.
const mqfqMem = 1536

// MQFQ describes a mix of MQFQ-Sticky's evaluation (section 6): copies of the functions of Table
// 1, each with its own arrivals.
//
// The paper samples rates from the Azure trace. For each sample it gives the requests per second
// and the utilization of the GPU (Table 3). Here, gaps are exponential and rates are
// proportional to 1/rank^Zipf, as in the paper's Zipfian workload. The seed draws the function of
// each rank: Generate draws many mixes and chooses the one whose utilization, counting warm
// executions, is closest to the paper's. With about as many copies of each function as of any
// other, the utilization at the paper's rate would exceed the paper's (0.83 instead of 0.7 in trace 4),
// even if the shortest functions were the most popular ones.
type MQFQ struct {
	Functions   int
	Duration    float64 // seconds
	Rate        float64 // invocations per second
	Utilization float64
	Zipf        float64
}

// DefaultMQFQ returns the mix of section 6.2, trace 4: 19 functions, 2.69 requests per second and
// a GPU utilization of about 70%, for ten minutes.
func DefaultMQFQ() MQFQ {
	return MQFQ{Functions: 19, Duration: 600, Rate: 2.69, Utilization: 0.7, Zipf: 1.5}
}

// mqfqDraws is the number of mixes to draw.
const mqfqDraws = 200_000

// Generate draws the workload.
func (q MQFQ) Generate(seed uint64) Workload {
	var w Workload
	for rank, i := range q.deal(newRandom(seed, 0)) {
		kind := mqfqFunctions[i]
		f := function(rank, q.Functions, costsMS{warm: kind.warm * 1000, cold: kind.cold * 1000})
		f.Name += "-" + kind.name
		f.Model, f.MemMiB = f.Name, mqfqMem
		w.Functions = append(w.Functions, f)
	}
	Mixed{Pattern: Pattern{Shape: "poisson"}, Rate: q.Rate, Duration: q.Duration, Zipf: q.Zipf}.addInvocations(&w, seed)
	return w
}

// deal draws the row of the table for each rank.
func (q MQFQ) deal(r random) []int {
	share, minOff := shares(q.Functions, q.Zipf), math.Inf(1)
	best, drawn := make([]int, q.Functions), make([]int, q.Functions)
	for range mqfqDraws {
		work := 0.0
		for rank := range drawn {
			drawn[rank] = r.below(len(mqfqFunctions))
			work += q.Rate * share[rank] * mqfqFunctions[drawn[rank]].warm
		}
		if off := math.Abs(work - q.Utilization); off < minOff {
			minOff = off
			copy(best, drawn)
		}
	}
	return best
}
