package token

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// rule says in the dumbest way what turns promise, and holds it against the
// scheduler after each step: it looks at every client and every thousandth of a
// window, and keeps no reservations. Turns must not oversubscribe the GPU.
type rule struct {
	t *rapid.T
	s *Scheduler
}

func (r rule) free() float64 {
	sum := r.s.smLimit
	for _, c := range r.s.clients {
		if c.holds() {
			sum -= c.inst.slice.SMPct
		}
	}
	return sum
}

func (r rule) inTurn(i *instance, at time.Duration) bool {
	return i.hasTurn((at - r.s.start) % r.s.window)
}

// claims says whether the client waits in a turn of which enough is left, and
// nobody else of its instance has SMs.
func (r rule) claims(c *client) bool {
	if c.state != Waiting || c.inst.guaranteed() < r.s.window/20 {
		return false
	}
	for _, o := range r.s.clients {
		if o.inst == c.inst && o.holds() {
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

// check looks at what a step has done.
func (r rule) check(actions []Action) {
	s := r.s
	s.tally() // as of now
	for _, c := range s.clients {
		if s.pressing(c) || c.urgent {
			return // it goes before turns
		}
	}
	claimed, running := 0.0, 0.0
	for _, c := range s.clients {
		if r.claims(c) {
			claimed += c.inst.slice.SMPct
			if c.inst.slice.SMPct <= r.free()+smEps {
				r.t.Fatalf("at %v: client %v waits in its turn, and %v%% are free: %s", s.now, c.id, r.free(), c.why())
			}
		}
		if c.state == Running {
			running += c.inst.slice.SMPct
		}
	}
	if claimed > 0 && running+claimed > s.smLimit+smEps {
		r.t.Fatalf("at %v: %v%% are claimed, and %v%% are not asked back", s.now, claimed, running)
	}
	for _, a := range actions {
		if g, ok := a.(Grant); ok {
			at, _ := s.findClient(g.Client)
			r.lent(s.clients[at])
		}
	}
}

// lent looks at a lease that was just granted: up to its planned end nobody
// whose turn it then is, and who waits for it now, is short of SMs.
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
			due := r.claims(o) || o.state == Waiting && !r.inTurn(o.inst, s.now) && o.inst.guaranteed() >= s.worthwhile(o.inst)
			if due && !holding[o.inst] && r.inTurn(o.inst, at) {
				sum += o.inst.slice.SMPct
				holding[o.inst] = true
			}
		}
		if sum > s.smLimit+smEps {
			r.t.Fatalf("at %v: client %v has a lease to %v, but %v%% are due at %v", s.now, c.id, c.end, sum, at)
		}
	}
}

// TestTurnsRule runs clients that come and go, with turns of a packed GPU and
// without, and holds every step against the rule.
func TestTurnsRule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		window := rapid.SampledFrom([]time.Duration{10 * ms, 100 * ms, time.Second}).Draw(rt, "window")
		w := newWorld(t, Config{Window: window}, rapid.Uint64().Draw(rt, "seed"))
		w.checks = rule{rt, w.s}.check
		w.lag = window / 1000
		part := func(what string, most int) time.Duration {
			return window * time.Duration(rapid.IntRange(0, most).Draw(rt, what)) / 100
		}
		for n, r := range drawPacking(rt, rect{0, 0, 1, 100}, 3) {
			c := &worker{
				id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(r.h, r.w, r.w), turns: r.turns(),
				kernel: part("kernel", 3), loss: window / 500, burst: part("burst", 150), gap: part("gap", 200),
			}
			if rapid.Bool().Draw(rt, "elastic") {
				c.slice.QuotaLimit = 1
			}
			if rapid.IntRange(0, 3).Draw(rt, "unplanned") == 0 {
				c.turns = nil
			}
			w.after(part("joins", 300), func() { w.join(c) })
		}
		w.run(20 * window)
	})
}
