package place

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/plan"
)

// A plan's page, of many functions and with all that a plan may have, keeps to what
// a page must in a real browser.
func TestPage(t *testing.T) {
	p := plan.Plan{Version: 1, Algorithm: "joint", Model: plan.ModelRect, Arrivals: plan.ArrivalsPoisson, GPUsUsed: 12, Bound: 11, BoundMethod: "cover"}
	for i := range 12 {
		g := plan.GPU{Node: "a-node-of-a-rack", Index: i, MemMiB: 40960, Models: []plan.Model{{Name: "a-model-with-a-name", MemMiB: 700}}}
		for k := range 20 {
			x, y := 0.2*float64(k%5), 25*float64(k/5)
			name := fmt.Sprintf("efficientnet_v2_m-<%d>", (7*i+k)%40)
			g.Instances = append(g.Instances, plan.Instance{ID: fmt.Sprintf("%s-%d", name, i), Function: name, SMPct: 25, QuotaRequest: 0.2, QuotaLimit: 0.2,
				Batch: 8, RPS: 1234.5, MemMiB: 1500.25, X: &x, Y: &y})
		}
		p.GPUs = append(p.GPUs, g)
	}
	for i := range 40 {
		p.Demand = append(p.Demand, plan.Served{Function: fmt.Sprintf("efficientnet_v2_m-<%d>", i), RPS: 99, ServedRPS: 101.25})
	}
	p.Unplaced = []plan.Unplaced{{Function: "efficientnet_v2_m-<3>", RPS: 2.5, Reason: "no configuration has p95_ms <= 5: the best is 11.3 at sm_pct 100, quota 1, batch 1"}}
	o := planOptions{}
	o.current.path = "plan.json"
	var out, again bytes.Buffer
	for _, to := range []*bytes.Buffer{&out, &again} {
		if err := writePage(to, p, o.tables(p, nil, nil), summary(p), []string{"memory is not limited, since neither --inventory nor --gpu-mem was given"}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same plan gives two pages")
	}
	browsertest.Check(t, out.Bytes(), 6)
}

func TestEmptyPage(t *testing.T) {
	var out bytes.Buffer
	if err := writePage(&out, plan.Plan{BoundMethod: "area"}, nil, "0 GPUs", nil); err != nil {
		t.Fatal(err)
	}
	browsertest.Check(t, out.Bytes(), 1)
}
