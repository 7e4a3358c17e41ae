package gateway

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestScalers checks that the number of instances follows the load according to the
// profile's rows and returns to zero without load. The instances have the slices of the
// rows. A replay of the record makes the same decisions.
func TestScalers(t *testing.T) {
	t.Parallel()
	for _, scaler := range []string{"eager", "heuristic", "lazy"} {
		t.Run(scaler, func(t *testing.T) {
			t.Parallel()
			var text bytes.Buffer
			w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
				c.Scaler, c.Concurrency, c.Record = scaler, 2, &text
				c.Profile = map[string][]profile.Row{"f": {{Function: "f", Config: profile.Config{SMPct: 20, Quota: 0.5, Batch: 1}, ThroughputRPS: 1, P95MS: 50}}}
			})
			w.apply(fn("f", func(f *function.Function) { f.Scale = function.Scale{Max: 4, Idle: time.Second} }))
			ctx, stop := context.WithCancel(context.Background())
			var callers sync.WaitGroup
			defer callers.Wait()
			defer stop()
			callers.Go(func() { // on an idle host at least 25 calls per second, on a busy one fewer
				for ctx.Err() == nil {
					if a, err := w.try(context.Background(), "POST", "/function/f", "x"); err != nil || a.status != 200 {
						t.Errorf("got %+v, %v; want status 200", a, err)
					}
					pause(ctx, 20*time.Millisecond)
				}
			})
			least := 3
			if scaler == "lazy" {
				least = 2 // this scaler waits for several seconds before it starts more instances
			}
			w.until("the number of instances meets the load", func() bool {
				if scaler == "lazy" && w.Status().Functions[0].Instances == 1 {
					return true // by the rule of this scaler, only a lasting load starts another instance
				}
				return w.Status().Functions[0].Instances >= least
			})
			if i := w.Status().Instances[0]; i.SMPct != 20 || i.QuotaRequest != 0.5 {
				t.Errorf("got %+v; want 20%% of the SMs at a quota of 0.5", i)
			}
			stop()
			callers.Wait()
			w.until("no instance runs", func() bool { return w.Status().Functions[0].Instances == 0 })
			w.close()
			if err := replayed(text.Bytes()); err != nil {
				t.Error(err)
			}
			if named := strings.Contains(text.String(), `"event":"retired"`); named != (scaler == "heuristic") {
				t.Errorf("the scaler names the instances to stop: got %v", named)
			}
		})
	}
}
