package gateway

import (
	"net/http"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestSideBySide checks the slices of instances: by turns, side by side, and with a profile, whose row
// decides in both cases. The slices of as many instances as there are slots fit side by side.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	row := profile.Row{Function: "f", Config: profile.Config{SMPct: 20, Quota: 0.5, Batch: 1}, ThroughputRPS: 1, P95MS: 50}
	for _, c := range []struct {
		name       string
		sideBySide bool
		policy     string
		slots      int
		profile    []profile.Row
		want       gpu.Slice
		allSMs     bool
	}{
		{"turns", false, "gfaas", 4, nil, gpu.Slice{SMPct: 100, QuotaRequest: 0.25, QuotaLimit: 1}, false},
		{"side by side", true, "mqfq-sticky", 4, nil, gpu.Slice{SMPct: 25, QuotaRequest: 1, QuotaLimit: 1}, true},
		{"three side by side", true, "gfaas", 3, nil, gpu.Slice{SMPct: 33.333, QuotaRequest: 1, QuotaLimit: 1}, true},
		{"one slot", true, "gfaas", 1, nil, gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1}, false},
		{"one at a time", true, "lalb", 2, nil, gpu.Slice{SMPct: 100, QuotaRequest: 0.5, QuotaLimit: 1}, false},
		{"profile", true, "gfaas", 4, []profile.Row{row}, gpu.Slice{SMPct: 20, QuotaRequest: 0.5, QuotaLimit: 0.5}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, func(cfg *Config) {
				cfg.SideBySide, cfg.Policy.Policy, cfg.Concurrency = c.sideBySide, c.policy, c.slots
				if c.profile != nil {
					cfg.Scaler, cfg.Profile = "lazy", map[string][]profile.Row{"f": c.profile}
				}
			})
			var mu sync.Mutex
			var spec instance.Spec
			w.runtime.Handler = func(s instance.Spec) http.Handler {
				mu.Lock()
				defer mu.Unlock()
				spec = s
				return http.HandlerFunc(echo)
			}
			w.apply(fn("f"))
			if a := w.do("POST", "/function/f", "x"); a.status != 200 {
				t.Fatalf("got %+v; want status 200", a)
			}
			mu.Lock()
			defer mu.Unlock()
			if spec.Slice != c.want || spec.AllSMs != c.allSMs {
				t.Errorf("got the slice %+v, all SMs: %v; want %+v, %v", spec.Slice, spec.AllSMs, c.want, c.allSMs)
			}
			if sum := spec.Slice.SMPct * float64(c.slots); c.allSMs && sum > 100 {
				t.Errorf("SM shares of %d instances: got %v%%, want at most 100%%", c.slots, sum)
			}
		})
	}
}
