package place

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// The twin divides a GPU into cells, of a fifth of the window and a tenth of the SMs.
const cellColumns, cellRows = 5, 10

// cells is a GPU of the twin. It is true where an instance runs.
type cells [cellColumns][cellRows]bool

// block is a rectangle of cells.
type block struct{ x, y, w, h int }

func (b block) area() int { return b.w * b.h }

// free reports whether all cells of the block are free.
func (c *cells) free(b block) bool {
	for x := b.x; x < b.x+b.w; x++ {
		for y := b.y; y < b.y+b.h; y++ {
			if x < 0 || y < 0 || x >= cellColumns || y >= cellRows || c[x][y] {
				return false
			}
		}
	}
	return true
}

// maximal reports whether the block is free, and not if it is longer by a cell on any side.
func (c *cells) maximal(b block) bool {
	return c.free(b) && !c.free(block{b.x - 1, b.y, b.w + 1, b.h}) && !c.free(block{b.x, b.y - 1, b.w, b.h + 1}) &&
		!c.free(block{b.x, b.y, b.w + 1, b.h}) && !c.free(block{b.x, b.y, b.w, b.h + 1})
}

// smallest returns the smallest maximal block that holds w × h cells: the lowest, then the leftmost, then the
// narrowest of several. It reports whether there is one.
func (c *cells) smallest(w, h int) (best block, found bool) {
	for y := range cellRows {
		for x := range cellColumns {
			for width := w; x+width <= cellColumns; width++ {
				for height := h; y+height <= cellRows; height++ {
					b := block{x, y, width, height}
					if c.maximal(b) && (!found || b.area() < best.area()) {
						best, found = b, true
					}
				}
			}
		}
	}
	return best, found
}

// slowFast is a simple twin of Fast for instances of w × h cells, in this order: Algorithm 2 of the
// FaST-GShare paper on cells. It returns the GPU and the corner of each instance.
func slowFast(instances []block) (placed []string) {
	var gpus []*cells
	for _, in := range instances {
		best, at := block{w: cellColumns + 1, h: cellRows + 1}, -1
		for i, g := range gpus {
			if b, found := g.smallest(in.w, in.h); found && b.area() < best.area() {
				best, at = b, i
			}
		}
		if at < 0 {
			at, best = len(gpus), block{}
			gpus = append(gpus, &cells{})
		}
		for x := range in.w {
			for y := range in.h {
				gpus[at][best.x+x][best.y+y] = true
			}
		}
		placed = append(placed, fmt.Sprintf("GPU %d at %d, %d", at, best.x, best.y))
	}
	return placed
}

// TestFastMatchesTwin compares the plans of Fast with slowFast's, for functions with one configuration each.
func TestFastMatchesTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type item struct {
			id string
			block
		}
		var in Input
		var items []item
		for i := range rapid.IntRange(1, 5).Draw(t, "functions") {
			name := string(rune('a' + i))
			b := block{w: rapid.IntRange(1, cellColumns).Draw(t, "quota"), h: rapid.IntRange(1, cellRows).Draw(t, "sm")}
			count := rapid.IntRange(1, 8).Draw(t, "instances")
			in.Profile = append(in.Profile, profile.Row{Function: name, Config: profile.Config{SMPct: 10 * float64(b.h), Quota: 0.2 * float64(b.w), Batch: 1}, ThroughputRPS: 10, P95MS: 10})
			in.Demand = append(in.Demand, plan.Demand{Function: name, RPS: 10 * float64(count)})
			for n := range count {
				items = append(items, item{fmt.Sprintf("%s-%d", name, n), b})
			}
		}
		slices.SortStableFunc(items, func(a, b item) int { return b.area() - a.area() })
		p, err := Fast(in, Options{TieBreak: LargerQuota, Order: Largest})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for g, gpu := range p.GPUs {
			for _, in := range gpu.Instances {
				got[in.ID] = fmt.Sprintf("GPU %d at %.0f, %.0f", g, *in.X*cellColumns, *in.Y/100*cellRows)
			}
		}
		var blocks []block
		for _, it := range items {
			blocks = append(blocks, it.block)
		}
		for i, want := range slowFast(blocks) {
			if got[items[i].id] != want {
				t.Fatalf("%s: got %s, want %s", items[i].id, got[items[i].id], want)
			}
		}
	})
}
