package token

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// drawWorkers draws clients, at most two per instance, whose instances' requests sum to at most the
// given number of windows.
func drawWorkers(t *rapid.T, w *leasedGPU, requests float64) []*simClient {
	n := rapid.IntRange(1, 6).Draw(t, "instances")
	var out []*simClient
	for i := range n {
		request := min(requests/float64(n), 1) * rapid.Float64Range(0.3, 1).Draw(t, "request")
		limit := request
		if rapid.Bool().Draw(t, "elastic") {
			limit = rapid.Float64Range(request, 1).Draw(t, "limit")
		}
		sl := slice(rapid.SampledFrom([]float64{6, 12, 24, 40, 50, 60, 100}).Draw(t, "sm"), request, limit)
		for range rapid.IntRange(1, 2).Draw(t, "processes") {
			out = append(out, &simClient{
				id: ClientID(len(out) + 1), instance: string(rune('a' + i)), slice: sl,
				kernel:       time.Duration(rapid.IntRange(0, 4).Draw(t, "kernel")) * ms,
				loss:         time.Duration(rapid.IntRange(0, 300).Draw(t, "loss")) * time.Microsecond,
				announceLead: time.Duration(rapid.IntRange(0, 300).Draw(t, "tells")) * time.Microsecond,
			})
		}
	}
	w.lag = time.Duration(rapid.IntRange(0, 1000).Draw(t, "lag")) * time.Microsecond
	return out
}

// drawTurns gives random turns to some instances. It reports whether an instance has turns.
func drawTurns(t *rapid.T, workers []*simClient) (any bool) {
	if rapid.Bool().Draw(t, "no turns") {
		return false
	}
	turns := map[string][]gpu.Turn{}
	for _, c := range workers {
		if _, drawn := turns[c.instance]; !drawn {
			turns[c.instance] = nil
			ends := rapid.SliceOfNDistinct(rapid.IntRange(0, 20), 0, 6, rapid.ID).Draw(t, "turns")
			slices.Sort(ends)
			for ; len(ends) > 1; ends = ends[2:] {
				turns[c.instance] = append(turns[c.instance], gpu.Turn{From: float64(ends[0]) / 20, To: float64(ends[1]) / 20})
			}
		}
		c.turns = turns[c.instance]
		any = any || len(c.turns) > 0
	}
	return any
}

// TestSharesHold checks that every instance that never stops receives at least its request and at
// most its limit, if the requests sum to less than the GPU.
func TestSharesHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newLeasedGPU(t, Config{}, rapid.Uint64().Draw(rt, "seed"))
		workers := drawWorkers(rt, w, 0.85)
		for _, c := range workers {
			w.add(c)
		}
		w.run(6 * time.Second)
		sums, twice := map[string]float64{}, map[string]float64{}
		for _, c := range workers {
			sums[c.instance] += w.total(c).Seconds() / 6
			twice[c.instance] += c.measuredTwice.Seconds() / 6
		}
		for _, c := range workers {
			got := sums[c.instance]
			if got < c.slice.QuotaRequest-0.01-twice[c.instance] || got > c.slice.QuotaLimit+0.02 {
				rt.Fatalf("instance %s used %.4f of the GPU, want at least %.4f (request) and at most %.4f (limit)", c.instance, got,
					c.slice.QuotaRequest-0.01-twice[c.instance], c.slice.QuotaLimit+0.02)
			}
		}
	})
}

// TestNoStarvation checks that a waiting client gets a lease within a bounded number of windows,
// however overcommitted the GPU is and while clients join and leave, and that the SM limit holds at
// every step (leasedGPU.check).
func TestNoStarvation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.SampledFrom([]float64{30, 80, 100}).Draw(rt, "sm limit")
		w := newLeasedGPU(t, Config{Settings: Settings{SMLimit: limit}}, rapid.Uint64().Draw(rt, "seed"))
		w.batched = rapid.Bool().Draw(rt, "batched")
		w.checks = func([]Action) {
			if len(w.log)%16 == 0 {
				checkReasons(rt, w.s)
			}
		}
		workers := drawWorkers(rt, w, rapid.Float64Range(0.5, 6).Draw(rt, "requests"))
		for _, c := range workers {
			c.burst = time.Duration(rapid.SampledFrom([]int{0, 3, 30, 300}).Draw(rt, "burst")) * ms
			c.gap = time.Duration(rapid.IntRange(0, 50).Draw(rt, "gap")) * ms
			w.after(time.Duration(rapid.IntRange(0, 500).Draw(rt, "joins"))*ms, func() { w.add(c) })
			if rapid.Bool().Draw(rt, "dies") {
				w.after(time.Duration(rapid.IntRange(500, 3000).Draw(rt, "leaves"))*ms, func() { w.remove(c) })
			}
		}
		windows := 3 // two until a client is aged, one for debt
		if drawTurns(rt, workers) {
			windows = patience + 1
		}
		w.run(4 * time.Second)
		// In addition, a window and a drain for each of the other clients.
		bound := time.Duration(len(workers)+windows) * (100*ms + 6*ms)
		for _, c := range workers {
			waited := c.longest
			if c.lease == 0 && !c.removed {
				waited = max(waited, w.now-c.waitStart)
			}
			if waited > bound {
				rt.Fatalf("client %d of %+v waited %v, want at most %v", c.id, c.slice, waited, bound)
			}
		}
	})
}

// checkReasons checks that every client has a documented reason.
func checkReasons(t *rapid.T, s Policy) {
	for _, c := range s.Snapshot().Clients {
		if c.State == Waiting && c.Reason.Code == justRequested || c.State != Idle && Reasons.Check(c.Reason) != nil {
			t.Fatalf("reason of client %v, which is %v: got %q, want a documented one that gives the cause", c.Client, c.State, c.Reason)
		}
	}
}

// TestSameEventsGiveSameActions checks that the policy is deterministic, so that a record can be
// replayed.
func TestSameEventsGiveSameActions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newLeasedGPU(t, Config{FirstLease: 1<<32 - 3}, rapid.Uint64().Draw(rt, "seed"))
		w.batched = rapid.Bool().Draw(rt, "batched")
		workers := drawWorkers(rt, w, 2)
		drawTurns(rt, workers)
		for _, c := range workers {
			c.burst = 20 * ms
			w.add(c)
		}
		w.after(300*ms, func() { w.step(Configure{Settings{Window: 50 * ms, SMLimit: 100}}) })
		w.after(500*ms, func() { w.step(RemoveInstance{"zz"}) })
		w.run(time.Second)
		again := newMultiToken(Config{FirstLease: 1<<32 - 3}, 0)
		for n, l := range w.log {
			if got := again.Step(l.at, l.events, nil); !reflect.DeepEqual(got, w.trace[n]) {
				rt.Fatalf("step %d at %v, events %+v: got actions %+v, want %+v", n, l.at, l.events, got, w.trace[n])
			}
		}
	})
}
