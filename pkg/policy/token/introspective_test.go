package token

import (
	"math"
	"slices"
	"testing"
	"time"
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
				g := newPlant(t, 1)
				g.lag = ms
				for n, c := range tt.clients {
					g.join(&prog{
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
func late(p *prog) (most time.Duration) {
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
	serve := func(with bool) (inference *prog, busy, idle float64, phases map[phase]int) {
		g := newPlant(t, 3)
		g.lag = ms / 2
		inference = g.join(&prog{inst: "inference", slice: slice(100, 0.3, 0.6), slo: 50 * ms, kernel: 100 * time.Microsecond, blocks: 50, kernels: 100})
		var training *prog
		if with {
			training = g.join(&prog{inst: "training", slice: slice(100, 0.4, 0.9), kernel: 400 * time.Microsecond, blocks: 640})
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
				phases[g.s.accounts[0].phase]++
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
