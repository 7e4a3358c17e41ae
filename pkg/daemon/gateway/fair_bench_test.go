package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

// BenchmarkFairness measures the duration of sequential calls to one function, alone and
// while 64 callers flood another function of the same weight. It reports both 95th
// percentiles, and their ratio after subtracting one execution.
func BenchmarkFairness(b *testing.B) {
	const execution, callers = 20 * time.Millisecond, 64
	for _, policy := range []string{"gfaas", "mqfq-sticky", "fcfs"} {
		b.Run(policy, func(b *testing.B) {
			work := func(http.ResponseWriter, *http.Request) { time.Sleep(execution) }
			w := newWorld(b, pathHandlers{"/work": work}, func(c *Config) {
				c.Policy.Policy, c.Queue, c.FixedCosts = policy, 1024, true
				c.Costs = map[string]trace.Function{}
				for _, name := range []string{"flood", "patient"} {
					c.Costs[name] = trace.Function{Name: name, Warm: execution, Cold: 2 * execution}
				}
			})
			w.apply(fn("flood"), fn("patient"))
			p95 := func() time.Duration {
				took := make([]time.Duration, b.N)
				for i := range took {
					begin := time.Now()
					if a := w.do("GET", "/function/patient/work", ""); a.status != 200 {
						b.Fatalf("got %+v; want status 200", a)
					}
					took[i] = time.Since(begin)
				}
				slices.Sort(took)
				return took[(len(took)-1)*95/100]
			}
			for _, name := range []string{"flood", "patient"} {
				w.do("GET", "/function/"+name, "")
			}
			alone := p95()
			ctx, stop := context.WithCancel(context.Background())
			var flood sync.WaitGroup
			for range callers {
				flood.Go(func() {
					for ctx.Err() == nil {
						_, _ = w.try(ctx, "GET", "/function/flood/work", "")
					}
				})
			}
			w.until("three quarters of the flood are queued", func() bool { return *w.Status().Functions[0].Waiting > callers*3/4 })
			flooded := p95()
			stop()
			flood.Wait()
			b.ReportMetric(alone.Seconds()*1e3, "alone-p95-ms")
			b.ReportMetric(flooded.Seconds()*1e3, "flooded-p95-ms")
			b.ReportMetric((flooded-execution).Seconds()/alone.Seconds(), "less-one-execution-ratio")
		})
	}
}
