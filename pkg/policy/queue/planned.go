package queue

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// plannedInstance is an instance that a plan has started for a function. It owns its slice of the
// GPU, and only its function can use it. Orders therefore do not handle it: its invocations take
// no slot and no virtual time.
type plannedInstance struct {
	instance int32         // its index in the pool
	duration time.Duration // duration of an invocation: the plan's estimate, then a moving average
	n        int           // number of measurements, up to averageWindow
	batch    int32         // Adopted.Batch
}

// maxBatch bounds Adopted.Batch.
const maxBatch = 4096

// limit returns the number of invocations that the instance runs at once.
func (p *plannedInstance) limit(f *Function) int {
	if f.BatchesItself && p.batch > 1 {
		return int(p.batch)
	}
	return max(int(f.Inflight), 1)
}

// plans holds the planned instances.
type plans struct {
	*view
	pool       *residency.Pool
	runs       *runs
	byFunction [][]plannedInstance // by function
	running    []int32             // by function: invocations in flight on them
	functions  []int32             // functions with planned instances, ascending
}

// has reports whether a function has planned instances.
func (p *plans) has(f int32) bool { return int(f) < len(p.byFunction) && len(p.byFunction[f]) > 0 }

// forget removes the state of a function.
func (p *plans) forget(f int32) {
	if int(f) < len(p.byFunction) {
		p.byFunction[f], p.running[f] = nil, 0
	}
}

// patience is the least time that an invocation waits for planned instances before the engine
// starts another instance, which would use resources that the plan promised to others.
const patience = 2 * time.Second

// maxDuration bounds the duration of an invocation, because estimates are arbitrary.
const maxDuration = time.Hour

// averageWindow is the weight of the moving average, in measurements.
const averageWindow = 32

func (p *plannedInstance) learn(executed time.Duration) {
	p.n = min(p.n+1, averageWindow)
	p.duration = max(p.duration+(executed-p.duration)/time.Duration(p.n), 1)
}

// soonest returns the planned instance that would complete one more invocation first, according
// to its duration per invocation and its invocations in flight. It returns nil if no instance can
// accept another.
func (p *plans) soonest(f int32) (best *plannedInstance) {
	var first time.Duration
	for i := range p.byFunction[f] {
		it := &p.byFunction[f][i]
		n := p.runs.count(it.instance)
		if n >= it.limit(&p.view.functions[f]) || !p.open(p.pool.GPU(it.instance)) {
			continue
		}
		if completion := it.duration * time.Duration(n+1); best == nil || completion < first {
			best, first = it, completion
		}
	}
	return best
}

// serveSoon reports whether the planned instances will finish all waiting invocations of a
// function before a new instance could be started, or within patience. Instances with overdue work
// do not count.
func (p *plans) serveSoon(f int32) bool {
	rate := 0.0
	for i := range p.byFunction[f] {
		if it := &p.byFunction[f][i]; p.open(p.pool.GPU(it.instance)) && p.runs.overdueAt(it.instance) > p.now {
			rate += 1 / float64(it.duration)
		}
	}
	extra := p.pool.Expected(f) - p.view.functions[f].Warm
	if extra > 0 { // the function has no idle instance of its own
		extra = max(extra, patience)
	}
	return rate > 0 && float64(p.queues.queues[f].len) <= rate*float64(extra)
}

// nextOverdue returns the time at which the result of serveSoon may change, because the first
// invocation on a planned instance that others wait for becomes overdue.
func (p *plans) nextOverdue() time.Duration {
	at := Never
	for _, f := range p.functions {
		if q := &p.queues.queues[f]; q.len == 0 || !q.excluded {
			continue
		}
		for i := range p.byFunction[f] {
			if late := p.runs.overdueAt(p.byFunction[f][i].instance); late > p.now {
				at = min(at, late)
			}
		}
	}
	return at
}

// measured updates the duration of a planned instance after an invocation.
func (p *plans) measured(r *run, executed time.Duration) {
	for i := range p.byFunction[r.function] {
		if it := &p.byFunction[r.function][i]; it.instance == r.instance {
			it.learn(executed)
		}
	}
}

// add adds a planned instance. each is Adopted.Warm.
func (p *plans) add(f, instance int32, each time.Duration, batch int32) {
	if each == 0 {
		each = p.view.warmOn(f, p.pool.GPU(instance))
	}
	p.byFunction, p.running = grown(p.byFunction, int(f)+1), grown(p.running, int(f)+1)
	p.byFunction[f] = append(p.byFunction[f], plannedInstance{instance: instance, duration: min(max(each, 1), maxDuration), batch: min(batch, maxBatch)})
	p.functions = withMember(p.functions, f, true)
}

// setBatch changes the number of invocations that a planned instance runs at once.
func (p *plans) setBatch(f, instance, batch int32) {
	if !p.has(f) {
		return
	}
	for i := range p.byFunction[f] {
		if it := &p.byFunction[f][i]; it.instance == instance {
			it.batch = min(batch, maxBatch)
		}
	}
}

// remove removes an instance if it is planned.
func (p *plans) remove(f, instance int32) {
	if !p.has(f) {
		return
	}
	p.byFunction[f] = slices.DeleteFunc(p.byFunction[f], func(it plannedInstance) bool { return it.instance == instance })
	if len(p.byFunction[f]) == 0 {
		p.functions = withMember(p.functions, f, false)
	}
}

// inFlight returns the number of invocations of a function in flight, on planned instances and on
// others.
func (p *plans) inFlight(f int32) int32 {
	n := p.queues.queues[f].inFlight
	if int(f) < len(p.running) {
		n += p.running[f]
	}
	return n
}
