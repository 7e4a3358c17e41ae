package pack

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// check checks the conditions for a valid packing, regardless of the algorithm.
func check(kinds []Kind, bin Bin, p Packing) error {
	left := make([]int, len(kinds))
	for i, k := range kinds {
		if bin.fits(k) {
			left[i] = k.Count
		}
	}
	used := 0
	for n, b := range p.Bins {
		if b.Times < 1 || len(b.Items) == 0 {
			return fmt.Errorf("bin %d: got %d bins with %d items each, want at least 1 of both", n, b.Times, len(b.Items))
		}
		used += b.Times
		mem := int64(0)
		for i, a := range b.Items {
			k := kinds[a.Kind]
			left[a.Kind] -= b.Times
			mem += k.Mem
			if a.X < 0 || a.Y < 0 || a.X+k.W > bin.W || a.Y+k.H > bin.H {
				return fmt.Errorf("bin %d: got %v, want it inside %d × %d", n, a, bin.W, bin.H)
			}
			for _, o := range b.Items[:i] {
				ko := kinds[o.Kind]
				if a.X < o.X+ko.W && o.X < a.X+k.W && a.Y < o.Y+ko.H && o.Y < a.Y+k.H {
					return fmt.Errorf("bin %d: got %v and %v, want no overlap", n, a, o)
				}
			}
		}
		if bin.Mem > 0 && mem > bin.Mem {
			return fmt.Errorf("bin %d: got %d bytes, want at most %d", n, mem, bin.Mem)
		}
	}
	for i, l := range left {
		if l != 0 {
			return fmt.Errorf("kind %d: got %d items too few, want 0", i, l)
		}
	}
	if used != p.Used || p.Bound > used {
		return fmt.Errorf("got %d bins, bound %d; want %d bins, the value of Used, and a bound of at most that", used, p.Bound, p.Used)
	}
	return nil
}

func draw(t *rapid.T, most int, side int64) ([]Kind, Bin) {
	bin := Bin{W: rapid.Int64Range(1, side).Draw(t, "W"), H: rapid.Int64Range(1, side).Draw(t, "H"), Mem: rapid.Int64Range(0, 8).Draw(t, "M")}
	kinds := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Kind {
		return Kind{
			W: rapid.Int64Range(1, bin.W).Draw(t, "w"), H: rapid.Int64Range(1, bin.H).Draw(t, "h"),
			Mem: rapid.Int64Range(0, bin.Mem).Draw(t, "m"), Count: rapid.IntRange(0, 3).Draw(t, "n"),
		}
	}), 0, most).Draw(t, "kinds")
	return kinds, bin
}

func TestPackingsAreValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds, bin := draw(t, 40, rapid.SampledFrom([]int64{3, 10, 100, 1 << 30}).Draw(t, "side"))
		if rapid.Bool().Draw(t, "larger") {
			kinds = append(kinds, Kind{W: bin.W + 1, H: 1, Count: 2})
		}
		o := Options{Seed: rapid.Uint64().Draw(t, "seed"), Steps: 50}
		p := Pack(kinds, bin, o)
		if err := check(kinds, bin, p); err != nil {
			t.Fatal(err)
		}
		if again := Pack(kinds, bin, o); !reflect.DeepEqual(p, again) {
			t.Fatalf("packing of the same kinds: got %v, want %v", again, p)
		}
	})
}

// Every method of filling gives a valid packing, and returns consecutive equal bins only once.
func TestFillingAlikeBinsAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds, bin := draw(t, 8, 12)
		for i := range kinds {
			kinds[i].Count *= rapid.IntRange(1, 20).Draw(t, "times")
		}
		for _, m := range methods {
			bins, used := fill(kinds, bin, m)
			if err := check(kinds, bin, Packing{Bins: bins, Used: used}); err != nil {
				t.Fatalf("method %+v: %v", m, err)
			}
			for i := 1; i < len(bins); i++ {
				if reflect.DeepEqual(bins[i].Items, bins[i-1].Items) {
					t.Fatalf("method %+v: got equal bins %d and %d, want them counted as one", m, i-1, i)
				}
			}
		}
	})
}
