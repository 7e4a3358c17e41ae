package residency

import (
	"maps"
	"math"
	"time"
)

// durationKey selects the durations of a function on GPUs of a class, or on one GPU, see onlyOn.
type durationKey struct{ function, class int32 }

// onlyOn returns the key of a function's durations on one GPU. Its class is less than those of GPUs.
func onlyOn(function, gpu int32) durationKey { return durationKey{function, -1 - gpu} }

// SetClass sets the class of a GPU. GPUs of one class, for example of the same product, run a function
// equally fast.
func (l *ledger) SetClass(gpu, class int32) { l.gpus[gpu].hardware = class }

// Class returns the class of a GPU.
func (l *ledger) Class(gpu int32) int32 { return l.gpus[gpu].hardware }

// SetDurations sets the expected durations of a function's invocations on GPUs of a class, by Start.
// On other GPUs, Function.Duration holds.
func (l *ledger) SetDurations(function, class int32, durations [3]time.Duration) {
	if l.byClass == nil {
		l.byClass = map[durationKey][3]time.Duration{}
	}
	l.byClass[durationKey{function, class}] = durations
}

// SetDurationsOn sets the expected durations of a function's invocations on one GPU, by Start. They take
// precedence over those of its class. Durations of 0 remove them.
func (l *ledger) SetDurationsOn(function, gpu int32, durations [3]time.Duration) {
	if durations == [3]time.Duration{} {
		delete(l.byClass, onlyOn(function, gpu))
		return
	}
	l.SetDurations(function, onlyOn(function, gpu).class, durations)
}

// ForgetDurations removes the durations that SetDurations and SetDurationsOn set for a function.
func (l *ledger) ForgetDurations(function int32) {
	maps.DeleteFunc(l.byClass, func(k durationKey, _ [3]time.Duration) bool { return k.function == function })
}

// DurationOn returns the expected duration of an invocation on a GPU with that kind of start.
func (l *ledger) DurationOn(function, gpu int32, start Start) time.Duration {
	if l.byClass == nil {
		return l.hot[function].duration[start]
	}
	if durations, known := l.byClass[onlyOn(function, gpu)]; known {
		return durations[start]
	}
	return l.durationOfClass(function, l.gpus[gpu].hardware, start)
}

// durationOfClass returns the expected duration of an invocation on GPUs of a class.
func (l *ledger) durationOfClass(function, class int32, start Start) time.Duration {
	if durations, known := l.byClass[durationKey{function, class}]; known {
		return durations[start]
	}
	return l.hot[function].duration[start]
}

// bestOfClasses implements Best on any GPU if durations depend on the GPU.
func (p *placement) bestOfClasses(function, except int32) (best Place, found bool) {
	shortest := time.Duration(0)
	best.Index = none
	s := p.search(&p.hot[function], p.kinds(function))
	for at, ok := s.next(); ok; at, ok = s.next() {
		if d := p.DurationOn(function, at.GPU, at.Start); at.GPU != except && (!found || d < shortest) {
			best, shortest, found = at, d, true
		}
	}
	if found {
		best.Index = p.rows.on(&p.hot[function], best.GPU)
	}
	return best, found
}

// cheapestOfClasses implements Cheapest if durations depend on the GPU.
func (p *placement) cheapestOfClasses(function int32) (best Place, loss float64, found bool) {
	best, found = p.bestOfClasses(function, Any)
	if !found {
		return best, 0, false
	}
	shortest := p.DurationOn(function, best.GPU, best.Start)
	loss, considered := math.Inf(1), 0
	s := p.search(&p.hot[function], p.kinds(function))
	for at, ok := s.next(); ok && considered < MaxConsidered; at, ok = s.next() {
		if p.DurationOn(function, at.GPU, at.Start) != shortest {
			continue
		}
		considered++
		if l := p.lossAt(at, function, loss); l < loss {
			best, loss = at, l
		}
	}
	best.Index = p.rows.on(&p.hot[function], best.GPU)
	return best, loss, true
}

// expectedOfClasses implements Expected if durations depend on the GPU.
func (p *placement) expectedOfClasses(function int32) (shortest time.Duration) {
	shortest = never
	for gpu := range p.gpus {
		if p.gpus[gpu].open {
			shortest = min(shortest, p.DurationOn(function, int32(gpu), p.PlaceOn(function, int32(gpu)).Start))
		}
	}
	if shortest == never {
		return 0
	}
	return shortest
}
