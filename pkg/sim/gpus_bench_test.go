package sim

import (
	"fmt"
	"testing"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/trace"
)

// BenchmarkGPUs simulates invocations of 10,000 functions with the same load for each GPU. ns/op
// is the time per invocation, without the set-up.
func BenchmarkGPUs(b *testing.B) {
	for _, policy := range []string{"lalb-o3", "cfs-affinity"} {
		for _, gpus := range []int{1 << 10, 1 << 16} {
			b.Run(fmt.Sprintf("%s/%d", policy, gpus), func(b *testing.B) {
				functions, rows := zipf(zipfLoad{functions: 10000, invocations: b.N, slots: gpus, exponent: 0.9, load: 0.6})
				c := Config{Functions: functions, GPUs: gpus, Mem: 80 << 30, Concurrency: 2,
					Config: queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()}}
				r, err := newRun(c, trace.NewList(rows))
				if err != nil {
					b.Fatal(err)
				}
				b.ResetTimer()
				if _, err := r.finish(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
