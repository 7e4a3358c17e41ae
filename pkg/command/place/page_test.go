package place

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/plan"
)

// TestPage checks in a real browser that the page of a large plan with all features meets the rules for
// pages.
func TestPage(t *testing.T) {
	p := largePlan()
	o := planOptions{}
	o.current.path = "plan.json"
	var out, again bytes.Buffer
	for _, to := range []*bytes.Buffer{&out, &again} {
		if err := writePage(to, p, o.tables(p, nil, nil), summary(p), []string{"memory is unlimited; set a limit with --inventory or --gpu-mem"}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("page of the same plan: got another one at the second time, want the same")
	}
	browsertest.Check(t, out.Bytes(), 6)
}

// largePlan returns a plan with 12 GPUs and 240 instances of 40 functions.
func largePlan() plan.Plan {
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
	return p
}

// TestFilter checks that the page of a large plan has an input that shows only the rows with the given words, and that the
// page of a small plan has none.
func TestFilter(t *testing.T) {
	o := planOptions{}
	var large, small bytes.Buffer
	p := largePlan()
	if err := writePage(&large, p, o.tables(p, nil, nil), summary(p), nil); err != nil {
		t.Fatal(err)
	}
	p.Demand, p.GPUs = p.Demand[:3], p.GPUs[:1]
	p.GPUs[0].Instances = p.GPUs[0].Instances[:3]
	if err := writePage(&small, p, o.tables(p, nil, nil), summary(p), nil); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(small.Bytes(), []byte("<script")) || bytes.Contains(small.Bytes(), []byte("<input")) {
		t.Error("page of a small plan: got an input or a script, want neither")
	}
	ctx, complaints := browsertest.Open(t)
	browsertest.Show(t, ctx, large.Bytes())
	const shown = `[...document.querySelectorAll("tr")].filter(row => row.querySelector("td") && row.checkVisibility()).length`
	var before, found, all int
	var text string
	if err := chromedp.Run(ctx, chromedp.Evaluate(shown, &before),
		chromedp.SendKeys(".filter input", "V2_M-<3> a-node-of-a-rack/9", chromedp.ByQuery),
		chromedp.Evaluate(shown, &found), chromedp.Text(".filter output", &text, chromedp.ByQuery),
		chromedp.Evaluate(`(() => { const i = document.querySelector(".filter input"); i.value = ""; i.dispatchEvent(new Event("input")) })()`, nil),
		chromedp.Evaluate(shown, &all)); err != nil {
		t.Fatal(err)
	}
	// GPU 9 has the functions 23 to 39, and 0 to 2, of which none is number 3.
	if want := 40 + 12; before != want || all != want || found != 0 || text != "0 of 292 rows" {
		t.Errorf("%d rows, then %d (%s), then %d; want %d, 0, %[5]d", before, found, text, all, want)
	}
	if err := chromedp.Run(ctx, chromedp.SendKeys(".filter input", "V2_M-<3> a-node-of-a-rack/0", chromedp.ByQuery),
		chromedp.Evaluate(shown, &found), chromedp.Text(".filter output", &text, chromedp.ByQuery)); err != nil {
		t.Fatal(err)
	}
	if found != 1 || text != "1 of 292 rows" {
		t.Errorf("%d rows are shown (%s), want the instance", found, text)
	}
	for _, fault := range append(browsertest.Faults(t, ctx), complaints()...) {
		t.Error(fault)
	}
}

func TestEmptyPage(t *testing.T) {
	var out bytes.Buffer
	if err := writePage(&out, plan.Plan{BoundMethod: "area"}, nil, "0 GPUs", nil); err != nil {
		t.Fatal(err)
	}
	browsertest.Check(t, out.Bytes(), 1)
}
