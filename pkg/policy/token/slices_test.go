package token

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

const (
	tick      = 50 * time.Microsecond // of the virtual GPU
	inFlight  = 12 * ms               // as much GPU time a process launches ahead (hook/meter.c)
	idleAfter = 2 * ms                // a process returns its lease (hook/helper.c)
)

// slicedGPU is a GPU that its processes share in equal time slices, on a virtual
// clock, under introspective.
type slicedGPU struct {
	t        testing.TB
	s        *introspective
	now      time.Duration
	wake     time.Duration
	rng      *rand.Rand
	lag      time.Duration // wakes come up to this late
	programs []*program
	log      []logged
	trace    [][]Action
	issued   func() // is called when tokens have been issued
}

// program is a process: it saturates the GPU, or serves requests of some kernels
// each.
type program struct {
	id      ClientID
	inst    string
	slice   gpu.Slice
	slo     time.Duration
	kernel  time.Duration // GPU time of one, alone
	blocks  uint64        // of one
	kernels int           // of a request; 0 saturates
	host    time.Duration // between the end of a kernel and the launch of the next; 0 launches ahead
	returns bool          // gives its lease back also while it waits for tokens

	arrivals []time.Duration // of requests that are not done, oldest first
	left     int             // kernels of the request that are not launched
	latency  []time.Duration // of requests done
	queue    []time.Duration // GPU time left of each kernel in flight
	done     time.Duration   // GPU time had
	rest     time.Duration   // no launch before

	held                   uint32 // lease; 0 is none
	asked, draining        bool
	budget, made, launches uint64
	first, last, active    time.Duration // under the lease: first launch, last end, last activity
	gone                   bool
}

func newSlicedGPU(t testing.TB, seed uint64) *slicedGPU {
	return &slicedGPU{t: t, s: newIntrospective(Config{}, published, 0), rng: rand.New(rand.NewPCG(seed, 2)), wake: -1}
}

func (g *slicedGPU) join(p *program) *program {
	p.id = ClientID(len(g.programs) + 1)
	g.programs = append(g.programs, p)
	g.step(AddInstance{Instance: p.inst, Slice: p.slice, SLO: p.slo, Loose: true}, AddClient{p.id, p.inst})
	return p
}

func (g *slicedGPU) leave(p *program) {
	p.gone = true
	g.step(RemoveClient{p.id})
}

func (g *slicedGPU) step(events ...Event) {
	actions := g.s.Step(g.now, events, nil)
	g.log, g.trace = append(g.log, logged{g.now, events}), append(g.trace, actions)
	for _, a := range actions {
		switch a := a.(type) {
		case Budget:
			g.programs[a.Client-1].budget = a.Blocks
		case Grant:
			p := g.programs[a.Client-1]
			if p.gone || p.held != 0 || a.Lease == 0 || a.Reason == "" {
				g.t.Fatalf("at %v: wrong %+v", g.now, a)
			}
			p.held, p.asked, p.draining, p.active, p.first, p.last = a.Lease, false, false, g.now, -1, 0
		case Revoke:
			p := g.programs[a.Client-1]
			if p.held != a.Lease || p.draining || a.Reason == "" {
				g.t.Fatalf("at %v: wrong %+v", g.now, a)
			}
			p.draining = true
		case WakeAt:
			if a.At <= g.now {
				g.t.Fatalf("at %v: wake at %v has passed", g.now, a.At)
			}
			g.wake = a.At
			if g.lag > 0 {
				g.wake += time.Duration(g.rng.Int64N(int64(g.lag)))
			}
		}
	}
}

// sample is what the process's counters are.
func (p *program) sample() Sample { return Sample{p.id, p.launches, p.made} }

// run lets time pass.
func (g *slicedGPU) run(d time.Duration) {
	for end := g.now + d; g.now < end; g.now += tick {
		g.compute()
		for _, p := range g.programs {
			if !p.gone {
				g.launch(p)
				g.mind(p)
			}
		}
		if g.wake >= 0 && g.now >= g.wake {
			g.wake = -1
			var events []Event
			for _, p := range g.programs {
				if p.held != 0 && !p.gone {
					events = append(events, p.sample())
				}
			}
			g.step(append(events, Wake{})...)
			if g.issued != nil && g.s.ticked == g.now && g.s.trial == nil {
				g.issued()
			}
		}
	}
}

// compute gives each process with work in flight its slice of a tick.
func (g *slicedGPU) compute() {
	busy := 0
	for _, p := range g.programs {
		if len(p.queue) > 0 && !p.gone {
			busy++
		}
	}
	for _, p := range g.programs {
		if p.gone {
			continue
		}
		for rest := tick / time.Duration(max(busy, 1)); len(p.queue) > 0 && rest > 0; {
			part := min(rest, p.queue[0])
			rest -= part
			p.done += part
			if p.queue[0] -= part; p.queue[0] == 0 {
				p.queue = p.queue[1:]
				p.rest = g.now + p.host
			}
			p.last, p.active = g.now, g.now
		}
		if p.kernels > 0 && len(p.arrivals) > 0 && p.left == 0 && len(p.queue) == 0 {
			p.latency = append(p.latency, g.now-p.arrivals[0])
			p.arrivals = p.arrivals[1:]
			p.next()
		}
	}
}

// arrive brings the process a request.
func (g *slicedGPU) arrive(p *program) {
	if p.arrivals = append(p.arrivals, g.now); len(p.arrivals) == 1 {
		p.next()
	}
}

func (p *program) next() {
	if len(p.arrivals) > 0 {
		p.left = p.kernels
	}
}

// wants says whether the process would launch now.
func (g *slicedGPU) wants(p *program) bool {
	ahead := time.Duration(len(p.queue)) * p.kernel
	if p.host > 0 && (ahead > 0 || g.now < p.rest) {
		return false
	}
	return (p.kernels == 0 || p.left > 0) && ahead < inFlight
}

func (g *slicedGPU) launch(p *program) {
	for g.wants(p) {
		if p.held == 0 && !p.asked {
			p.asked = true
			g.step(Request{p.id})
		}
		if p.held == 0 || p.draining || p.made >= p.budget {
			return
		}
		if p.first < 0 {
			p.first = g.now
		}
		p.queue = append(p.queue, p.kernel)
		p.launches++
		p.made += p.blocks
		p.active = g.now
		if p.left > 0 {
			p.left--
		}
	}
}

// mind gives the lease back when that is due.
func (g *slicedGPU) mind(p *program) {
	waits := g.wants(p)
	idle := len(p.queue) == 0 && g.now-p.active >= idleAfter && (p.returns || !waits)
	if p.held == 0 || len(p.queue) > 0 || !p.draining && !idle {
		return
	}
	used := time.Duration(0)
	if p.first >= 0 {
		used = p.last - p.first
	}
	lease := p.held
	p.held, p.asked = 0, waits
	g.step(p.sample(), Return{Client: p.id, Lease: lease, Used: used, WantsMore: waits})
}

// shares runs for a while and returns the part of the GPU that each had.
func (g *slicedGPU) shares(d time.Duration) []float64 {
	before := make([]time.Duration, len(g.programs))
	for n, p := range g.programs {
		before[n] = p.done
	}
	g.run(d)
	var out []float64
	for n, p := range g.programs {
		out = append(out, (p.done-before[n]).Seconds()/d.Seconds())
	}
	return out
}

func (p *program) p95() time.Duration {
	if len(p.latency) == 0 {
		return 0
	}
	slices.Sort(p.latency)
	return p.latency[len(p.latency)*95/100]
}
