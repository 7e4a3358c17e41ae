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

// TestIntrospectiveShares runs saturating best-effort clients with very different kernels and
// compares each client's share of the GPU with the expected share.
func TestIntrospectiveShares(t *testing.T) {
	type clientSpec struct {
		sm, request, limit float64
		kernel             time.Duration
		blocks             uint64
		host               time.Duration
		want               float64
	}
	for _, tt := range []struct {
		name    string
		within  float64
		clients []clientSpec
	}{
		{"alone to its limit", 0.01, []clientSpec{{100, 0.3, 0.8, 100 * time.Microsecond, 80, 0, 0.8}}},
		{"alone, long kernels", 0.02, []clientSpec{{100, 0.3, 0.8, 10 * ms, 1, 0, 0.8}}},
		{"alone, a tenth", 0.01, []clientSpec{{100, 0.1, 0.1, 100 * time.Microsecond, 80, 0, 0.1}}},
		{"two", 0.01, []clientSpec{{100, 0.3, 0.8, 100 * time.Microsecond, 80, 0, 0.375}, {100, 0.5, 0.8, 200 * time.Microsecond, 1000, 0, 0.625}}},
		{"two, one of long kernels", 0.02, []clientSpec{{100, 0.3, 0.8, 5 * ms, 7, 0, 0.375}, {100, 0.5, 0.8, 100 * time.Microsecond, 1000, 0, 0.625}}},
		{"ten to ninety", 0.01, []clientSpec{{100, 0.1, 0.1, 100 * time.Microsecond, 3, 0, 0.1}, {100, 0.9, 0.9, 200 * time.Microsecond, 1000, 0, 0.9}}},
		{"overcommitted", 0.02, []clientSpec{{100, 0.8, 1, 100 * time.Microsecond, 3, 0, 0.5}, {100, 0.8, 1, 200 * time.Microsecond, 9, 0, 0.5}}},
		// The GPU of this test ignores SM shares, so an instance with half of the SMs uses the
		// whole GPU when it runs alone. Each of the two gets the share that the other leaves.
		{"loose, two on half of the SMs", 0.01, []clientSpec{{50, 0.4, 0.4, 100 * time.Microsecond, 3, 0, 0.2}, {50, 1, 1, 200 * time.Microsecond, 9, 0, 0.5}}},
		{"one by one", 0.02, []clientSpec{{100, 0.4, 0.8, 1 * ms, 3, 50 * time.Microsecond, 0.8 * 0.95}}},
	} {
		for _, returns := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				g := newSlicedGPU(t, 1)
				g.lag = ms
				for n, c := range tt.clients {
					g.add(&program{
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

// recoveredLatency returns the longest latency among the fourth and later requests of bursts of ten.
func recoveredLatency(p *program) (most time.Duration) {
	for n, l := range p.latency {
		if n%10 >= 3 {
			most = max(most, l)
		}
	}
	return most
}

// TestTrainingYieldsToBurstsOfInference runs a training next to an inference whose requests arrive in
// bursts. Between bursts, the training has its limit. In a burst, the latency of the inference stays
// close to its latency alone, and the training continues with a smaller share.
func TestTrainingYieldsToBurstsOfInference(t *testing.T) {
	const burst, lull = 300 * ms, 700 * ms
	serve := func(with bool) (inference *program, busy, idle float64, phases map[phase]int) {
		g := newSlicedGPU(t, 3)
		g.lag = ms / 2
		inference = g.add(&program{inst: "inference", slice: slice(100, 0.3, 0.6), slo: 50 * ms, kernel: 100 * time.Microsecond, blocks: 50, kernels: 100})
		var training *program
		if with {
			training = g.add(&program{inst: "training", slice: slice(100, 0.4, 0.9), kernel: 400 * time.Microsecond, blocks: 640})
		}
		phases = map[phase]int{}
		g.run(200 * ms)
		had := func() time.Duration {
			if training == nil {
				return 0
			}
			return training.gpuTime
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
	got := recoveredLatency(beside)
	t.Logf("p95 %v alone, %v beside, %v once it has recovered; training %.3f in bursts, %.3f else; %v",
		alone.p95(), beside.p95(), got, busy, idle, phases)
	if math.Abs(idle-0.9) > 0.02 {
		t.Errorf("between bursts, the training used %.3f of the GPU, want its limit 0.9 ± 0.02", idle)
	}
	if busy > 0.4 || busy < 0.1 {
		t.Errorf("in bursts, the training used %.3f of the GPU, want 0.1 to 0.4 (its request)", busy)
	}
	// A request takes 10 ms alone, and 17 ms at the limit of 0.6.
	if got > 20*ms {
		t.Errorf("the fourth or a later request of a burst took %v, want at most 20ms", got)
	}
	if phases[emergency] == 0 || phases[contention] == 0 {
		t.Errorf("phases at the arrival of requests: got %v, want some of emergency and of contention", phases)
	}
}

// TestReservedLeaseNumbersAreSkipped checks that policies skip the lease numbers that mean a closed
// gate or no lease to the preload library.
func TestReservedLeaseNumbersAreSkipped(t *testing.T) {
	for _, name := range Names() {
		s, err := New(name, Config{FirstLease: math.MaxUint32 - 1}, 0)
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
			t.Errorf("%s: got leases %v, want %v", name, leases, want)
		}
	}
}

// TestIntrospectiveStatus checks the status of a running client.
func TestIntrospectiveStatus(t *testing.T) {
	g := newSlicedGPU(t, 1)
	p := g.add(&program{inst: "a", slice: slice(50, 0.4, 0.8), kernel: ms, blocks: 7})
	g.run(350 * ms)
	got := g.s.Snapshot().Clients[0]
	if got.Client != p.id || got.Instance != "a" || got.State != Running || got.Budget == 0 || got.Reason.IsZero() {
		t.Errorf("got status %+v, want client %d of instance a running, with a budget and a reason", got, p.id)
	}
	// Alone it could have the whole GPU; its limit is 0.8 of 50%.
	if got.Used < 0.3 || got.Used > 0.5 {
		t.Errorf("used %v of the last window, want at least 0.3 and at most 0.5", got.Used)
	}
	s := g.s.Snapshot()
	if a := s.Instance("a"); s.SMRunning != 50 || a.Phase != "NONE" || a.Charged == 0 || a.Debt > 20*ms {
		t.Errorf("got %v%% of SMs running and instance %+v, want 50%%, phase NONE, charged time and at most 20ms of debt", s.SMRunning, a)
	}
	if b := s.Instance("b"); b != (InstanceStatus{Instance: "b"}) {
		t.Errorf("status of an unknown instance: got %+v, want only its name", b)
	}
}

// drawPrograms draws programs whose requests sum to at most the given number of GPUs. If sensitive
// is true, some are SLO-sensitive and serve requests.
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

// TestIntrospectiveSharesHold checks that every best-effort instance that never stops receives at
// least its request and at most its limit, if the requests sum to less than the GPU.
func TestIntrospectiveSharesHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		g.lag = time.Duration(rapid.IntRange(0, 2000).Draw(rt, "lag")) * time.Microsecond
		for _, p := range drawPrograms(rt, 0.9, false) {
			g.add(p)
		}
		g.run(time.Second)
		sums := map[string]float64{}
		for n, share := range g.shares(4 * time.Second) {
			sums[g.programs[n].inst] += share
		}
		for _, p := range g.programs {
			if got := sums[p.inst]; got < p.slice.QuotaRequest-0.02 || got > p.slice.QuotaLimit+0.02 {
				rt.Fatalf("instance %s used %.4f of the GPU, want at least %.4f (request) and at most %.4f (limit)", p.inst, got, p.slice.QuotaRequest-0.02, p.slice.QuotaLimit+0.02)
			}
		}
	})
}

// TestIntrospectiveRequestsHold checks that every best-effort instance that never stops receives its
// request, also with long kernels.
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
		{equal(8, 0.1), []time.Duration{50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 5 * ms}},
		{equal(8, 0.1), []time.Duration{ms, ms, 5 * ms, 5 * ms, ms / 10, ms / 10, 20 * ms, 50 * ms}},
		{equal(4, 0.25), []time.Duration{ms, 5 * ms, 20 * ms, 50 * ms}},
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
					g.add(&program{inst: string(rune('a' + n)), slice: slice(100, q, limit), kernel: tt.kernels[n], blocks: uint64(1 + tt.kernels[n]/(ms/10))})
				}
				g.run(time.Second)
				for n, got := range g.shares(10 * time.Second) {
					if q := tt.requests[n]; got < q-0.01 || !elastic && got > q+0.02 {
						t.Errorf("client %d used %.4f of the GPU, want its request %.3f, less 0.01 at most (elastic: %v)", n+1, got, q, elastic)
					}
				}
			})
		}
	}
}

