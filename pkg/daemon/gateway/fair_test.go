package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

// TestFairness floods one function while another function of the same weight gets single
// calls. Under a fair policy, hardly any call of the flood begins between the arrival and
// the start of the other function's call. In order of arrival, all queued calls of the
// flood do.
func TestFairness(t *testing.T) {
	const execution, callers = 20 * time.Millisecond, 64
	// between returns the number of calls of the flood that began while a call to the
	// other function was queued, and the duration of that call. Both are medians of
	// several calls.
	between := func(policy string) (int64, time.Duration) {
		var flooding atomic.Int64
		work := func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("flood") {
				flooding.Add(1)
			}
			time.Sleep(execution)
		}
		begun := make(chan int64, 1)
		w := newWorld(t, pathHandlers{"/work": work, "/patient": func(http.ResponseWriter, *http.Request) { begun <- flooding.Load() }}, func(c *Config) {
			c.Policy.Policy, c.Queue, c.FixedCosts = policy, 1024, true
			c.Costs = map[string]trace.Function{}
			for _, name := range []string{"flood", "patient"} {
				c.Costs[name] = trace.Function{Name: name, Warm: execution, Cold: 2 * execution}
			}
		})
		defer w.close()
		w.apply(fn("flood"), fn("patient"))
		for _, name := range []string{"flood", "patient"} {
			if a := w.do("GET", "/function/"+name, ""); a.status != 200 {
				t.Fatalf("got %+v; want status 200", a)
			}
		}
		ctx, stop := context.WithCancel(context.Background())
		var flood sync.WaitGroup
		defer flood.Wait()
		defer stop()
		for range callers {
			flood.Go(func() {
				for ctx.Err() == nil {
					_, _ = w.try(ctx, "GET", "/function/flood/work?flood", "")
				}
			})
		}
		w.until("three quarters of the flood are queued", func() bool { return *w.Status().Functions[0].Waiting > callers*3/4 })
		var counts []int64
		var took []time.Duration
		calls := 7
		if policy == "fcfs" { // each call waits for the whole flood
			calls = 3
		}
		for range calls {
			begin, before := time.Now(), flooding.Load()
			if a := w.do("GET", "/function/patient/patient", ""); a.status != 200 {
				t.Fatalf("got %+v; want status 200", a)
			}
			counts, took = append(counts, <-begun-before), append(took, time.Since(begin))
		}
		slices.Sort(counts)
		slices.Sort(took)
		return counts[len(counts)/2], took[len(took)/2]
	}
	for _, policy := range []string{"gfaas", "mqfq-sticky", "fcfs"} {
		n, took := between(policy)
		t.Logf("%s: %d calls of the flood began before the other's turn, after %v", policy, n, took)
		switch {
		case policy == "fcfs" && n < callers/2:
			t.Errorf("fcfs: calls of the flood before the other function's: got %d, want at least %d", n, callers/2)
		case policy != "fcfs" && n > 4: // the GPU has two slots
			t.Errorf("%s: %d calls of the flood began before the other's turn, want at most 4", policy, n)
		}
	}
}
