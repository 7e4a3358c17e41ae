package token

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawProgs draws programs of which the requests sum to so much; some are
// SLO-sensitive and serve requests if any may be.
func drawProgs(t *rapid.T, requests float64, sensitive bool) []*prog {
	n := rapid.IntRange(1, 5).Draw(t, "instances")
	var out []*prog
	for i := range n {
		request := min(requests/float64(n), 1) * rapid.Float64Range(0.4, 1).Draw(t, "request")
		limit := rapid.Float64Range(request, 1).Draw(t, "limit")
		p := prog{
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
		g := newPlant(t, rapid.Uint64().Draw(rt, "seed"))
		g.lag = time.Duration(rapid.IntRange(0, 2000).Draw(rt, "lag")) * time.Microsecond
		for _, p := range drawProgs(rt, 0.9, false) {
			g.join(p)
		}
		g.run(time.Second)
		sums := map[string]float64{}
		for n, share := range g.shares(4 * time.Second) {
			sums[g.progs[n].inst] += share
		}
		for _, p := range g.progs {
			if got := sums[p.inst]; got < p.slice.QuotaRequest-0.02 || got > p.slice.QuotaLimit+0.02 {
				rt.Fatalf("instance %s of %+v had %.4f", p.inst, p.slice, got)
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
		g := newPlant(t, rapid.Uint64().Draw(rt, "seed"))
		for _, p := range drawProgs(rt, requests, true) {
			g.join(p)
		}
		g.issued = func() { checkIssues(rt, g.s) }
		for range 60 {
			if n := rapid.IntRange(0, len(g.progs)-1).Draw(rt, "who"); g.progs[n].kernels > 0 && !g.progs[n].gone {
				for range rapid.IntRange(1, 4).Draw(rt, "requests") {
					g.arrive(g.progs[n])
				}
			} else if len(g.progs) > 3 && rapid.IntRange(0, 20).Draw(rt, "dies") == 0 {
				g.leave(g.progs[n])
			}
			g.run(time.Duration(rapid.IntRange(1, 60).Draw(rt, "ms")) * ms)
		}
		g.run(500 * ms) // each is measured alone first: 20 ms, and what those before it take to drain
		for _, p := range g.progs {
			if !p.gone && p.kernels == 0 && p.done == 0 {
				rt.Fatalf("client %d of %+v never ran", p.id, p.slice)
			}
		}
	})
}

func checkIssues(t *rapid.T, s *Introspective) {
	kept, promised := 0.0, 0.0
	squeezed := false
	for _, a := range s.accounts {
		if !s.empty(a) {
			kept += a.kept
			promised += a.request
		}
		squeezed = squeezed || a.phase == emergency
	}
	if kept > 1+shareEps {
		t.Fatalf("%.4f of the GPU are kept", kept)
	}
	for _, a := range s.accounts {
		if a.busy == 0 {
			continue
		}
		if a.issue > a.limit+shareEps || a.issue <= 0 {
			t.Fatalf("instance %s is issued %.4f, limit %.4f", a.id, a.issue, a.limit)
		}
		if !squeezed && promised <= 1-s.params.Floor && a.issue < a.request-shareEps {
			t.Fatalf("instance %s is issued %.4f in %v, request %.4f", a.id, a.issue, a.phase, a.request)
		}
	}
}

// TestIntrospectiveReplay: the same events give the same actions.
func TestIntrospectiveReplay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newPlant(t, rapid.Uint64().Draw(rt, "seed"))
		g.lag = ms
		for _, p := range drawProgs(rt, 1.5, true) {
			g.join(p)
		}
		for range 10 {
			for _, p := range g.progs {
				if p.kernels > 0 {
					g.arrive(p)
				}
			}
			g.run(70 * ms)
		}
		again := NewIntrospective(Config{}, Published, 0)
		for n, l := range g.log {
			if got := again.Step(l.at, l.events, nil); !reflect.DeepEqual(got, g.trace[n]) {
				rt.Fatalf("step %d at %v, %+v: %+v, first time %+v", n, l.at, l.events, got, g.trace[n])
			}
		}
	})
}
