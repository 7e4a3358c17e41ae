package token

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// rect is an instance's place in a plan of the window (x, w as fractions) and the SMs (y, h in percent).
type rect struct{ x, y, w, h float64 }

func (r rect) turns() []gpu.Turn { return []gpu.Turn{{From: r.x, To: min(1, r.x+r.w)}} }

// drawPacking divides a GPU into rectangles without a remainder, as a plan may.
func drawPacking(t *rapid.T, r rect, depth int) []rect {
	cut := 0
	if depth > 0 {
		cut = rapid.IntRange(0, 2).Draw(t, "cut")
	}
	switch {
	case cut == 1 && r.w > 0.2:
		w := float64(rapid.IntRange(10, int(r.w*100+0.5)-10).Draw(t, "width")) / 100
		return append(drawPacking(t, rect{r.x, r.y, w, r.h}, depth-1), drawPacking(t, rect{r.x + w, r.y, r.w - w, r.h}, depth-1)...)
	case cut == 2 && r.h > 12:
		h := float64(rapid.IntRange(6, int(r.h+0.5)-6).Draw(t, "height"))
		return append(drawPacking(t, rect{r.x, r.y, r.w, h}, depth-1), drawPacking(t, rect{r.x, r.y + h, r.w, r.h - h}, depth-1)...)
	}
	return []rect{r}
}

// worstShortfall runs one instance per rectangle, which never stops, and returns the largest shortfall
// from a request.
func worstShortfall(t testing.TB, window time.Duration, rects []rect, turns bool) (short float64) {
	w := newLeasedGPU(t, Config{Settings: Settings{Window: window}}, 1)
	w.lag = window / 1000
	var workers []*simClient
	for n, r := range rects {
		c := &simClient{
			id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(r.h, r.w, r.w),
			kernel: window / 100, loss: window / 500,
		}
		if turns {
			c.turns = r.turns()
		}
		workers = append(workers, w.add(c))
	}
	w.run(10 * window) // until the drain times are learned
	before := make([]time.Duration, len(workers))
	for n, c := range workers {
		before[n] = w.total(c)
	}
	w.run(60 * window)
	for n, c := range workers {
		got := float64(w.total(c)-before[n]) / float64(50*window)
		if got > rects[n].w+0.02 {
			t.Errorf("instance %d used %.4f of the GPU, want at most its limit %.4f + 0.02", n, got, rects[n].w)
		}
		short = max(short, rects[n].w-got)
	}
	return short
}

// TestTimetableGivesPlannedShares checks that on a GPU that a plan has filled, every instance that
// never stops receives its request minus the cost of hand-overs. Here a drain takes up to 1% of a
// window and its report another 0.2%, twice per window.
func TestTimetableGivesPlannedShares(t *testing.T) {
	for _, window := range []time.Duration{10 * ms, 100 * ms, time.Second} {
		t.Run(window.String(), func(t *testing.T) {
			greedy, planned := 0.0, 0.0
			rapid.Check(t, func(rt *rapid.T) {
				rects := drawPacking(rt, rect{0, 0, 1, 100}, 4)
				short := worstShortfall(t, window, rects, true)
				if short > 0.01 {
					rt.Errorf("an instance of %v is %.4f short of its request, want at most 0.01", rects, short)
				}
				planned, greedy = max(planned, short), max(greedy, worstShortfall(t, window, rects, false))
			})
			t.Logf("largest shortfall: %.4f, without turns %.4f", planned, greedy)
		})
	}
}

// TestOthersUseTurnOfIdleOwner checks that an idle owner of a planned turn costs other clients nothing,
// and that an owner that becomes active late in its turn gets its SMs when the client that uses them
// has drained.
func TestOthersUseTurnOfIdleOwner(t *testing.T) {
	half := func(first bool) []gpu.Turn {
		if first {
			return []gpu.Turn{{From: 0, To: 0.5}}
		}
		return []gpu.Turn{{From: 0.5, To: 1}}
	}
	w := newLeasedGPU(t, Config{}, 1)
	owner := &simClient{id: 1, instance: "a", slice: slice(100, 0.5, 0.5), turns: half(true), gap: time.Hour}
	w.step(AddInstance{Instance: "a", Slice: owner.slice, Turns: owner.turns})
	w.step(AddClient{Client: 1, Instance: "a"})
	w.clients[1] = owner
	busy := w.add(&simClient{id: 2, instance: "b", slice: slice(100, 0.5, 1), turns: half(false), kernel: ms})
	w.run(5 * time.Second)
	if busy.revoked != 0 || w.total(busy) != 5*time.Second {
		t.Errorf("beside an idle owner: got %d revocations (%q) and %v of GPU time, want none and 5s", busy.revoked, busy.reasons, w.total(busy))
	}
	for n := range 10 {
		w.run(time.Duration(5000+100*n+4*n)*ms + ms)
		owner.waitStart, owner.longest, owner.burst = w.now, 0, 2*ms
		w.step(Request{1})
		w.run(w.now + 20*ms)
		if owner.longest > ms || owner.lease != 0 {
			t.Errorf("owner active %v into its turn: waited %v and holds lease %d, want at most 1ms and no lease", w.now%(100*ms)-20*ms, owner.longest, owner.lease)
		}
	}
}

