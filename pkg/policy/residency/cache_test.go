package residency

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestCacheAgainstTwin compares with a list of models a GPU, used last at the
// end.
func TestCacheAgainstTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const gpus, models = 3, 6
		mem := rapid.SampledFrom([]int64{0, 10, 20}).Draw(t, "memory")
		var size [models]int64
		for i := range size {
			size[i] = rapid.Int64Range(0, 10).Draw(t, "size")
		}
		c := NewCache(gpus, models, mem)
		var twin [gpus][]int32
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			gpu, model := rapid.Int32Range(0, gpus-1).Draw(t, "gpu"), rapid.Int32Range(0, models-1).Draw(t, "model")
			var gone []Change
			at := slices.Index(twin[gpu], model)
			if at >= 0 {
				twin[gpu] = slices.Delete(twin[gpu], at, at+1)
			}
			for used := size[model]; at < 0 && mem > 0 && len(twin[gpu]) > 0; {
				for _, m := range twin[gpu] {
					used += size[m]
				}
				if used <= mem {
					break
				}
				gone = append(gone, Change{Removed: true, GPU: gpu, Function: twin[gpu][0], Container: none})
				twin[gpu] = twin[gpu][1:]
				used = size[model]
			}
			twin[gpu] = append(twin[gpu], model)
			if hit := c.Use(gpu, model, size[model]); hit != (at >= 0) {
				t.Fatalf("%d on gpu %d: hit %v", model, gpu, hit)
			}
			if got := c.Changes(); !slices.Equal(got, gone) {
				t.Fatalf("%v went, want %v", got, gone)
			}
			for m := range int32(models) {
				var on, want []int32
				c.On(m, func(gpu int32) bool { on = append(on, gpu); return true })
				for g := range int32(gpus) {
					has := slices.Contains(twin[g], m)
					if c.Has(g, m) != has {
						t.Fatalf("gpu %d has %d: %v", g, m, !has)
					}
					if has {
						want = append(want, g)
					}
				}
				if !slices.Equal(on, want) || c.Copies(m) != len(want) {
					t.Fatalf("%d is on %v, %d in all, want %v", m, on, c.Copies(m), want)
				}
			}
		}
	})
}

func TestCacheFits(t *testing.T) {
	if c := NewCache(1, 1, 10); !c.Fits(10) || c.Fits(11) {
		t.Error("10 bytes hold 10 and no more")
	}
	if !NewCache(1, 1, 0).Fits(1 << 50) {
		t.Error("without a limit all fits")
	}
}
