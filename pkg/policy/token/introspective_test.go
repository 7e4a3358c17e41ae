package token

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestIntrospectiveShares runs saturating best-effort clients of very different
// kernels and compares what each had of the GPU with what it should.
func TestIntrospectiveShares(t *testing.T) {
	type who struct {
		sm, request, limit float64
		kernel             time.Duration
		blocks             uint64
		host               time.Duration
		want               float64
	}
	for _, tt := range []struct {
		name    string
		within  float64
		clients []who
	}{
		{"alone to its limit", 0.01, []who{{100, 0.3, 0.8, 100 * time.Microsecond, 80, 0, 0.8}}},
		{"alone, long kernels", 0.02, []who{{100, 0.3, 0.8, 10 * ms, 1, 0, 0.8}}},
		{"alone, a tenth", 0.01, []who{{100, 0.1, 0.1, 100 * time.Microsecond, 80, 0, 0.1}}},
		{"two", 0.01, []who{{100, 0.3, 0.8, 100 * time.Microsecond, 80, 0, 0.375}, {100, 0.5, 0.8, 200 * time.Microsecond, 1000, 0, 0.625}}},
		{"two, one of long kernels", 0.02, []who{{100, 0.3, 0.8, 5 * ms, 7, 0, 0.375}, {100, 0.5, 0.8, 100 * time.Microsecond, 1000, 0, 0.625}}},
		{"ten to ninety", 0.01, []who{{100, 0.1, 0.1, 100 * time.Microsecond, 3, 0, 0.1}, {100, 0.9, 0.9, 200 * time.Microsecond, 1000, 0, 0.9}}},
		{"overcommitted", 0.02, []who{{100, 0.8, 1, 100 * time.Microsecond, 3, 0, 0.5}, {100, 0.8, 1, 200 * time.Microsecond, 9, 0, 0.5}}},
		// The GPU of this test knows no SM shares: what is half of it alone is the
		// whole, and the rest of two shares is what each leaves the other.
		{"loose, two on half of the SMs", 0.01, []who{{50, 0.4, 0.4, 100 * time.Microsecond, 3, 0, 0.2}, {50, 1, 1, 200 * time.Microsecond, 9, 0, 0.5}}},
		{"one by one", 0.02, []who{{100, 0.4, 0.8, 1 * ms, 3, 50 * time.Microsecond, 0.8 * 0.95}}},
	} {
		for _, returns := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				g := newSlicedGPU(t, 1)
				g.lag = ms
				for n, c := range tt.clients {
					g.join(&program{
						inst: string(rune('a' + n)), slice: slice(c.sm, c.request, c.limit),
						kernel: c.kernel, blocks: c.blocks, host: c.host, returns: returns,
					})
				}
				g.run(300 * ms)
				for n, got := range g.shares(10 * time.Second) {
					want := tt.clients[n].want
					t.Logf("request %v limit %v had %.4f, %d events", tt.clients[n].request, tt.clients[n].limit, got, len(g.log))
					if math.Abs(got-want) > tt.within {
						t.Errorf("client %d had %.4f of the GPU, want %.3f within %v", n+1, got, want, tt.within)
					}
				}
			})
		}
	}
}

// late is the longest latency of the fourth and later requests of bursts of ten.
func late(p *program) (most time.Duration) {
	for n, l := range p.latency {
		if n%10 >= 3 {
			most = max(most, l)
		}
	}
	return most
}

