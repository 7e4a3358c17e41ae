package token

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

const (
	tick      = 50 * time.Microsecond // step of the virtual clock
	inFlight  = 12 * ms               // GPU time that a process launches ahead (hook/meter.c)
	idleAfter = 2 * ms                // idle time after which a process returns its lease (hook/helper.c)
)

// slicedGPU simulates a GPU under introspective on a virtual clock. Its processes share it in equal
// time slices.
type slicedGPU struct {
	t        testing.TB
	s        *introspective
	now      time.Duration
	wake     time.Duration
	rng      *rand.Rand
	lag      time.Duration // wakes are up to this late
	programs []*program
	log      []logged
	trace    [][]Action
	issued   func() // called after each issue of tokens
}

// program simulates a process that saturates the GPU or serves requests of several kernels each.
type program struct {
	id      ClientID
	inst    string
	slice   gpu.Slice
	slo     time.Duration
	kernel  time.Duration // GPU time of a kernel alone
	blocks  uint64        // blocks of a kernel
	kernels int           // kernels of a request; 0: the program saturates the GPU
	host    time.Duration // time between the end of a kernel and the next launch; 0: launches ahead
	returns bool          // returns its lease also while it waits for tokens

	llm, training bool
	enforced      bool // the SM share is registered as enforced

	arrivals   []time.Duration // of unfinished requests, oldest first
	unlaunched int             // kernels of the current request that are not launched yet
	latency    []time.Duration // of finished requests
	queue      []time.Duration // remaining GPU time of each kernel in flight
	gpuTime    time.Duration   // GPU time received
	nextLaunch time.Duration   // time of the earliest next launch

	lease                            uint32 // lease; 0: none
	requested, draining              bool
	budget, launchedBlocks, launches uint64
	first, last, active              time.Duration // during the lease: first launch, end of the last kernel, last activity
	removed                          bool
}

func newSlicedGPU(t testing.TB, seed uint64) *slicedGPU {
	return &slicedGPU{t: t, s: newIntrospective(Config{}, published, 0), rng: rand.New(rand.NewPCG(seed, 2)), wake: -1}
}

func (g *slicedGPU) add(p *program) *program {
	p.id = ClientID(len(g.programs) + 1)
	g.programs = append(g.programs, p)
	g.register(p)
	g.step(AddClient{p.id, p.inst})
	return p
}

// register registers the program's instance, or changes its settings.
func (g *slicedGPU) register(p *program) {
	g.step(AddInstance{Instance: p.inst, Slice: p.slice, SLO: p.slo, LLM: p.llm, Training: p.training, Unenforced: !p.enforced})
}

func (g *slicedGPU) remove(p *program) {
	p.removed = true
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
			if p.removed || p.lease != 0 || a.Lease == 0 || Reasons.Check(a.Reason) != nil {
				g.t.Fatalf("at %v: got %+v for program %+v, want a running program without a lease, a lease number and a documented reason", g.now, a, p)
			}
			p.lease, p.requested, p.draining, p.active, p.first, p.last = a.Lease, false, false, g.now, -1, 0
		case Revoke:
			p := g.programs[a.Client-1]
			if p.lease != a.Lease || p.draining || Reasons.Check(a.Reason) != nil {
				g.t.Fatalf("at %v: got %+v for program %+v, want a lease that was not revoked and a documented reason", g.now, a, p)
			}
			p.draining = true
		case WakeAt:
			if a.At <= g.now {
				g.t.Fatalf("at %v: got a wake at %v, want a later time", g.now, a.At)
			}
			g.wake = a.At
			if g.lag > 0 {
				g.wake += time.Duration(g.rng.Int64N(int64(g.lag)))
			}
		}
	}
}

// sample returns the counters of the process.
func (p *program) sample() Sample { return Sample{p.id, p.launches, p.launchedBlocks} }

