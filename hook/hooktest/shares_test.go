package hooktest

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestShares runs three programs that each want the whole GPU, with quotas that
// sum to it: of all that is computed, each does its quota.
func TestShares(t *testing.T) {
	h := newHost(t)
	h.start()
	quotas := map[string]float64{"fifth": 0.2, "three-tenths": 0.3, "half": 0.5}
	programs := map[string]*program{}
	for id, quota := range quotas {
		env := h.register(id, gpu.Slice{SMPct: 100, QuotaRequest: quota, QuotaLimit: quota})
		programs[id] = h.run(env, "victim/saturate", "6", "100", "80", "0")
	}
	launches, sum := map[string]float64{}, 0.0
	for id, p := range programs {
		if err := p.wait(); err != nil {
			t.Fatal(err)
		}
		var said struct{ Launches float64 }
		if err := json.Unmarshal([]byte(p.out.String()), &said); err != nil {
			t.Fatalf("%s: %v", p.out.String(), err)
		}
		launches[id] = said.Launches
		sum += said.Launches
	}
	for id, quota := range quotas {
		if share := launches[id] / sum; math.Abs(share-quota) > 0.03 {
			t.Errorf("%s did %.3f of all, want %v", id, share, quota)
		}
	}
}
