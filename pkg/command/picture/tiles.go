package picture

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
)

// tile is a rectangle of a GPU. x and w are fractions of the window, y and h percentages of the SMs.
type tile struct{ x, y, w, h float64 }

// thin is the height below which a tile is omitted.
const thin = 1e-9

// tiles returns the rectangles of each instance on a GPU. In the model rect, the plan contains the rectangle.
// A timetable does not name SMs, so tiles chooses them: an instance keeps its SMs over consecutive entries of
// the timetable; otherwise it receives the lowest free SMs, in several pieces if necessary.
func tiles(g plan.GPU) map[string][]tile {
	out := map[string][]tile{}
	for _, in := range g.Instances {
		if in.X != nil && in.Y != nil {
			out[in.ID] = append(out[in.ID], tile{*in.X, *in.Y, in.QuotaRequest, in.SMPct})
		}
	}
	sm := map[string]float64{}
	for _, in := range g.Instances {
		sm[in.ID] = in.SMPct
	}
	running := map[string][]tile{}
	at := 0.0
	for _, entry := range g.Schedule {
		next := map[string][]tile{}
		for _, id := range entry.Instances {
			if pieces, runs := running[id]; runs {
				next[id] = pieces
				delete(running, id)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(running)) {
			out[id] = append(out[id], running[id]...)
		}
		for _, id := range entry.Instances {
			if next[id] == nil && sm[id] > 0 {
				next[id] = lowest(next, sm[id], at)
			}
		}
		at += entry.Duration
		for id := range next {
			for i := range next[id] {
				next[id][i].w = at - next[id][i].x
			}
		}
		running = next
	}
	for _, id := range slices.Sorted(maps.Keys(running)) {
		out[id] = append(out[id], running[id]...)
	}
	return out
}

// lowest returns tiles of the lowest free SMs that sum to want.
func lowest(running map[string][]tile, want, at float64) []tile {
	var busy []tile
	for _, pieces := range running {
		busy = append(busy, pieces...)
	}
	slices.SortFunc(busy, func(a, b tile) int { return cmp.Compare(a.y, b.y) })
	busy = append(busy, tile{y: 100})
	out := []tile{}
	y := 0.0
	for _, b := range busy {
		if free := min(want, b.y-y); free > thin {
			out = append(out, tile{x: at, y: y, h: free})
			want -= free
		}
		y = b.y + b.h
	}
	return out
}

// largest returns the index of the tile with the largest area.
func largest(tiles []tile) int {
	best := 0
	for i, t := range tiles {
		if t.w*t.h > tiles[best].w*tiles[best].h {
			best = i
		}
	}
	return best
}
