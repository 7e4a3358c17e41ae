package report

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

// measured returns a section with the given number of SM shares, 2 quotas and 9 batch sizes, with goodputs and, if
// requested, their trials.
func measured(shares int, trials bool) Section {
	var rows []profile.Row
	for i := range shares {
		sm := 100 * float64(i+1) / float64(shares)
		for _, quota := range []float64{0.5, 1} {
			for batch := 1; batch <= 256; batch *= 2 {
				r := row(figures{sm: sm, quota: quota, batch: batch, rps: 3000 * sm / (sm + 20) * quota, p95: 3 + 20*float64(batch)/sm/quota})
				r.SLOMS, r.IdleP95MS, r.GoodputKnown = 100, r.P95MS/2, true
				r.GoodputRPS, r.GoodputCIRPS = 0.7*r.ThroughputRPS, 0.03*r.ThroughputRPS
				rows = append(rows, r)
			}
		}
	}
	s := section(search.Goal{SLOMS: 100}, rows...)
	s.Function = "a-function-with-a-name-as-long-as-some-are-resnext101_32x8d"
	if trials {
		for _, r := range s.underLoad() {
			for i, part := range []float64{0.5, 0.69, 0.75, 0.98, 1.2} {
				t := profile.Trial{Function: s.Function, Config: r.Config, OfferedRPS: part * r.ThroughputRPS, P95MS: 100 * part / 0.7, P95CIMS: 4, SLOMS: 100, Misses: 3, Samples: 1500}
				if i == 4 {
					t.P95MS, t.P95CIMS, t.Misses = 0, 0, 1500
				}
				s.Trials = append(s.Trials, t)
			}
		}
	}
	s.Outlook = outlook(20, 1, "f")
	return s
}

func TestMain(m *testing.M) { os.Exit(browsertest.Tests{M: m}.Run()) }

// TestInBrowser checks the pages in a browser with the rules for all pages.
func TestInBrowser(t *testing.T) {
	one := measured(5, true)
	several := make([]Section, 3)
	for i := range several {
		several[i] = measured(6+i, i == 0)
		several[i].Function = fmt.Sprint(several[i].Function, i)
	}
	fleet := SharedOutlook{Without: []string{"g"}, Outlook: outlook(30, 12, "resnext101_32x8d-")}
	for name, c := range map[string]struct {
		page   Page
		sheets int
	}{
		"one":     {Page{Title: "Profile of one", Sections: []Section{one}, Simulated: true}, 5},
		"small":   {Page{Title: "Profile of one row", Sections: []Section{section(search.Goal{}, row(figures{sm: 12, quota: 1, batch: 1, rps: 10, p95: 30}))}}, 2},
		"several": {Page{Title: "Profile of several", Sections: several, Shared: []SharedOutlook{fleet}, Notes: []string{"a note"}}, 8},
	} {
		t.Run(name, func(t *testing.T) { browsertest.Check(t, c.page.HTML(), c.sheets) })
	}
}

// TestPackedPartOpens checks that a compressed section of a large profile is rendered correctly when it is opened.
func TestPackedPartOpens(t *testing.T) {
	page := Page{Title: "large", Sections: slices.Repeat([]Section{measured(20, true)}, 4)}.HTML()
	if !bytes.Contains(page, []byte(`<script type="text/plain">`)) {
		t.Fatal("the page is not packed")
	}
	ctx, complaints := browsertest.Open(t)
	browsertest.Show(t, ctx, page)
	if err := chromedp.Run(ctx, chromedp.Click("details.function:nth-of-type(2) > summary", chromedp.ByQuery),
		chromedp.Poll(`document.querySelectorAll("details.function:nth-of-type(2) svg").length > 10`, nil)); err != nil {
		t.Fatal(err)
	}
	for _, fault := range append(browsertest.Faults(t, ctx), complaints()...) {
		t.Error(fault)
	}
}

// TestLatencyUnderLoad checks that the goodput is drawn on the objective at its rate, and that each trial has a mark.
func TestLatencyUnderLoad(t *testing.T) {
	s := measured(5, true)
	ctx, _ := browsertest.Open(t)
	browsertest.Show(t, ctx, Page{Title: "p", Sections: []Section{s}}.HTML())
	var seen struct {
		Pictures, Within, Over int
		Off                    float64
	}
	if err := chromedp.Run(ctx, chromedp.Evaluate(`(() => {
		const all = [...document.querySelectorAll("svg[aria-label^='p95 latency over the load']")], first = all[0];
		const y = e => { const b = e.getBoundingClientRect(); return b.top + b.height / 2 };
		return {Pictures: all.length, Within: first.querySelectorAll(".within").length, Over: first.querySelectorAll(".over").length,
			Off: Math.abs(y(first.querySelector("circle.chosen")) - y(first.querySelector("path.slo")))};
	})()`, &seen)); err != nil {
		t.Fatal(err)
	}
	if seen.Pictures != mostLoads || seen.Within != 1+2 || seen.Over != 3 || seen.Off > 1 {
		t.Errorf("%+v", seen)
	}
	if got := s.underLoad()[0].Config; got != s.Choice.Row.Config {
		t.Errorf("the first is %v, chosen is %v", got, s.Choice.Row.Config)
	}
}

// TestRounds checks that axes have a few round labels, for any range.
func TestRounds(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{
		{0, 100, "[0 20 40 60 80 100]"}, {0, 1, "[0 0.2 0.4 0.6000000000000001 0.8 1]"}, {0, 57, "[0 10 20 30 40 50]"}, {0, 1371, "[0 500 1000]"},
		{95, 107, "[96 98 100 102 104 106]"}, {0, 3e-7, "[0 1e-07 2e-07 3e-07]"},
	} {
		if got := fmt.Sprint(rounds(c.low, c.high)); got != c.want {
			t.Errorf("%v to %v: %s, want %s", c.low, c.high, got, c.want)
		}
	}
	for low := 1e-6; low < 1e9; low *= 3.7 {
		for _, part := range []float64{1.05, 1.5, 4, 1e3, 1e7} {
			if n := len(ticks(low, low*part)); n < 2 || n > 9 {
				t.Errorf("%v to %v: %d ticks, want at least 2 and at most 9", low, low*part, n)
			}
		}
	}
}
