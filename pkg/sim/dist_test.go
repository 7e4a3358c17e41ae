package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestDist compares quantiles, mean and variance with exact values.
func TestDist(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := dist{maxValues: int32(rapid.IntRange(0, 50).Draw(t, "maxValues")), bits: 7}
		var all []time.Duration
		scale := time.Duration(math.Pow(10, float64(rapid.IntRange(0, 12).Draw(t, "scale"))))
		for range rapid.IntRange(1, 100).Draw(t, "values") {
			v := time.Duration(rapid.IntRange(0, 1000).Draw(t, "value")) * scale
			d.add(v)
			all = append(all, v)
		}
		slices.Sort(all)
		mean, sq := 0.0, 0.0
		for _, v := range all {
			mean += float64(v) / float64(len(all))
		}
		for _, v := range all {
			sq += (float64(v) - mean) * (float64(v) - mean) / float64(len(all))
		}
		near := func(what string, got, want, part float64) {
			if math.Abs(got-want) > part*math.Max(want, 1)+1 {
				t.Fatalf("%s %g, want %g", what, got, want)
			}
		}
		near("mean", d.mean(), mean, 1e-9)
		near("variance", d.variance(), sq, 1e-6)
		for _, q := range []float64{0, 0.5, 0.95, 0.99, 1} {
			want := all[max(int(math.Ceil(q*float64(len(all))-1e-9)), 1)-1]
			part := 1.0 / 256
			if len(all) <= int(d.maxValues) {
				part = 0
			}
			near("quantile", float64(d.quantile(q)), float64(want), part)
		}
	})
}
