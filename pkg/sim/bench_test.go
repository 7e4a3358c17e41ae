package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/trace"
)

// zipfLoad describes a workload for zipf.
type zipfLoad struct {
	functions   int
	invocations int
	slots       int
	exponent    float64
	load        float64
}

// zipf returns a workload with many functions: rates by Zipf's law, log-normal execution times
// around 30 ms, and Poisson arrivals at the given fraction of the slots' capacity.
func zipf(z zipfLoad) ([]trace.Function, []trace.Row) {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]trace.Function, z.functions)
	sums := make([]float64, z.functions)
	total, mean := 0.0, 0.0
	for i := range out {
		warm := time.Duration(math.Exp(r.NormFloat64()+3.5)+1) * time.Millisecond
		out[i] = trace.Function{Name: fmt.Sprint(i), Warm: warm, Cold: warm + 2*time.Second, Load: warm / 4,
			MemMiB: float64(100 + r.IntN(2000)), Weight: 1, Model: fmt.Sprint(i)}
		p := math.Pow(float64(i+1), -z.exponent)
		total += p
		mean += p * float64(warm)
		sums[i] = total
	}
	gap := mean / total / z.load / float64(z.slots)
	rows := make([]trace.Row, z.invocations)
	at := 0.0
	for i := range rows {
		at += r.ExpFloat64() * gap
		rows[i] = trace.Row{At: time.Duration(at), Function: int32(sort.SearchFloat64s(sums, r.Float64()*total))}
	}
	return out, rows
}

// BenchmarkQueue simulates invocations of 10,000 functions on 8 GPUs. ns/op is the time per
// invocation.
func BenchmarkQueue(b *testing.B) {
	functions, rows := zipf(zipfLoad{functions: 10000, invocations: 1000000, slots: 16, exponent: 0.9, load: 0.9})
	for _, policy := range queue.Names() {
		b.Run(policy, func(b *testing.B) {
			if policy == "fcfs-naive" || policy == "exclusive" {
				b.Skip("starts cold without end")
			}
			b.ReportAllocs()
			for done := 0; done < b.N; done += len(rows) {
				c := Config{Functions: functions, GPUs: 8, Concurrency: 2,
					Config: queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()}}
				if _, err := Run(c, trace.NewList(rows[:min(b.N-done, len(rows))])); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGfaas simulates gfaas with different numbers of GPUs and the same load for each GPU.
// ns/op is the time per invocation. It runs at least 20 invocations for each GPU, so that starts
// become warm.
func BenchmarkGfaas(b *testing.B) {
	for _, gpus := range []int{1 << 10, 1 << 16} {
		functions, rows := zipf(zipfLoad{functions: 1000, invocations: 20 * gpus, slots: 2 * gpus, exponent: 0.9, load: 0.7})
		for i := range functions {
			functions[i].Cold = functions[i].Warm + 100*time.Millisecond
		}
		b.Run(fmt.Sprint(gpus), func(b *testing.B) {
			b.ReportAllocs()
			for done := 0; done < b.N; done += len(rows) {
				c := Config{Functions: functions, GPUs: gpus, Concurrency: 2,
					Config: queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()}}
				if _, err := Run(c, trace.NewList(rows)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