// TestBurst has a training beside an inference whose requests come in bursts:
// idle, the training has its limit; in a burst the inference's latency stays
// near what it is alone, and the training is squeezed but goes on.
func TestBurst(t *testing.T) {
	const burst, lull = 300 * ms, 700 * ms
	serve := func(with bool) (inference *program, busy, idle float64, phases map[phase]int) {
		g := newSlicedGPU(t, 3)
		g.lag = ms / 2
		inference = g.join(&program{inst: "inference", slice: slice(100, 0.3, 0.6), slo: 50 * ms, kernel: 100 * time.Microsecond, blocks: 50, kernels: 100})
		var training *program
		if with {
			training = g.join(&program{inst: "training", slice: slice(100, 0.4, 0.9), kernel: 400 * time.Microsecond, blocks: 640})
		}
		phases = map[phase]int{}
		g.run(200 * ms)
		had := func() time.Duration {
			if training == nil {
				return 0
			}
			return training.done
		}
		for n := range 20 {
			before := had()
			for at := time.Duration(0); at < burst; at += 30 * ms {
				g.arrive(inference)
				g.run(30 * ms)
				phases[g.s.instances[0].phase]++
			}
			if n > 0 {
				busy += (had() - before).Seconds() / burst.Seconds() / 19
			}
			g.run(lull / 2)
			before = had()
			g.run(lull / 2)
			if n > 0 {
				idle += (had() - before).Seconds() / (lull / 2).Seconds() / 19
			}
		}
		return inference, busy, idle, phases
	}
	alone, _, _, _ := serve(false)
	beside, busy, idle, phases := serve(true)
	got := late(beside)
	t.Logf("p95 %v alone, %v beside, %v once it has recovered; training %.3f in bursts, %.3f else; %v",
		alone.p95(), beside.p95(), got, busy, idle, phases)
	if math.Abs(idle-0.9) > 0.02 {
		t.Errorf("the training had %.3f of the idle GPU, limit 0.9", idle)
	}
	if busy > 0.4 || busy < 0.1 {
		t.Errorf("the training had %.3f in bursts, request 0.4", busy)
	}
	// 10 ms alone are 17 ms at its limit of 0.6.
	if got > 20*ms {
		t.Errorf("later in a burst a request took %v", got)
	}
	if phases[emergency] == 0 || phases[contention] == 0 {
		t.Errorf("phases at requests: %v", phases)
	}
}

// TestLeaseNumbers: no policy gives a lease a number that the preload library
// takes for a closed gate or for no lease.
func TestLeaseNumbers(t *testing.T) {
	for _, name := range Names() {
		s, err := Make(name, Config{FirstLease: math.MaxUint32 - 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Duration(0)
		s.Step(now, []Event{AddInstance{Instance: "a", Slice: slice(100, 1, 1)}, AddClient{1, "a"}}, nil)
		var leases []uint32
		ev := Event(Request{1})
		for len(leases) < 4 {
			now += ms
			for _, a := range s.Step(now, []Event{ev}, nil) {
				if g, ok := a.(Grant); ok {
					leases = append(leases, g.Lease)
					ev = Return{Client: 1, Lease: g.Lease, WantsMore: true}
				}
			}
		}
		if want := []uint32{math.MaxUint32 - 1, 1, 2, 3}; !slices.Equal(leases, want) {
			t.Errorf("%s: leases %v, want %v", name, leases, want)
		}
	}
}

// TestIntrospectiveStatus holds what a status shows of a running client.
func TestIntrospectiveStatus(t *testing.T) {
	g := newSlicedGPU(t, 1)
	p := g.join(&program{inst: "a", slice: slice(50, 0.4, 0.8), kernel: ms, blocks: 7})
	g.run(350 * ms)
	got := g.s.Snapshot().Clients[0]
	if got.Client != p.id || got.Instance != "a" || got.State != Running || got.Budget == 0 || got.Why == "" {
		t.Errorf("status %+v", got)
	}
	// Alone it has the whole GPU, of which its limit is 0.8 of 50%.
	if got.Used < 0.3 || got.Used > 0.5 {
		t.Errorf("used %v of the last window", got.Used)
	}
	s := g.s.Snapshot()
	if a := s.Instance("a"); s.SMRunning != 50 || a.Phase != "NONE" || a.Charged == 0 || a.Debt > 20*ms {
		t.Errorf("SMs %v, instance %+v", s.SMRunning, a)
	}
	if b := s.Instance("b"); b != (InstanceStatus{Instance: "b"}) {
		t.Errorf("an instance that is not known: %+v", b)
	}
}

// drawPrograms draws programs of which the requests sum to so much; some are
// SLO-sensitive and serve requests if any may be.
func drawPrograms(t *rapid.T, requests float64, sensitive bool) []*program {
	n := rapid.IntRange(1, 5).Draw(t, "instances")
	var out []*program
	for i := range n {
		request := min(requests/float64(n), 1) * rapid.Float64Range(0.4, 1).Draw(t, "request")
		limit := rapid.Float64Range(request, 1).Draw(t, "limit")
		p := program{
			inst: string(rune('a' + i)), slice: slice(100, request, limit),
			kernel: time.Duration(rapid.IntRange(1, 60).Draw(t, "kernel")) * 50 * time.Microsecond,
			blocks: rapid.Uint64Range(1, 5000).Draw(t, "blocks"), returns: rapid.Bool().Draw(t, "returns"),
		}
		if sensitive && rapid.Bool().Draw(t, "sensitive") {
			p.slo = 50 * ms
			p.kernels = rapid.IntRange(1, 20).Draw(t, "kernels")
		}
		for range rapid.IntRange(1, 2).Draw(t, "processes") {
			twin := p
			out = append(out, &twin)
		}
	}
	return out
}

// TestIntrospectiveSharesHold: where the requests sum to less than the GPU,
// every best-effort instance that never stops gets its request and never more
// than its limit.
func TestIntrospectiveSharesHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		g.lag = time.Duration(rapid.IntRange(0, 2000).Draw(rt, "lag")) * time.Microsecond
		for _, p := range drawPrograms(rt, 0.9, false) {
			g.join(p)
		}
		g.run(time.Second)
		sums := map[string]float64{}
		for n, share := range g.shares(4 * time.Second) {
			sums[g.programs[n].inst] += share
		}
		for _, p := range g.programs {
			if got := sums[p.inst]; got < p.slice.QuotaRequest-0.02 || got > p.slice.QuotaLimit+0.02 {
				rt.Fatalf("instance %s of %+v had %.4f", p.inst, p.slice, got)
			}
		}
	})
}

