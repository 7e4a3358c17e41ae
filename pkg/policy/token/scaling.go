package token

import (
	"math"
	"slices"
)

// scaling computes the share of the GPU that each instance is issued, in two steps: scale runs Algorithm 2 of the Dilu
// paper, and fit reduces or extends the resulting shares to fit the GPU.
type scaling struct{ *meter }

// scale runs Algorithm 2: it sets phase and scaledShare, the share that the instance wants, of each instance.
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

// othersEmpty reports whether the rate windows of all other instances are empty.
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

// gpuState is the state of the GPU.
type gpuState struct {
	phase             // the highest phase of the SLO-sensitive instances with clients
	stretch   float64 // in an emergency: the largest stretch measured since the last issue of tokens; 0 if none was
	violation bool    // in an emergency: one of these stretches exceeds the factor of its instance
}

// state computes the state of the GPU from its SLO-sensitive instances.
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

// scaleBestEffort executes lines 23 to 31 of Algorithm 2 for a best-effort instance. Its share is at least its
// request, which the placement guarantees, except in an emergency.
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
// So the shares of Algorithm 2 may sum to more than the GPU. The time slices of the driver would then determine what
// each instance gets. Therefore fit first reserves a share for each instance, and then issues shares:
//
//  1. Shares are reserved in this order: a floor for best-effort instances, at most a tenth of the GPU in total; the
//     SLO-sensitive instances; the rest for best-effort instances.
//  2. Within a class, each instance first receives its request. Then the remainder is divided in
//     proportion to the requests (max-min), up to the share that each instance wants.
//  3. Only the expected use of an instance is reserved: its largest use in a period of the rate window, plus some
//     growth.
//  4. The unreserved remainder is issued to every instance that wants it, and each instance may
//     launch up to its request at any time. So an instance whose load rises gets its request at
//     once, and the others make room in the next period.
//  5. The rest of the GPU, which is not issued by 1 to 4, would be idle.
//     If an SLO-sensitive instance has work, the rest is issued to the SLO-sensitive instances in contention, up to
//     their limits. This is done only if each of them then is so close to its limit that an emergency would end:
//     with less, they would get neither their limits nor the emergency that raises them to their limits.
//     If all SLO-sensitive instances have been idle for a quarter of the rate window, the rest is issued to the
//     best-effort instances.
//
// Rule 5 is not in the paper: as printed, instances in contention have their requests, and best-effort instances wait
// for the whole rate window.

// fit sets reserved and issued of each instance, from the share that it wants.
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
	if !s.objectivesQuiet() {
		rest := 1 - issued(classes[0]) - issued(classes[1])
		contending := slices.DeleteFunc(classes[0], func(i *meteredInstance) bool { return i.phase != contention })
		issueRest(contending, rest, s.params.recovery)
	} else {
		issueRest(classes[1], 1-issued(classes[1]), math.Inf(1))
	}
}

// issued returns the sum of the shares that instances are issued.
func issued(instances []*meteredInstance) (sum float64) {
	for _, i := range instances {
		sum += i.issued
	}
	return sum
}

// issueRest divides rest, a share of the GPU, among instances in proportion to their requests, and adds it to their
// issued shares, up to their limits. It changes nothing if the new share of an instance times closeness would be less
// than the instance's limit.
func issueRest(class []*meteredInstance, rest, closeness float64) {
	for _, i := range class {
		i.raised = i.issued
	}
	raise(class, rest, func(i *meteredInstance) (*float64, float64) { return &i.raised, i.currentLimit() })
	for _, i := range class {
		if i.raised*closeness < i.currentLimit()-shareEps {
			return
		}
	}
	for _, i := range class {
		i.issued = i.raised
	}
}

// expected returns the largest share that the instance is expected to use in the next period. For an instance whose
// speed has not been measured, this is the share that it wants. For an instance whose kernel has run for the whole rate
// window, it is the request.
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

// reserve reserves shares for the instances of a class, of at most remaining in total, and returns the remainder.
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
	return raise(class, remaining-sum, func(i *meteredInstance) (*float64, float64) { return &i.reserved, i.demand })
}

// raise divides a share of the GPU among instances in proportion to their requests, and returns the remainder. For each
// instance, share returns the share to raise and its upper bound; the others get what exceeds the bound.
func raise(class []*meteredInstance, remaining float64, share func(*meteredInstance) (now *float64, bound float64)) float64 {
	for remaining > shareEps {
		weight := 0.0
		for _, i := range class {
			if now, bound := share(i); *now < bound-shareEps {
				weight += i.request
			}
		}
		if weight == 0 {
			break
		}
		sum := 0.0
		for _, i := range class {
			if now, bound := share(i); *now < bound-shareEps {
				part := min(bound-*now, remaining*i.request/weight)
				*now += part
				sum += part
			}
		}
		remaining -= sum
	}
	return max(remaining, 0)
}
