package report

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
)

func section(goal search.Goal, rows ...profile.Row) Section {
	s := Section{Function: "f<script>", GPU: "sim", Rows: rows, Goal: goal}
	for _, r := range rows {
		if goal.Meets(r) && (!s.Choice.OK || r.Efficacy() > s.Choice.Row.Efficacy()) {
			s.Choice = search.Choice{OK: true, Row: r, LimitSMPct: 100, Reason: "the best"}
		}
	}
	return s
}

// figures is a measured configuration: its SM share in percent, its throughput in requests per second and its
// p95 latency in ms.
type figures struct {
	sm    float64
	quota float64
	batch int
	rps   float64
	p95   float64
}

func row(m figures) profile.Row {
	return profile.Row{Function: "f", Config: profile.Config{SMPct: m.sm, Quota: m.quota, Batch: m.batch}, ThroughputRPS: m.rps, P95MS: m.p95}
}

// TestPageProperty checks for any profile that the page is well-formed, refers to no other resources, escapes texts and
// contains no invalid numbers.
func TestPageProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "rows")
		seen := map[profile.Config]bool{}
		var rows []profile.Row
		for range n {
			r := row(figures{sm: rapid.SampledFrom([]float64{0.5, 6, 12.5, 100}).Draw(t, "sm"), quota: rapid.SampledFrom([]float64{0.01, 0.2, 1}).Draw(t, "quota"), batch: rapid.SampledFrom([]int{1, 2, 8, 64, 1000}).Draw(t, "batch"), rps: rapid.SampledFrom([]float64{0, 1e-6, 3, 3, 1e9}).Draw(t, "rps"), p95: rapid.SampledFrom([]float64{1e-9, 5, 5, 1e12}).Draw(t, "p95")})
			if !seen[r.Config] {
				rows = append(rows, r)
			}
			seen[r.Config] = true
		}
		s := section(search.Goal{SLOMS: rapid.SampledFrom([]float64{0, 5}).Draw(t, "slo")}, rows...)
		n = rapid.IntRange(1, 4).Draw(t, "functions")
		fleet := SharedOutlook{Without: []string{"<g>"}, Outlook: outlook(rapid.IntRange(0, 5).Draw(t, "instances"), n, "a&b<script>"[:2+n])}
		s.Outlook = outlook(rapid.IntRange(0, 5).Draw(t, "alone"), 1, "<b>")
		if rapid.Bool().Draw(t, "known") {
			fleet.UnsharedGPUs = []int{rapid.IntRange(0, 9).Draw(t, "apart")}
		}
		p := Page{Title: "Profile <p>", Sections: []Section{s, section(s.Goal, rows[0])}, Shared: []SharedOutlook{fleet}, Notes: []string{"a & b"}, Simulated: true}
		page := p.HTML()
		wellFormed(t, page)
		for _, text := range [][]byte{page, p.Terminal()} {
			if bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Inf")) {
				t.Fatalf("a figure is none:\n%s", text)
			}
		}
		if found := outside.Find(page); found != nil || bytes.Contains(page, []byte("<script")) {
			t.Fatalf("the page has %s", found)
		}
	})
}

// outside matches references that make a browser load other resources.
var outside = regexp.MustCompile(`(?i)https?:|src=|href="[^#]|url\([^#]|@import`)

// outlook returns one plan with the given numbers of instances and functions, with one instance per GPU.
func outlook(instances, functions int, name string) Outlook {
	p := plan.Plan{GPUsUsed: instances, Bound: 1}
	for i := range functions {
		p.Demand = append(p.Demand, plan.Served{Function: name + string(rune('a'+i)), RPS: 10})
		p.Unplaced = append(p.Unplaced, plan.Unplaced{Function: name, RPS: 1, Reason: "a < b"})
	}
	for i := range instances {
		at := 0.0
		p.GPUs = append(p.GPUs, plan.GPU{Index: i, MemMiB: 100, Instances: []plan.Instance{{ID: name + string(rune('0'+i)), Function: p.Demand[i%functions].Function,
			SMPct: 12.5, QuotaRequest: 0.5, Batch: 1 + i%2, MemMiB: 10 * float64(i), X: &at, Y: &at}}})
	}
	return Outlook{Plans: []plan.Plan{p}, PlanCommand: "x <<'END'\n"}
}

