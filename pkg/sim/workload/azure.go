package workload

import "fmt"

// Azure describes a synthetic sample of the trace of Azure Functions, as the LALB paper uses it
// (section V.A.1): the invocations of the WorkingSet most popular functions, reduced to PerMinute
// for each minute, with the models of Table I. The paper prints three facts about the trace: it has
// 46,413 functions, the 15 most popular of them receive 56% of the invocations, and each other
// function less than 0.01%. Functions, Top and TopShare state these facts. Among the most popular
// functions, shares are proportional to 1/rank^Zipf; the others have equal shares.
type Azure struct {
	LALB
	Functions int
	Top       int
	TopShare  float64
	Least     int // invocations of each function of the working set per minute, at least
}

// DefaultAzure returns the facts that the paper prints.
func DefaultAzure() Azure {
	return Azure{LALB: DefaultLALB(), Functions: 46413, Top: 15, TopShare: 0.56, Least: 1}
}

// Check returns an error if the working set is larger than the trace, or if its least numbers of
// invocations exceed the total.
func (a Azure) Check() error {
	switch {
	case a.WorkingSet > a.Functions:
		return fmt.Errorf("a working set of %d functions is larger than the trace, which has %d", a.WorkingSet, a.Functions)
	case a.WorkingSet*a.Least > a.PerMinute:
		return fmt.Errorf("the least numbers of requests exceed the total: %d functions × %d > %d per minute", a.WorkingSet, a.Least, a.PerMinute)
	}
	return nil
}

// Generate draws the workload.
func (a Azure) Generate(seed uint64) Workload {
	counts := apportion(a.workingSetShares(), a.PerMinute-a.WorkingSet*a.Least)
	for i := range counts {
		counts[i] += a.Least
	}
	return a.generate(seed, counts)
}

// workingSetShares returns the shares of the functions in the working set, which add up to 1.
func (a Azure) workingSetShares() []float64 {
	list, sum := make([]float64, a.WorkingSet), 0.0
	popular := shares(a.Top, a.Zipf)
	for i := range list {
		if i < a.Top {
			list[i] = a.TopShare * popular[i]
		} else {
			list[i] = (1 - a.TopShare) / float64(a.Functions-a.Top)
		}
		sum += list[i]
	}
	for i := range list {
		list[i] /= sum
	}
	return list
}
