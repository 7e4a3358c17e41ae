package pack

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// fitsBrute reports whether all rectangles fit one bin. It tries every corner for each in turn.
func fitsBrute(rects []Kind, bin Bin) bool {
	mem, area := int64(0), int64(0)
	for _, r := range rects {
		mem += r.Mem
		area += r.W * r.H
	}
	if bin.Mem > 0 && mem > bin.Mem || area > bin.W*bin.H {
		return false
	}
	at := make([]Placed, len(rects))
	var try func(n int) bool
	try = func(n int) bool {
		if n == len(rects) {
			return true
		}
		for x := int64(0); x+rects[n].W <= bin.W; x++ {
		next:
			for y := int64(0); y+rects[n].H <= bin.H; y++ {
				for i := range n {
					if x < at[i].X+rects[i].W && at[i].X < x+rects[n].W && y < at[i].Y+rects[i].H && at[i].Y < y+rects[n].H {
						continue next
					}
				}
				if at[n] = (Placed{X: x, Y: y}); try(n + 1) {
					return true
				}
			}
		}
		return false
	}
	return try(0)
}

// fewest returns the least number of bins. It tries every partition.
func fewest(rects []Kind, bin Bin) int {
	best := len(rects)
	var bins [][]Kind
	var try func(n int)
	try = func(n int) {
		if len(bins) >= best && n < len(rects) {
			return
		}
		if n == len(rects) {
			best = min(best, len(bins))
			return
		}
		for i := range bins {
			bins[i] = append(bins[i], rects[n])
			if fitsBrute(bins[i], bin) {
				try(n + 1)
			}
			bins[i] = bins[i][:len(bins[i])-1]
		}
		bins = append(bins, []Kind{rects[n]})
		try(n + 1)
		bins = bins[:len(bins)-1]
	}
	try(0)
	return best
}

func each(kinds []Kind) (rects []Kind) {
	for _, k := range kinds {
		for range k.Count {
			rects = append(rects, Kind{k.W, k.H, k.Mem, 1})
		}
	}
	return rects
}

func TestBoundsHoldAndPackingsAreNearTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds, bin := draw(t, 4, 5)
		rects := each(kinds)
		if len(rects) > 6 {
			rects = rects[:6]
		}
		p := Pack(rects, bin, Options{Steps: 200})
		least := fewest(rects, bin)
		if p.Bound > least || p.Used < least || p.Used > least+1 {
			t.Fatalf("%v in %v: got %d bins, bound %d (%s); want %[6]d bins or one more, and a bound of at most %[6]d", rects, bin, p.Used, p.Bound, p.BoundMethod, least)
		}
	})
}

// Each bound holds by itself.
func TestEachBoundHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds, bin := draw(t, 6, 6)
		rects := each(kinds)
		if len(rects) > 6 {
			rects = rects[:6]
		}
		least := fewest(rects, bin)
		coarse, _ := coarseBound(rects, bin)
		for name, n := range map[string]int{
			"area and memory": coarse,
			"dff":             dffBound(rects, bin), "bars": barBound(rects, bin, 0, barWork),
		} {
			if n > least {
				t.Fatalf("%v in %v: %s bound: got %d, want at most %d", rects, bin, name, n, least)
			}
		}
	})
}

func TestBounds(t *testing.T) {
	for name, c := range map[string]struct {
		kinds  []Kind
		bin    Bin
		want   int
		method string
	}{
		"nothing": {nil, Bin{W: 5, H: 5}, 0, boundNone},
		"full":    {[]Kind{{5, 5, 0, 3}}, Bin{W: 5, H: 5}, 3, boundArea},
		"memory":  {[]Kind{{1, 1, 5, 4}}, Bin{W: 5, H: 5, Mem: 9}, 3, boundMemory},
		// No two rectangles of more than half the bin in both directions fit one bin.
		"over half": {[]Kind{{3, 3, 0, 7}}, Bin{W: 5, H: 5}, 7, boundDFF},
		// Rectangles with 60% of the height cannot lie above each other: by width, 3 × 0.4.
		"side by side": {[]Kind{{4, 60, 0, 3}}, Bin{W: 10, H: 100}, 2, boundDFF},
		// Products beyond 64 bits: rectangles of more than half the bin in both directions.
		"large": {[]Kind{{1<<30 + 1, 1<<29 + 1, 0, MaxItems}}, Bin{W: 1 << 31, H: 1 << 30}, MaxItems, boundDFF},
	} {
		if n, method := lowerBound(c.kinds, c.bin, barWork); n != c.want || method != c.method {
			t.Errorf("%s: got bound %d (%s), want %d (%s)", name, n, method, c.want, c.method)
		}
	}
}

// With very many kinds, only a few functions are tried.
func TestBoundOfManyKinds(t *testing.T) {
	r := splitmix.Source(1)
	var kinds []Kind
	for range 150_000 {
		kinds = append(kinds, Kind{int64(1 + r.Below(1<<20)), int64(1 + r.Below(1<<20)), 0, 1 + r.Below(3)})
	}
	bin := Bin{W: 1 << 20, H: 1 << 20}
	p := Pack(kinds, bin, Options{Stop: func() bool { return true }})
	if err := check(kinds, bin, p); err != nil {
		t.Fatal(err)
	}
	if p.Used > p.Bound*102/100 {
		t.Errorf("got %d bins, want at most 2%% more than the bound %d", p.Used, p.Bound)
	}
}

// MaxItems is the largest number of items of a file.
const MaxItems = 5_000_000