// TestLargePageIsPacked checks that the page of a large profile has a reasonable size and contains all sections.
func TestLargePageIsPacked(t *testing.T) {
	var rows []profile.Row
	for sm := 5.0; sm <= 100; sm += 5 {
		for quota := 0.1; quota <= 1; quota += 0.1 {
			for _, batch := range []int{1, 2, 4, 8} {
				rows = append(rows, row(figures{sm: sm, quota: quota, batch: batch, rps: 1.2345 * sm * quota / (sm + 20), p95: 1e4 / sm / quota}))
			}
		}
	}
	s := section(search.Goal{SLOMS: 500}, rows...)
	p := Page{Title: "large", Sections: slices.Repeat([]Section{s}, 5)}
	page := p.HTML()
	wellFormed(t, page)
	if len(page) > len(p.Sections)*60_000 { // 2 MB for 35 functions of this size
		t.Errorf("the page has %d bytes", len(page))
	}
	if found := outside.Find(page); found != nil {
		t.Errorf("the page has %s", found)
	}
	parts := regexp.MustCompile(`<script type="text/plain">([^<]*)</script>`).FindAllSubmatch(page, -1)
	if len(parts) != len(p.Sections) {
		t.Fatalf("%d parts are packed", len(parts))
	}
	packed, err := base64.StdEncoding.DecodeString(string(parts[4][1]))
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if part, err := io.ReadAll(z); err != nil || !bytes.Equal(part, execute("section", s.view())) {
		t.Errorf("the part is not what a small page has: %v", err)
	}
	small := Page{Title: "small", Sections: []Section{s}}.HTML()
	if !bytes.Contains(small, execute("section", s.view())) || bytes.Contains(small, []byte("<script")) {
		t.Error("the page of one function is packed")
	}
}

// TestOutlook checks the description of a plan: each function's configurations, in descending order of instances.
func TestOutlook(t *testing.T) {
	o := outlook(5, 2, "f")
	f := SharedOutlook{GPU: "L4", Outlook: o}
	f.UnsharedGPUs = []int{7}
	text := string(Page{Shared: []SharedOutlook{f}}.Terminal())
	want := `
All 2 functions together on L4
  Together they need 5 GPUs; if no GPU is shared by two functions, 7.

  RPS  GPUS  BOUND  UNSHARED  ALLOCATED
   20     5      1         7  6%

  FUNCTION  RPS  CONFIGURATIONS OF THE LAST PLAN
  fa         10  3 × (sm 12.5, quota 0.5, batch 1)
  fb         10  2 × (sm 12.5, quota 0.5, batch 2)
  1 requests/s of f are not served: a < b.
  1 requests/s of f are not served: a < b.
`
	if text != want {
		t.Errorf("%s\nwant%s", text, want)
	}
	page := string(Page{Shared: []SharedOutlook{f}}.HTML())
	for _, want := range []string{"<figcaption>2 of 5 GPUs of the last plan</figcaption>", "<pre>x &lt;&lt;&#39;END&#39;"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s:\n%s", want, page)
		}
	}
}

func TestMemoryLimitsInstances(t *testing.T) {
	r := row(figures{sm: 25, quota: 0.5, batch: 1, rps: 10, p95: 5})
	r.GPUMemMiB = 400
	s := section(search.Goal{}, r)
	for mib, want := range map[float64]string{0: "A GPU can host 8 such", 1000: "A GPU can host 2 such", 1e6: "A GPU can host 8 such"} {
		s.MemMiB = mib
		if got := s.summary()[1]; !strings.HasPrefix(got, want) {
			t.Errorf("%v MiB: %s, want a text with %q", mib, got, want)
		}
	}
}

func wellFormed(t interface{ Fatalf(string, ...any) }, page []byte) {
	d := xml.NewDecoder(bytes.NewReader(page))
	d.Entity = xml.HTMLEntity
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, page)
		}
	}
}

