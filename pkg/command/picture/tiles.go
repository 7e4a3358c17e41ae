package picture

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
)

// tile is a rectangle of a GPU: a part of the window, a percentage of the SMs.
type tile struct{ x, y, w, h float64 }

// thin is what is too small to be drawn.
const thin = 1e-9

// tiles are what each instance has of a GPU. Under the model rect that is its
// rectangle. A timetable gives no particular SMs, so they are chosen: an
// instance keeps its SMs while its turns meet, and takes the lowest free ones
// when it begins, in pieces if need be.
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
		for _, id := range sorted(running) {
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
	for _, id := range sorted(running) {
		out[id] = append(out[id], running[id]...)
	}
	return out
}

func sorted(of map[string][]tile) []string {
	var ids []string
	for id := range of {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// lowest are the lowest SMs that nobody runs on, as many as are wanted.
func lowest(running map[string][]tile, want, at float64) []tile {
	var busy []tile
	for _, pieces := range running {
		busy = append(busy, pieces...)
	}
	slices.SortFunc(busy, func(a, b tile) int {
		if a.y < b.y {
			return -1
		}
		return 1
	})
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

// largest is the number of the tile with the most area.
func largest(of []tile) int {
	best := 0
	for i, t := range of {
		if t.w*t.h > of[best].w*of[best].h {
			best = i
		}
	}
	return best
}