// TestIntrospectiveRequestsHoldForAnyMixture checks the same for random requests and kernels. The
// requests leave room for trials, which take up to 4% of the time. The tolerance includes kernels
// that run at the end of the measurement.
func TestIntrospectiveRequestsHoldForAnyMixture(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := drawBacklogged(rt, 0.9)
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		for n, q := range b.requests {
			kernel := max(b.kernels[n].Truncate(tick), tick)
			g.add(&program{inst: string(rune('a' + n)), slice: slice(100, q, max(q, b.limit)), kernel: kernel, blocks: uint64(1 + kernel/(ms/10))})
		}
		g.run(time.Second)
		for n, got := range g.shares(4 * time.Second) {
			off := 0.02 + (b.kernels[n]+slices.Max(b.kernels)).Seconds()/4
			if q := b.requests[n]; got < q-off || b.limit == 0 && got > q+off {
				rt.Fatalf("client %d of %+v used %.4f of the GPU, want its request %.4f within %.4f (beyond it only with a limit)", n+1, b, got, q, off)
			}
		}
	})
}

// TestIntrospectiveIssues checks, while programs arrive and die, that issued shares lie within their
// bounds, that reserved shares fit the GPU, and that every active instance is issued a share.
func TestIntrospectiveIssues(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		requests := rapid.Float64Range(0.3, 3).Draw(rt, "requests")
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		for _, p := range drawPrograms(rt, requests, true) {
			g.add(p)
		}
		g.issued = func() {
			checkIssues(rt, g.s)
			checkReasons(rt, g.s)
		}
		for range 60 {
			if n := rapid.IntRange(0, len(g.programs)-1).Draw(rt, "who"); g.programs[n].kernels > 0 && !g.programs[n].removed {
				for range rapid.IntRange(1, 4).Draw(rt, "requests") {
					g.arrive(g.programs[n])
				}
			} else if len(g.programs) > 3 && rapid.IntRange(0, 20).Draw(rt, "dies") == 0 {
				g.remove(g.programs[n])
			}
			g.run(time.Duration(rapid.IntRange(1, 60).Draw(rt, "ms")) * ms)
		}
		g.run(500 * ms) // each has its trial first: 20 ms, plus the drains of earlier trials
		for _, p := range g.programs {
			if !p.removed && p.kernels == 0 && p.gpuTime == 0 {
				rt.Fatalf("client %d of %+v has no GPU time, want some", p.id, p.slice)
			}
		}
	})
}