func TestPageShowsTheChoice(t *testing.T) {
	s := section(search.Goal{SLOMS: 20}, row(figures{sm: 12, quota: 0.5, batch: 1, rps: 10, p95: 30}), row(figures{sm: 12, quota: 1, batch: 1, rps: 20, p95: 15}), row(figures{sm: 50, quota: 0.5, batch: 1, rps: 25, p95: 18}), row(figures{sm: 50, quota: 1, batch: 2, rps: 80, p95: 25}))
	page := string(Page{Title: "p", Sections: []Section{s}}.HTML())
	for text, times := range map[string]int{
		`<rect class="chosen"`:   3 + 1, // one heat map for each metric, and the legend
		`<circle class="chosen"`: 5 + 1, // three curves over SM share, two over quota, and the legend
		`<path class="miss"`:     6 + 1,
		`<rect class="hole"`:     12 + 1,
		`<tr class="pick">`:      1,
		"Chosen configuration: sm_pct 12 (limit 100), quota 1, batch 1: 20 requests/s at p95 15 ms.": 1,
		"A GPU can host 8 such instances, which sustain 160 requests/s together.":                    1,
		"<span><svg width=\"26\" height=\"14\" aria-hidden=\"true\">":                                3 + 3, // legend of the curves: two batch sizes and the choice; legend of the heat maps
		"2 of 4 configurations have p95 within 20 ms.":                                               1,
	} {
		if got := strings.Count(page, text); got != times {
			t.Errorf("%s is there %d times, want %d", text, got, times)
		}
	}
	if strings.Contains(page, "simulated") {
		t.Error("the page says that it is simulated")
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1234: "0.123", 12.34: "12.3", 999.4: "999", 999.6: "1k", 12345: "12.3k", 1.5e6: "1.5M"} {
		if got := number.Metric(v); got != want {
			t.Errorf("%v prints as %s, want %s", v, got, want)
		}
	}
}

func TestBar(t *testing.T) {
	for part, want := range map[float64]int{0: 0, 0.5: barWidth / 2, 1: barWidth} {
		if got := len([]rune(Bar(part))); got != want {
			t.Errorf("%v has %d letters, want %d", part, got, want)
		}
	}
}

// TestGoodputIsTold checks that the goodput of the chosen configuration is described if it was measured.
func TestGoodputIsTold(t *testing.T) {
	measured := row(figures{sm: 20, quota: 1, batch: 1, rps: 100, p95: 40})
	measured.GoodputKnown, measured.GoodputRPS, measured.SLOMS, measured.IdleP95MS = true, 71, 50, 10.5
	none := row(figures{sm: 20, quota: 1, batch: 1, rps: 100, p95: 40})
	none.GoodputKnown, none.SLOMS = true, 5
	for want, r := range map[string]profile.Row{
		"": row(figures{sm: 20, quota: 1, batch: 1, rps: 100, p95: 40}),
		"\nThe goodput is 71 requests/s of Poisson arrivals with p95 within 50 ms, 71% of the throughput; a single request takes 10.5 ms.": measured,
		"\nThe goodput is 0: no rate of Poisson arrivals has p95 within 5 ms.":                                                             none,
	} {
		got := strings.Join(section(search.Goal{}, r).summary(), "\n")
		if told := strings.Contains(got, "Poisson"); told != (want != "") || !strings.Contains(got, want) {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestMostGoodputIsTold checks that another configuration with more goodput is described.
func TestMostGoodputIsTold(t *testing.T) {
	edge, room := row(figures{sm: 10, quota: 1, batch: 1, rps: 100, p95: 49}), row(figures{sm: 20, quota: 1, batch: 1, rps: 150, p95: 30})
	edge.GoodputKnown, edge.GoodputRPS, edge.SLOMS = true, 5, 50
	room.GoodputKnown, room.GoodputRPS, room.SLOMS = true, 120, 50
	const told = "If requests arrive at random, sm_pct 20, quota 1, batch 1 is best: a GPU full of such instances sustains 600 requests/s of Poisson arrivals within 50 ms"
	for want, s := range map[string]Section{
		told + ", compared with 50 for the chosen configuration.": section(search.Goal{SLOMS: 50}, edge, room),
		"":         section(search.Goal{SLOMS: 50}, room),
		told + ".": {Rows: []profile.Row{edge, room}, Goal: search.Goal{SLOMS: 50}},
	} {
		got := ""
		for _, line := range s.summary() {
			if strings.HasPrefix(line, "If requests") {
				got = line
			}
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if lines := section(search.Goal{}, edge, room).mostGoodput(); lines != nil {
		t.Errorf("without an objective: %q", lines)
	}
}
