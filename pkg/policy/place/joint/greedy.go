package joint

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
)

// pick is the option of a function that is worth most for its size, of those
// that fit; dens 0 is none.
type pick struct {
	opt  int
	dens float64
}

// greedy fills up one GPU.
type greedy struct {
	s           *solver
	h           *host
	price, left []float64
	picks       []pick
	failed      [][2]int64 // sides for which there was no spot
}

// fillSingles adds what is worth most for its size, one by one, as long as
// there is a spot for it. What is picked for a function stays its best for as
// long as it fits, since what is free only shrinks.
func (s *solver) fillSingles(h *host, price, left []float64) {
	g := greedy{s: s, h: h, price: price, left: left, picks: s.picks[:0]}
	for f := range left {
		g.picks = append(g.picks, g.pick(f))
	}
	if s.picks = g.picks; len(left) == 0 {
		return
	}
	for {
		f := 0
		for i, p := range g.picks {
			if p.dens > g.picks[f].dens {
				f = i
			}
		}
		if g.picks[f].dens <= 0 {
			return
		}
		it := Item{Func: f, Option: g.picks[f].opt}
		s.work += int64(1 + len(h.items) + len(left)/8)
		in := g.space(f)
		if o := &s.p.Funcs[f].Options[it.Option]; in.fits(o) {
			if s.spot(h, &it) {
				s.serve(h, it, left)
			} else {
				g.failed = append(g.failed, [2]int64{o.W, o.H})
			}
		}
		g.picks[f] = g.pick(f)
	}
}

// pick chooses for one function.
func (g *greedy) pick(f int) (best pick) {
	if g.price[f] <= 0 || g.left[f] <= 0 {
		return best
	}
	s, in := g.s, g.space(f)
	all := s.cutters[g.h.class].choices[f]
	s.work += int64(2 * len(all))
	for _, ch := range all {
		o := &s.p.Funcs[f].Options[ch.opt]
		size := float64(o.W) / One * (float64(o.H) / One)
		if in.limited {
			size += s.heavy * (float64(o.Mem+in.keeper)/float64(in.room) - size)
		}
		if dens := g.price[f] * min(o.Rate, g.left[f]) / max(size, nothing); dens > best.dens && in.fits(o) {
			best = pick{ch.opt, dens}
		}
	}
	return best
}

// nothing keeps what takes nothing from being worth infinitely much.
const nothing = 1e-9

// space is what a GPU has for one function.
type space struct {
	limited      bool // memory counts
	room, spare  int64
	keeper, area int64
	free         []maxrect.Rect // under rectangles
	failed       [][2]int64
}

func (g *greedy) space(f int) space {
	h, room := g.h, g.s.p.Classes[g.h.class].Room
	in := space{room: room, keeper: h.keeper(g.s.p, f), area: h.area(), failed: g.failed}
	in.limited = room != Unlimited
	in.spare = room - h.used - in.keeper
	if h.space != nil {
		in.free = h.space.Free()
	}
	return in
}

// fits says whether there is memory for the option, and may be a spot.
func (in *space) fits(o *Option) bool {
	if in.limited && o.Mem > in.spare || o.W*(o.H/scale) > in.area {
		return false
	}
	if in.free != nil {
		return slices.ContainsFunc(in.free, func(r maxrect.Rect) bool { return o.W <= r.W && o.H <= r.H })
	}
	return !slices.ContainsFunc(in.failed, func(side [2]int64) bool { return o.W >= side[0] && o.H >= side[1] })
}
