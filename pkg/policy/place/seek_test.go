package place

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// What is found by the offers kept is what looking at every GPU finds.
func TestOffersAreThoseOfAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{MemMiB: rapid.SampledFrom([]float64{0, 10}).Draw(t, "mem")}
		for i := range rapid.IntRange(0, 5).Draw(t, "devices") {
			in.Devices = append(in.Devices, plan.Device{
				Node: "n", Index: i, Model: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "model"),
				MemMiB: rapid.Float64Range(0, 10).Draw(t, "has"),
			})
		}
		f := newFleet(in)
		for range rapid.IntRange(1, 12).Draw(t, "runs") {
			var row profile.Row
			row.Quota = rapid.SampledFrom([]float64{0.2, 0.4, 0.5, 1}).Draw(t, "quota")
			row.SMPct = rapid.SampledFrom([]float64{6, 25, 50, 60, 100}).Draw(t, "sm")
			row.GPU = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "gpu")
			row.GPUMemMiB = rapid.Float64Range(0, 4).Draw(t, "needs")
			for range rapid.IntRange(1, 12).Draw(t, "instances") {
				want, wantOK := f.scan(needOf(row))
				got, ok := f.find(needOf(row))
				if got != want || ok != wantOK {
					t.Fatalf("%+v: found %+v %v, scan %+v %v", row, got, ok, want, wantOK)
				}
				f.place("i", row)
			}
		}
	})
}
