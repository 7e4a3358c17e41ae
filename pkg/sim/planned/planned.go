// Package planned foretells what the instances of a plan keep of a function's
// objective when requests come as they do: each instance is a queue that works in
// its turns of the window, and a router gives every request to one of them. The
// rules are in docs/simulation.md. Times are in ms, of a virtual clock.
package planned

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// Instance is an instance of the function.
type Instance struct {
	Turns []gpu.Turn // parts of the window in which it works; none is all of it
	Work  float64    // ms of its turns that a batch takes, whatever is in it
	Batch int        // most requests in a batch
	RPS   float64    // what it is counted on for: its weight under Weighted
}

// Routing says which instance a request goes to.
type Routing string

// Least is the instance that would answer first by what it has in hand and how
// long it takes for that; Weighted one at random, in proportion to what each is
// counted on for; Random any.
const (
	Least    Routing = "least"
	Weighted Routing = "weighted"
	Random   Routing = "random"
)

// Routings are all of them.
func Routings() []string { return []string{string(Least), string(Weighted), string(Random)} }

// Config is a function and what is sent to it.
type Config struct {
	Instances []Instance
	Arrivals  []float64 // in order
	Routing   Routing
	WindowMS  float64
	Seed      uint64 // of the router, where it draws lots
}

// Latencies are how long each request took from its arrival to its answer, in ms,
// in ascending order. None is without instances.
func Latencies(c Config) []float64 {
	if len(c.Instances) == 0 {
		return nil
	}
	r := router{routing: c.Routing, rng: splitmix.Source(c.Seed)}
	for _, in := range c.Instances {
		r.queues = append(r.queues, newQueue(in, c.WindowMS))
		r.weights += in.RPS
	}
	out := make([]float64, 0, len(c.Arrivals))
	for _, at := range c.Arrivals {
		for _, q := range r.queues {
			out = q.advance(at, out)
		}
		q := r.choose(at)
		q.waiting = append(q.waiting, at)
	}
	for _, q := range r.queues {
		out = q.advance(math.Inf(1), out)
	}
	slices.Sort(out)
	return out
}

// Quantile is the latency that a part of the requests, 0 to 1, took at most; 0 of
// none.
func Quantile(sorted []float64, part float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, max(0, int(math.Ceil(part*float64(len(sorted))))-1))]
}

// Within is the part of the requests, 0 to 1, that took at most so long; 0 of
// none.
func Within(sorted []float64, ms float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	n, _ := slices.BinarySearchFunc(sorted, ms, func(v, ms float64) int {
		if v <= ms {
			return -1
		}
		return 1
	})
	return float64(n) / float64(len(sorted))
}

// router gives requests to instances.
type router struct {
	routing Routing
	queues  []*queue
	weights float64
	rng     splitmix.Source
}

// choose is the instance for a request that comes now.
func (r *router) choose(now float64) *queue {
	switch r.routing {
	case Random:
		return r.queues[r.rng.Below(len(r.queues))]
	case Weighted:
		at := r.rng.Unit() * r.weights
		for _, q := range r.queues {
			if at -= q.in.RPS; at < 0 {
				return q
			}
		}
		return r.queues[len(r.queues)-1]
	}
	return slices.MinFunc(r.queues, func(a, b *queue) int {
		switch x, y := a.expected(now), b.expected(now); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}
