package planned

import (
	"time"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// function is what is sent to a function, and what comes of it.
type function struct {
	world    *world
	arrivals []float64 // still to come
	routing  Routing
	rng      splitmix.Source
	lines    []*line // one for all instances, or for each its own
	weights  float64
	took     []float64
}

// line is where requests wait for one of its instances.
type line struct {
	function *function
	waiting  []time.Duration // since when
	workers  []*worker
}

// add makes an instance known.
func (f *function) add(w *worker) {
	if len(f.lines) == 0 || f.routing != Least {
		f.lines = append(f.lines, &line{function: f})
	}
	w.line = f.lines[len(f.lines)-1]
	w.line.workers = append(w.line.workers, w)
	f.weights += w.rps
}

// await has the next request come at its time.
func (f *function) await() {
	if len(f.arrivals) > 0 {
		f.world.agenda.push(duration(f.arrivals[0]), occasion{kind: arrival, function: f})
		f.arrivals = f.arrivals[1:]
	}
}

// arrive has a request come.
func (f *function) arrive() {
	f.await()
	l := f.route()
	l.waiting = append(l.waiting, f.world.now)
	l.serve()
}

// route is where a request waits that comes now.
func (f *function) route() *line {
	switch {
	case len(f.lines) == 1:
	case f.routing == Random:
		return f.lines[f.rng.Below(len(f.lines))]
	default:
		at := f.rng.Unit() * f.weights
		for _, l := range f.lines {
			if at -= l.workers[0].rps; at < 0 {
				return l
			}
		}
	}
	return f.lines[len(f.lines)-1]
}

// serve gives what waits to the instances that are free.
func (l *line) serve() {
	for len(l.waiting) > 0 {
		w := l.soonest()
		if w == nil {
			break
		}
		w.take(l.waiting[0])
		l.waiting = l.waiting[1:]
	}
	for _, w := range l.workers {
		w.start()
	}
}

// soonest is the instance with room that will have one more request done first, by how
// long a batch took there and how many it has in hand, as the gateway chooses; nil if none has room.
func (l *line) soonest() *worker {
	var best *worker
	var first time.Duration
	for _, w := range l.workers {
		if !w.room() {
			continue
		}
		if at := w.each * time.Duration(len(w.hand)+1); best == nil || at < first {
			best, first = w, at
		}
	}
	return best
}

// done takes note of requests that are answered now.
func (l *line) done(came []time.Duration, now time.Duration) {
	f := l.function
	for _, at := range came {
		f.took = append(f.took, ms(now-at))
	}
	f.world.left -= len(came)
}