// run advances the clock by d.
func (g *slicedGPU) run(d time.Duration) {
	for end := g.now + d; g.now < end; g.now += tick {
		g.compute()
		for _, p := range g.programs {
			if !p.removed {
				g.launch(p)
				g.returnIfDone(p)
			}
		}
		if g.wake >= 0 && g.now >= g.wake {
			g.wake = -1
			var events []Event
			for _, p := range g.programs {
				if p.lease != 0 && !p.removed {
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

// compute runs one tick: it divides the tick equally among the processes with work in flight.
func (g *slicedGPU) compute() {
	busy := 0
	for _, p := range g.programs {
		if len(p.queue) > 0 && !p.removed {
			busy++
		}
	}
	for _, p := range g.programs {
		if p.removed {
			continue
		}
		for rest := tick / time.Duration(max(busy, 1)); len(p.queue) > 0 && rest > 0; {
			progress := min(rest, p.queue[0])
			rest -= progress
			p.gpuTime += progress
			if p.queue[0] -= progress; p.queue[0] == 0 {
				p.queue = p.queue[1:]
				p.nextLaunch = g.now + p.host
			}
			p.last, p.active = g.now, g.now
		}
		if p.kernels > 0 && len(p.arrivals) > 0 && p.unlaunched == 0 && len(p.queue) == 0 {
			p.latency = append(p.latency, g.now-p.arrivals[0])
			p.arrivals = p.arrivals[1:]
			p.next()
		}
	}
}

// arrive adds a request to the process.
func (g *slicedGPU) arrive(p *program) {
	if p.arrivals = append(p.arrivals, g.now); len(p.arrivals) == 1 {
		p.next()
	}
}

func (p *program) next() {
	if len(p.arrivals) > 0 {
		p.unlaunched = p.kernels
	}
}

// canLaunch reports whether the process would launch a kernel now.
func (g *slicedGPU) canLaunch(p *program) bool {
	ahead := time.Duration(len(p.queue)) * p.kernel
	if p.host > 0 && (ahead > 0 || g.now < p.nextLaunch) {
		return false
	}
	return (p.kernels == 0 || p.unlaunched > 0) && ahead < inFlight
}

func (g *slicedGPU) launch(p *program) {
	for g.canLaunch(p) {
		if p.lease == 0 && !p.requested {
			p.requested = true
			g.step(Request{p.id})
		}
		if p.lease == 0 || p.draining || p.launchedBlocks >= p.budget {
			return
		}
		if p.first < 0 {
			p.first = g.now
		}
		p.queue = append(p.queue, p.kernel)
		p.launches++
		p.launchedBlocks += p.blocks
		p.active = g.now
		if p.unlaunched > 0 {
			p.unlaunched--
		}
	}
}

// returnIfDone returns the lease if the process has drained or is idle.
func (g *slicedGPU) returnIfDone(p *program) {
	waits := g.canLaunch(p)
	idle := len(p.queue) == 0 && g.now-p.active >= idleAfter && (p.returns || !waits)
	if p.lease == 0 || len(p.queue) > 0 || !p.draining && !idle {
		return
	}
	used := time.Duration(0)
	if p.first >= 0 {
		used = p.last - p.first
	}
	lease := p.lease
	p.lease, p.requested = 0, waits
	g.step(p.sample(), Return{Client: p.id, Lease: lease, Used: used, WantsMore: waits})
}

// shares runs for the time d and returns each process's share of the GPU.
func (g *slicedGPU) shares(d time.Duration) []float64 {
	before := make([]time.Duration, len(g.programs))
	for n, p := range g.programs {
		before[n] = p.gpuTime
	}
	g.run(d)
	var out []float64
	for n, p := range g.programs {
		out = append(out, (p.gpuTime-before[n]).Seconds()/d.Seconds())
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

// Requests whose sum is 1 fill the window, although 0.29 of 100 ms is less than 29 ms in binary numbers.
func TestRequestsFillWindow(t *testing.T) {
	const window = 100 * time.Millisecond
	for request := 0.01; request < 1; request += 0.01 {
		a, b := instance{slice: gpu.Slice{QuotaRequest: request}}, instance{slice: gpu.Slice{QuotaRequest: 1 - request}}
		a.budget(window)
		b.budget(window)
		if sum := a.request + b.request; sum != window {
			t.Errorf("requests %v and %v: got %v, want %v", request, 1-request, sum, window)
		}
	}
}