// TestIntrospectiveRequestsHold: with long kernels too every best-effort instance that
// never stops gets its request.
func TestIntrospectiveRequestsHold(t *testing.T) {
	for _, tt := range []struct {
		requests []float64
		kernels  []time.Duration
	}{
		{[]float64{0.8, 0.1}, []time.Duration{5 * ms, 50 * ms}},
		{[]float64{0.8, 0.1}, []time.Duration{ms / 10, 50 * ms}},
		{[]float64{0.8, 0.1}, []time.Duration{50 * ms, ms}},
		{[]float64{0.5, 0.2}, []time.Duration{ms, 20 * ms}},
		{[]float64{0.5, 0.5}, []time.Duration{ms, 50 * ms}},
		{alike(8, 0.1), []time.Duration{50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 5 * ms}},
		{alike(8, 0.1), []time.Duration{ms, ms, 5 * ms, 5 * ms, ms / 10, ms / 10, 20 * ms, 50 * ms}},
		{alike(4, 0.25), []time.Duration{ms, 5 * ms, 20 * ms, 50 * ms}},
	} {
		for _, elastic := range []bool{false, true} {
			t.Run(strings.ReplaceAll(fmt.Sprintf("%v of %v elastic %v", tt.requests, tt.kernels, elastic), " ", "_"), func(t *testing.T) {
				g := newSlicedGPU(t, 1)
				g.lag = ms
				for n, q := range tt.requests {
					limit := q
					if elastic {
						limit = 1
					}
					g.join(&program{inst: string(rune('a' + n)), slice: slice(100, q, limit), kernel: tt.kernels[n], blocks: uint64(1 + tt.kernels[n]/(ms/10))})
				}
				g.run(time.Second)
				for n, got := range g.shares(10 * time.Second) {
					if q := tt.requests[n]; got < q-0.01 || !elastic && got > q+0.02 {
						t.Errorf("client %d had %.4f of the GPU, request %.3f", n+1, got, q)
					}
				}
			})
		}
	}
}

