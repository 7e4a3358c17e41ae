package scaling

import (
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/sim/workload"
)

// TestLazyBeatsEager checks under bursty, periodic and sporadic loads that lazy scaling has fewer
// cold starts than eager scaling, and no more unserved requests (Dilu, Table 3).
func TestLazyBeatsEager(t *testing.T) {
	u := unit(t)
	for _, shape := range []string{"bursty", "periodic", "sporadic"} {
		var sums [2]Result
		for seed := range uint64(5) {
			for _, rate := range []float64{3, 30} {
				p := workload.Defaults()
				p.Shape = shape
				series := p.Series(rate, 600, seed)
				for i, scaler := range []func() *scale.Scaler{
					func() *scale.Scaler { return scale.NewLazy(u, scale.DefaultLazy(), scale.Bounds{}) },
					func() *scale.Scaler { return scale.NewEager(u, scale.Last{}, scale.Bounds{}) },
				} {
					first, err := First(scaler(), series[0])
					if err != nil {
						t.Fatal(err)
					}
					got, err := Run(series, Options{Scaler: scaler(), First: first, Cold: cold(5 * time.Second)})
					if err != nil {
						t.Fatal(err)
					}
					sums[i].ColdStarts += got.ColdStarts
					sums[i].SLOViolationRatio += got.SLOViolationRatio / 10
					sums[i].InstanceSeconds += got.InstanceSeconds
				}
			}
		}
		lazy, eager := sums[0], sums[1]
		t.Logf("%s: lazy %+v, eager %+v", shape, lazy, eager)
		if lazy.ColdStarts >= eager.ColdStarts || lazy.SLOViolationRatio > eager.SLOViolationRatio {
			t.Errorf("%s: want fewer cold starts and no more violations for lazy than for eager, got lazy %+v, eager %+v", shape, lazy, eager)
		}
	}
}
