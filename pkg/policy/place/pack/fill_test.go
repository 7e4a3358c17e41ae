package pack

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// If there are no more widths than classes, a pool finds the same kind as a scan of all kinds, after any
// removals.
func TestPoolFindsTheFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds, bin := draw(t, 60, 20)
		p := newPool(kinds, bin)
		o := rapid.SampledFrom([]order{byArea, bySides, byWidth, byLongSide}).Draw(t, "order")
		for p.total > 0 {
			w, h := rapid.Int64Range(1, bin.W).Draw(t, "w"), rapid.Int64Range(1, bin.H).Draw(t, "h")
			mem := rapid.Int64Range(0, 8).Draw(t, "mem")
			want := int64(-1)
			for i, k := range kinds {
				if p.remaining[i] > 0 && k.W <= w && k.H <= h && k.Mem <= mem {
					want = max(want, o.key(k.W, k.H, bin))
				}
			}
			kind, key := p.first(w, h, mem, o, -1)
			if key != want || kind >= 0 && (p.remaining[kind] == 0 || kinds[kind].W > w || kinds[kind].H > h || kinds[kind].Mem > mem) {
				t.Fatalf("first kind for %d × %d, %d bytes: got kind %d, key %d; want key %d", w, h, mem, kind, key, want)
			}
			if kind < 0 {
				kind = rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")
			}
			if n := p.remaining[kind]; n > 0 {
				p.remove(kind, rapid.IntRange(1, n).Draw(t, "n"))
			}
		}
	})
}

// With more widths than classes, the pool still finds a kind that fits if there is one.
func TestPoolOfManyWidths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := splitmix.Source(rapid.Uint64().Draw(t, "seed"))
		bin := Bin{W: 1000, H: 1000, Mem: 100}
		var kinds []Kind
		for range 2500 {
			kinds = append(kinds, Kind{int64(1 + r.Below(1000)), int64(1 + r.Below(1000)), int64(r.Below(101)), 1})
		}
		p := newPool(kinds, bin)
		for p.total > 0 {
			w, h, mem := int64(1+r.Below(1000)), int64(1+r.Below(1000)), int64(r.Below(101))
			any := false
			for i, k := range kinds {
				any = any || p.remaining[i] > 0 && k.W <= w && k.H <= h && k.Mem <= mem
			}
			kind, _ := p.first(w, h, mem, byArea, -1)
			if any != (kind >= 0) || any && (p.remaining[kind] == 0 || kinds[kind].W > w || kinds[kind].H > h || kinds[kind].Mem > mem) {
				t.Fatalf("first kind for %d × %d, %d bytes: got %d, want a kind that fits, found %v", w, h, mem, kind, any)
			}
			for range 50 {
				if i := r.Below(len(kinds)); p.remaining[i] > 0 {
					p.remove(i, 1)
				}
			}
			if p.total < 100 {
				return
			}
		}
	})
}
