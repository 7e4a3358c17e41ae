package report

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/sim"
)

func TestMain(m *testing.M) { os.Exit(browsertest.Tests{M: m}.Run()) }

// TestInBrowser checks the general requirements on pages in a real browser.
func TestInBrowser(t *testing.T) {
	for name, c := range map[string]struct{ policies, functions, sheets int }{"one": {1, 1, 1}, "many": {13, 24, 4}, "none": {1, 0, 1}} {
		t.Run(name, func(t *testing.T) {
			browsertest.Check(t, []byte(draw(t, results(c.policies, c.functions))), c.sheets)
		})
	}
	p := Prediction{Setting: "Requests: poisson."}
	for i, r := range results(30, 0) {
		p.Functions = append(p.Functions, FunctionPrediction{Function: fmt.Sprintf("efficientnet_v2_m-<%d>", i), RPS: 1234.567, SLOMS: float64(i % 2 * 500), P50MS: 1, P95MS: 2, P99MS: 3, Within: 0.5, Missed: i%3 == 0, Curve: r.Curve})
	}
	var page bytes.Buffer
	if err := PredictionHTML(&page, p); err != nil {
		t.Fatal(err)
	}
	t.Run("promise", func(t *testing.T) { browsertest.Check(t, page.Bytes(), 2) })
}

// TestLegendHidesCurves checks that a checkbox of the legend hides its curve only, without a
// script.
func TestLegendHidesCurves(t *testing.T) {
	ctx, _ := browsertest.Open(t)
	browsertest.Show(t, ctx, []byte(draw(t, results(13, 1))))
	const shown = `[...document.querySelectorAll(".series")].filter(g => getComputedStyle(g).display !== "none").length`
	var before, after int
	if err := chromedp.Run(ctx, chromedp.Evaluate(shown, &before), chromedp.Click("#s3", chromedp.ByQuery),
		chromedp.Poll(`getComputedStyle(document.querySelector(".s3-curve")).display === "none"`, nil), chromedp.Evaluate(shown, &after)); err != nil {
		t.Fatal(err)
	}
	if before != 13 || after != 12 {
		t.Errorf("visible curves: got %d, then %d with one hidden; want 13, then 12", before, after)
	}
}

// TestOverlappingCurves checks that overlapping curves are listed, and that their markers do not
// overlap.
func TestOverlappingCurves(t *testing.T) {
	all := results(3, 0)
	all[2].Curve = all[0].Curve
	got := same(all, axisOf(lists.Map(all, func(r *sim.Result) []float64 { return r.Curve })))
	if len(got) != 1 || got[0] != "The curves of policy-0 and policy-2 overlap." {
		t.Errorf("overlapping curves: got %q, want one sentence about policy-0 and policy-2", got)
	}
	ctx, _ := browsertest.Open(t)
	for i := range all {
		all[i].Curve = all[0].Curve
	}
	browsertest.Show(t, ctx, []byte(draw(t, all)))
	var hidden int
	if err := chromedp.Run(ctx, chromedp.Evaluate(`(() => {
		const boxes = [...document.querySelectorAll(".series path")].map(p => p.getBoundingClientRect());
		return boxes.filter((a, i) => boxes.some((b, k) => k > i && Math.hypot(a.x - b.x, a.y - b.y) < 6)).length;
	})()`, &hidden)); err != nil {
		t.Fatal(err)
	}
	if hidden > 0 {
		t.Errorf("%d markers lie under others, want 0", hidden)
	}
}