// TestIntrospectiveRequestsHoldForAnyMixture: the same for any requests and kernels, where
// trials, which take up to 4% of the time, have room, and but for kernels that are under way
// at the end.
func TestIntrospectiveRequestsHoldForAnyMixture(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := drawBacklogged(rt, 0.9)
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		for n, q := range b.requests {
			kernel := max(b.kernels[n].Truncate(tick), tick)
			g.join(&program{inst: string(rune('a' + n)), slice: slice(100, q, max(q, b.limit)), kernel: kernel, blocks: uint64(1 + kernel/(ms/10))})
		}
		g.run(time.Second)
		for n, got := range g.shares(4 * time.Second) {
			off := 0.02 + (b.kernels[n]+slices.Max(b.kernels)).Seconds()/4
			if q := b.requests[n]; got < q-off || b.limit == 0 && got > q+off {
				rt.Fatalf("client %d of %+v had %.4f of the GPU", n+1, b, got)
			}
		}
	})
}

// TestIntrospectiveIssues: whatever comes and goes, what is issued lies between
// the bounds that it should, its sum fits the GPU, and nobody who wants to run
// has nothing.
func TestIntrospectiveIssues(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		requests := rapid.Float64Range(0.3, 3).Draw(rt, "requests")
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		for _, p := range drawPrograms(rt, requests, true) {
			g.join(p)
		}
		g.issued = func() {
			checkIssues(rt, g.s)
			checkReasons(rt, g.s)
		}
		for range 60 {
			if n := rapid.IntRange(0, len(g.programs)-1).Draw(rt, "who"); g.programs[n].kernels > 0 && !g.programs[n].gone {
				for range rapid.IntRange(1, 4).Draw(rt, "requests") {
					g.arrive(g.programs[n])
				}
			} else if len(g.programs) > 3 && rapid.IntRange(0, 20).Draw(rt, "dies") == 0 {
				g.leave(g.programs[n])
			}
			g.run(time.Duration(rapid.IntRange(1, 60).Draw(rt, "ms")) * ms)
		}
		g.run(500 * ms) // each is measured alone first: 20 ms, and what those before it take to drain
		for _, p := range g.programs {
			if !p.gone && p.kernels == 0 && p.done == 0 {
				rt.Fatalf("client %d of %+v never ran", p.id, p.slice)
			}
		}
	})
}

func checkIssues(t *rapid.T, s *introspective) {
	kept, promised := 0.0, 0.0
	squeezed := false
	for _, a := range s.instances {
		if !s.empty(a) {
			kept += a.reserved
			promised += a.request
		}
		squeezed = squeezed || a.phase == emergency
	}
	if kept > 1+shareEps {
		t.Fatalf("%.4f of the GPU are kept", kept)
	}
	for _, a := range s.instances {
		if a.busy == 0 {
			continue
		}
		if a.issued > a.limit+shareEps || a.issued <= 0 {
			t.Fatalf("instance %s is issued %.4f, limit %.4f", a.id, a.issued, a.limit)
		}
		if !squeezed && promised <= 1-s.params.floor && a.issued < a.request-shareEps {
			t.Fatalf("instance %s is issued %.4f in %v, request %.4f", a.id, a.issued, a.phase, a.request)
		}
	}
}

// TestIntrospectiveReplay: the same events give the same actions.
func TestIntrospectiveReplay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		g.lag = ms
		for _, p := range drawPrograms(rt, 1.5, true) {
			g.join(p)
		}
		for range 10 {
			for _, p := range g.programs {
				if p.kernels > 0 {
					g.arrive(p)
				}
			}
			g.run(70 * ms)
		}
		again := newIntrospective(Config{}, published, 0)
		for n, l := range g.log {
			if got := again.Step(l.at, l.events, nil); !reflect.DeepEqual(got, g.trace[n]) {
				rt.Fatalf("step %d at %v, %+v: %+v, first time %+v", n, l.at, l.events, got, g.trace[n])
			}
		}
	})
}
