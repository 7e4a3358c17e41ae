package joint

import (
	"fmt"
	"testing"

	"github.com/gfaas/gfaas/pkg/splitmix"
)

// grid returns a problem with FaST-GShare's grid of configurations for each function. Throughputs
// flatten out at different SM shares. The demand needs about the given number of instances.
func grid(functions, instances int, room int64) Problem {
	p := Problem{Classes: []Class{{Room: room, Count: Elastic}}}
	rng := splitmix.Source(7)
	for range functions {
		full, knee := 20+200*rng.Unit(), 10+80*rng.Unit()
		f := Func{Model: NoModel, Demand: full * 0.4 * float64(instances) / float64(functions) * (0.5 + rng.Unit())}
		for _, sm := range []float64{6, 12, 24, 50, 60, 80, 100} {
			for _, quota := range []float64{0.2, 0.4, 0.6, 0.8, 1} {
				f.Options = append(f.Options, Option{
					W: int64(quota * One), H: int64(sm / 100 * One), Mem: 1000 + int64(20*sm),
					Rate: full * quota * sm / (sm + knee), On: []bool{true},
				})
			}
		}
		p.Funcs = append(p.Funcs, f)
	}
	return p
}

func BenchmarkJoint(b *testing.B) {
	for _, size := range []struct{ functions, instances int }{{10, 320}, {10, 3200}, {10, 32000}, {35, 3200}, {100, 3200}} {
		b.Run(fmt.Sprintf("functions=%d/instances=%d", size.functions, size.instances), func(b *testing.B) {
			benchmark(b, grid(size.functions, size.instances, Unlimited))
		})
	}
}

func BenchmarkJointMemory(b *testing.B) {
	benchmark(b, grid(10, 3200, 10_000))
}

func BenchmarkJointTokens(b *testing.B) {
	p := grid(10, 3200, Unlimited)
	p.Tokens = true
	benchmark(b, p)
}

func benchmark(b *testing.B, p Problem) {
	used, bound := 0, 0
	for b.Loop() {
		sol := Solve(p, Options{})
		used, bound = 0, sol.Bound
		for _, g := range sol.Groups {
			used += g.Count
		}
	}
	b.ReportMetric(float64(used), "gpus")
	b.ReportMetric(float64(used)/float64(bound), "gpus/bound")
}
