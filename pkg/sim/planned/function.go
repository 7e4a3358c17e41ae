package planned

import (
	"time"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// function holds the requests and the latencies of one function.
type function struct {
	world     *world
	arrivals  []float64 // still to happen
	routing   Routing
	rng       splitmix.Source
	queues    []*requestQueue // one for all instances under Least, otherwise one for each
	weights   float64
	latencies []float64
	served    int // requests answered up to the last arrival of all functions
}

// requestQueue is a queue of requests for its instances.
type requestQueue struct {
	function  *function
	waiting   []time.Duration // arrival times
	instances []*instance
}

// add adds an instance.
func (f *function) add(inst *instance) {
	if len(f.queues) == 0 || f.routing != Least {
		f.queues = append(f.queues, &requestQueue{function: f})
	}
	inst.queue = f.queues[len(f.queues)-1]
	inst.queue.instances = append(inst.queue.instances, inst)
	f.weights += inst.rps
}

// scheduleNext schedules the next request.
func (f *function) scheduleNext() {
	if len(f.arrivals) > 0 {
		f.world.schedule(fromMS(f.arrivals[0]), f.arrive)
		f.arrivals = f.arrivals[1:]
	}
}

// arrive queues the request that arrives now.
func (f *function) arrive() {
	f.scheduleNext()
	q := f.route()
	q.waiting = append(q.waiting, f.world.now)
	q.serve()
}

// route returns the queue for a new request.
func (f *function) route() *requestQueue {
	switch {
	case len(f.queues) == 1:
	case f.routing == Random:
		return f.queues[f.rng.Below(len(f.queues))]
	default:
		at := f.rng.Unit() * f.weights
		for _, q := range f.queues {
			if at -= q.instances[0].rps; at < 0 {
				return q
			}
		}
	}
	return f.queues[len(f.queues)-1]
}

// serve assigns waiting requests to instances with room, and starts the instances.
func (q *requestQueue) serve() {
	for len(q.waiting) > 0 {
		inst := q.soonest()
		if inst == nil {
			break
		}
		inst.addRequest(q.waiting[0])
		q.waiting = q.waiting[1:]
	}
	for _, inst := range q.instances {
		inst.start()
	}
}

// soonest returns the instance with room that would complete one more request first, by its
// average duration of a batch and the requests in its batch. The gateway chooses in the same way.
// It returns nil if no instance has room.
func (q *requestQueue) soonest() *instance {
	var best *instance
	var first time.Duration
	for _, inst := range q.instances {
		if !inst.hasRoom() {
			continue
		}
		if at := inst.meanDuration * time.Duration(len(inst.requests)+1); best == nil || at < first {
			best, first = inst, at
		}
	}
	return best
}

// recordLatencies records the latencies of requests that are answered now.
func (q *requestQueue) recordLatencies(arrivals []time.Duration, now time.Duration) {
	f := q.function
	for _, at := range arrivals {
		f.latencies = append(f.latencies, ms(now-at))
	}
	f.world.unanswered -= len(arrivals)
	if now <= f.world.lastArrival {
		f.served += len(arrivals)
	}
}