// TestClientWithoutTurnsOnFullGPU checks a client without turns on a GPU that is full of turns. It
// receives the remaining time, which is almost nothing, but does not starve, and costs the planned
// clients no more than the documented bound.
func TestClientWithoutTurnsOnFullGPU(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	var planned []*simClient
	for n, r := range []rect{{0, 0, 0.6, 100}, {0.6, 0, 0.4, 50}, {0.6, 50, 0.4, 50}} {
		planned = append(planned, w.add(&simClient{
			id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(r.h, r.w, r.w), turns: r.turns(), kernel: ms / 2,
		}))
	}
	other := w.add(&simClient{id: 9, instance: "z", slice: slice(24, 0.5, 1), kernel: ms / 2})
	w.run(20 * time.Second)
	if got := w.total(other).Seconds() / 20; got < 0.005 || got > 0.02 || other.longest > 1200*ms {
		t.Errorf("the client without turns used %.4f of the GPU and waited up to %v, want 0.005 to 0.02 and at most 1.2s", got, other.longest)
	}
	for _, c := range planned {
		if got := w.total(c).Seconds() / 20; got < c.slice.QuotaRequest-0.02 {
			t.Errorf("planned instance %s used %.4f of the GPU, want at least %.4f", c.instance, got, c.slice.QuotaRequest-0.02)
		}
	}
}

// rule is a simple twin of the rules for planned turns. It checks the scheduler after each step: it
// examines every client at every thousandth of a window, and keeps no reservations. Turns must not
// oversubscribe the GPU.
type rule struct {
	t *rapid.T
	s *multiToken
}

func (r rule) free() float64 {
	sum := r.s.smLimit
	for _, c := range r.s.clients {
		if c.holdsLease() {
			sum -= c.inst.slice.SMPct
		}
	}
	return sum
}

func (r rule) inTurn(i *instance, at time.Duration) bool {
	return i.hasTurn((at - r.s.start) % r.s.window)
}

// claims reports whether the client waits in a turn of which enough remains, while no other client of
// its instance holds SMs.
func (r rule) claims(c *client) bool {
	if c.state != Waiting || c.inst.guaranteed() < r.s.window/20 {
		return false
	}
	for _, o := range r.s.clients {
		if o.inst == c.inst && o.holdsLease() {
			return false
		}
	}
	for at := r.s.now; at <= r.s.now+r.s.window/20+c.drain; at += r.s.window / 1000 {
		if !r.inTurn(c.inst, at) {
			return false
		}
	}
	return true
}

// check verifies the state and the actions after a step.
func (r rule) check(actions []Action) {
	s := r.s
	s.recount() // counts as of now
	for _, c := range s.clients {
		if s.outOfPatience(c) || c.urgent {
			return // it ranks before turns
		}
	}
	claimed, running := 0.0, 0.0
	for _, c := range s.clients {
		if r.claims(c) {
			claimed += c.inst.slice.SMPct
			if c.inst.slice.SMPct <= r.free()+smEps {
				r.t.Fatalf("at %v: client %v waits in its turn with %v%% of the SMs free, want a lease: %s", s.now, c.id, r.free(), c.why.full())
			}
		}
		if c.state == Running {
			running += c.inst.slice.SMPct
		}
	}
	if claimed > 0 && running+claimed > s.smLimit+smEps {
		r.t.Fatalf("at %v: owners of turns claim %v%% of the SMs, and leases that were not revoked hold %v%%, want at most %v%% together", s.now, claimed, running, s.smLimit)
	}
	for _, a := range actions {
		if g, ok := a.(Grant); ok {
			at, _ := s.findClient(g.Client)
			r.lent(s.clients[at])
		}
	}
}

// lent checks a lease that was just granted: until its planned end, no client that waits now is short
// of SMs in its turn.
func (r rule) lent(c *client) {
	s := r.s
	for at := s.now; at < c.end; at += s.window / 1000 {
		if r.inTurn(c.inst, at) {
			continue
		}
		sum, holding := 0.0, map[*instance]bool{}
		for _, o := range s.clients {
			if o.state == Running && o.end > at {
				sum += o.inst.slice.SMPct
				holding[o.inst] = true
			}
		}
		for _, o := range s.clients {
			due := r.claims(o) || o.state == Waiting && !r.inTurn(o.inst, s.now) && o.inst.guaranteed() >= s.minLease(o.inst)
			if due && !holding[o.inst] && r.inTurn(o.inst, at) {
				sum += o.inst.slice.SMPct
				holding[o.inst] = true
			}
		}
		if sum > s.smLimit+smEps {
			r.t.Fatalf("at %v: client %v has a lease until %v, and turns at %v need %v%% of the SMs, want at most %v%%", s.now, c.id, c.end, at, sum, s.smLimit)
		}
	}
}

// TestTurnsRule runs clients that join and leave, on a full GPU with and without turns, and checks
// every step against rule.
func TestTurnsRule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		window := rapid.SampledFrom([]time.Duration{10 * ms, 100 * ms, time.Second}).Draw(rt, "window")
		w := newLeasedGPU(t, Config{Settings: Settings{Window: window}}, rapid.Uint64().Draw(rt, "seed"))
		w.checks = rule{rt, w.s}.check
		w.lag = window / 1000
		windowPercent := func(what string, most int) time.Duration {
			return window * time.Duration(rapid.IntRange(0, most).Draw(rt, what)) / 100
		}
		for n, r := range drawPacking(rt, rect{0, 0, 1, 100}, 3) {
			c := &simClient{
				id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(r.h, r.w, r.w), turns: r.turns(),
				kernel: windowPercent("kernel", 3), loss: window / 500, burst: windowPercent("burst", 150), gap: windowPercent("gap", 200),
			}
			if rapid.Bool().Draw(rt, "elastic") {
				c.slice.QuotaLimit = 1
			}
			if rapid.IntRange(0, 3).Draw(rt, "unplanned") == 0 {
				c.turns = nil
			}
			w.after(windowPercent("joins", 300), func() { w.add(c) })
		}
		w.run(20 * window)
	})
}
