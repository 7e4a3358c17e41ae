package token

import "slices"

// scaling computes the share that each instance is issued: it runs Algorithm 2 and fits the result
// to the GPU.
type scaling struct{ *meter }

// scale runs Algorithm 2: it computes the share that each instance wants.
func (s *scaling) scale() {
	for _, i := range s.instances {
		if i.sensitive {
			s.scaleSensitive(i)
		}
	}
	now := s.state()
	for _, i := range s.instances {
		if !i.sensitive {
			s.scaleBestEffort(i, now)
		}
	}
	s.capTraining()
	for _, i := range s.instances {
		i.cycle.fresh = false
	}
}

func (s *scaling) othersEmpty(i *meteredInstance) bool {
	return !slices.ContainsFunc(s.instances, func(o *meteredInstance) bool { return o != i && !s.empty(o) })
}

// scaleSensitive executes lines 12 to 21 of Algorithm 2 for an SLO-sensitive instance.
func (s *scaling) scaleSensitive(i *meteredInstance) {
	klc, params := &i.cycle, s.params
	back := klc.stretch < min(params.recovery, i.violation) && klc.stretch*i.limit/i.request <= i.violation
	switch {
	case s.empty(i):
		i.phase, i.scaledShare, klc.stretch = recovery, i.request, 0
	case klc.stretch > i.violation, i.phase == emergency && !back:
		i.phase, i.scaledShare = emergency, i.limit
	case s.othersEmpty(i):
		i.phase, i.scaledShare = recovery, min(i.scaledShare*params.increase, i.limit)
	default:
		i.phase, i.scaledShare = contention, i.request
	}
}

// gpuState is the state of the GPU. In an emergency, stretch is the largest stretch that was measured since
// the last issue of tokens, or 0, and violation reports whether an instance stretches too far.
type gpuState struct {
	phase
	stretch   float64
	violation bool
}

func (s *scaling) state() (now gpuState) {
	for _, i := range s.instances {
		if !i.sensitive || len(i.clients) == 0 {
			continue
		}
		if i.phase == emergency && i.cycle.fresh {
			now.stretch = max(now.stretch, i.cycle.stretch)
			now.violation = now.violation || i.cycle.stretch > i.violation
		}
		now.phase = max(now.phase, i.phase)
	}
	return now
}

// scaleBestEffort executes lines 23 to 31 of Algorithm 2 for a best-effort instance. Except in an
// emergency, no instance receives less than its request, which its placement has promised.
func (s *scaling) scaleBestEffort(i *meteredInstance, now gpuState) {
	params := s.params
	i.phase = now.phase
	switch {
	case i.phase == none:
		i.scaledShare = i.limit
	case i.phase == recovery:
		i.scaledShare = min(max(i.scaledShare*params.increase, i.request), i.limit)
	case i.phase == contention:
		i.scaledShare = max(i.scaledShare, i.request)
	case i.phase == emergency && now.violation:
		i.scaledShare = max(min(i.request, i.scaledShare)/now.stretch, i.request*params.floor)
	case i.phase == emergency && now.stretch > 0 && now.stretch < params.recovery:
		i.scaledShare = min(i.scaledShare*params.increase, i.request)
	}
}

// # Fitting the GPU
//
// The requests of a placement sum to at most one GPU, but the limits to more (1.5 in section 3.3).
// So the shares of Algorithm 2 may exceed the GPU, and the driver's time slices would decide about
// each instance's part. Therefore shares are reserved:
//
//  1. In this order: a floor for best-effort instances, at most a tenth of the GPU in total; the
//     SLO-sensitive instances; the rest for best-effort instances.
//  2. Within a class, each instance first receives its request, then its part of the remainder in
//     proportion to the requests (max-min), up to the share that it wants.
//  3. Only expected use is reserved: the largest use in a period of the rate window, plus some
//     growth.
//  4. The unreserved remainder is issued to every instance that wants it, and each instance may
//     launch up to its request at any time. So an instance whose load rises has its request at
//     once, and the others make room in the next period.

// fit converts the shares that instances want into the shares that they are issued.
func (s *scaling) fit() {
	var classes [2][]*meteredInstance // SLO-sensitive, best effort
	for _, i := range s.instances {
		i.demand = i.expected(s.params)
		switch {
		case len(i.clients) == 0 || s.empty(i):
			i.issued, i.reserved = i.scaledShare, 0
		case i.sensitive:
			classes[0] = append(classes[0], i)
		default:
			classes[1] = append(classes[1], i)
		}
	}
	floor := 0.0
	for _, i := range classes[1] {
		floor += i.request * s.params.floor
	}
	floor = min(floor, s.params.floor)
	remaining := 1 - floor
	for _, class := range classes {
		promised := 0.0
		for _, i := range class {
			promised += min(i.request, i.scaledShare)
		}
		unreserved := reserve(class, remaining)
		for _, i := range class {
			i.issued = min(i.scaledShare, i.reserved+unreserved)
			if promised <= remaining+shareEps {
				i.issued = max(i.issued, min(i.scaledShare, i.request))
			}
		}
		remaining = unreserved + floor
	}
}

// expected returns the largest share that the instance is expected to use in the next period. For
// an instance that has not been measured, this is everything that it wants; for an instance whose
// kernel has run for the whole rate window, its request.
func (i *meteredInstance) expected(params IntrospectiveParameters) float64 {
	if i.gauge.speed == 0 {
		return i.scaledShare
	}
	largest := slices.Max(i.rates)
	if largest == 0 && i.runs() {
		largest = i.request // its kernel has run for the whole rate window
	}
	return min(i.scaledShare, max(largest*params.increase, i.request*params.floor))
}

// reserve divides a share of the GPU among the instances of a class and returns the remainder.
func reserve(class []*meteredInstance, remaining float64) float64 {
	sum := 0.0
	for _, i := range class {
		i.reserved = min(i.demand, i.request)
		sum += i.reserved
	}
	if sum > remaining {
		for _, i := range class {
			i.reserved *= remaining / sum
		}
		return 0
	}
	for remaining -= sum; remaining > shareEps; {
		weight := 0.0
		for _, i := range class {
			if i.reserved < i.demand-shareEps {
				weight += i.request
			}
		}
		if weight == 0 {
			break
		}
		sum := 0.0
		for _, i := range class {
			if i.reserved < i.demand-shareEps {
				share := min(i.demand-i.reserved, remaining*i.request/weight)
				i.reserved += share
				sum += share
			}
		}
		remaining -= sum
	}
	return max(remaining, 0)
}