func checkIssues(t *rapid.T, s *introspective) {
	reserved, promised := 0.0, 0.0
	squeezed := false
	for _, a := range s.instances {
		if !s.empty(a) {
			reserved += a.reserved
			promised += a.request
		}
		squeezed = squeezed || a.phase == emergency
	}
	if reserved > 1+shareEps {
		t.Fatalf("the reserved shares sum to %.4f of the GPU, want at most 1", reserved)
	}
	for _, a := range s.instances {
		if a.activeClients == 0 {
			continue
		}
		if a.issued > a.limit+shareEps || a.issued <= 0 {
			t.Fatalf("instance %s is issued %.4f, want more than 0 and at most its limit %.4f", a.id, a.issued, a.limit)
		}
		if !squeezed && promised <= 1-s.params.floor && a.issued < a.request-shareEps {
			t.Fatalf("instance %s is issued %.4f in phase %v, want at least its request %.4f", a.id, a.issued, a.phase, a.request)
		}
	}
}

// TestIntrospectiveReplay checks that the same events lead to the same actions.
func TestIntrospectiveReplay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		g.lag = ms
		for _, p := range drawPrograms(rt, 1.5, true) {
			g.add(p)
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
				rt.Fatalf("step %d at %v, events %+v: got actions %+v, want %+v", n, l.at, l.events, got, g.trace[n])
			}
		}
	})
}
