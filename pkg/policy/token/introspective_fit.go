package token

// shareEps is the part of a GPU that is lost to rounding.
const shareEps = 1e-9

// # Fitting the GPU
//
// Requests of a placement sum to at most one GPU, limits to more (3.3: 1.5). So
// what Algorithm 2 gives may exceed what there is, and then each would get what
// the driver's time slices give it. Shares are kept in order: a floor for best
// effort, at most a tenth of the GPU in all; SLO-sensitive instances; the rest
// for best effort. Within a class each instance has its request, then
// what is left in proportion to the requests (max-min), up to what it wants.
// Kept is only what an instance can be expected to use, the most of its rate
// window and some growth. What is kept for nobody is issued to whoever wants it,
// and every instance may launch up to its request at any time: who surges has
// that at once, and the others make room in the next period.

// fit turns what the instances want into what they are issued.
func (s *Introspective) fit() {
	var classes [2][]*account // SLO-sensitive, best effort
	for _, a := range s.accounts {
		a.demand = a.expected(s.params)
		switch {
		case len(a.processes) == 0 || s.empty(a):
			a.issue, a.kept = a.want, 0
		case a.sensitive:
			classes[0] = append(classes[0], a)
		default:
			classes[1] = append(classes[1], a)
		}
	}
	floor := 0.0
	for _, a := range classes[1] {
		floor += a.request * s.params.Floor
	}
	floor = min(floor, s.params.Floor)
	left := 1 - floor
	for _, class := range classes {
		promised := 0.0
		for _, a := range class {
			promised += min(a.request, a.want)
		}
		over := keep(class, left)
		for _, a := range class {
			a.issue = min(a.want, a.kept+over)
			if promised <= left+shareEps {
				a.issue = max(a.issue, min(a.want, a.request))
			}
		}
		left = over + floor
	}
}

// expected is the share that the instance will use at most in the next period,
// if it may. One that is not known yet uses all it gets.
func (a *account) expected(p Params) float64 {
	if a.gauge.speed == 0 {
		return a.want
	}
	most := 0.0
	for _, r := range a.rates {
		most = max(most, r)
	}
	return min(a.want, max(most*p.Increase, a.request*p.Floor))
}

// keep divides what there is among a class and returns what is left over.
func keep(class []*account, left float64) float64 {
	sum := 0.0
	for _, a := range class {
		a.kept = min(a.demand, a.request)
		sum += a.kept
	}
	if sum > left {
		for _, a := range class {
			a.kept *= left / sum
		}
		return 0
	}
	for left -= sum; left > shareEps; {
		weight := 0.0
		for _, a := range class {
			if a.kept < a.demand-shareEps {
				weight += a.request
			}
		}
		if weight == 0 {
			break
		}
		given := 0.0
		for _, a := range class {
			if a.kept < a.demand-shareEps {
				more := min(a.demand-a.kept, left*a.request/weight)
				a.kept += more
				given += more
			}
		}
		left -= given
	}
	return max(left, 0)
}
