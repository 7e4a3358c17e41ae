package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
	"pgregory.net/rapid"
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

func row(sm, quota float64, batch int, rps, p95 float64) profile.Row {
	return profile.Row{Function: "f", Config: profile.Config{SMPct: sm, Quota: quota, Batch: batch}, ThroughputRPS: rps, P95MS: p95}
}

// A page is well formed, refers to nothing outside it, escapes what it shows,
// and holds no figure that is none, whatever the profile.
func TestPageProperty(t *testing.T) {
	outside := regexp.MustCompile(`(?i)https?:|src=|href=|url\(|@import|<script`)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "rows")
		seen := map[profile.Config]bool{}
		var rows []profile.Row
		for range n {
			r := row(rapid.SampledFrom([]float64{0.5, 6, 12.5, 100}).Draw(t, "sm"), rapid.SampledFrom([]float64{0.01, 0.2, 1}).Draw(t, "quota"),
				rapid.SampledFrom([]int{1, 2, 8, 64, 1000}).Draw(t, "batch"), rapid.SampledFrom([]float64{0, 1e-6, 3, 3, 1e9}).Draw(t, "rps"),
				rapid.SampledFrom([]float64{1e-9, 5, 5, 1e12}).Draw(t, "p95"))
			if !seen[r.Config] {
				rows = append(rows, r)
			}
			seen[r.Config] = true
		}
		s := section(search.Goal{SLOMS: rapid.SampledFrom([]float64{0, 5}).Draw(t, "slo")}, rows...)
		page := HTML("Profile <p>", []Section{s, s}, true)
		wellFormed(t, page)
		for _, text := range [][]byte{page, Terminal([]Section{s}, true)} {
			if bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Inf")) {
				t.Fatalf("a figure is none:\n%s", text)
			}
		}
		if found := outside.Find(page); found != nil {
			t.Fatalf("the page has %s", found)
		}
	})
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
	s := section(search.Goal{SLOMS: 20}, row(12, 0.5, 1, 10, 30), row(12, 1, 1, 20, 15), row(50, 0.5, 1, 25, 18), row(50, 1, 2, 80, 25))
	page := string(HTML("p", []Section{s}, false))
	for text, times := range map[string]int{
		`<rect class="chosen"`:   3, // a heat map for each metric
		`<circle class="chosen"`: 5, // three curves over SM share, two over quota
		`<path class="miss"`:     6,
		`<rect class="hole"`:     12,
		`<tr class="pick">`:      1,
		"Run it with sm_pct 12 (limit 100), quota 1, batch 1: 20 requests/s at p95 15 ms.": 1,
		"A GPU holds 8 such instances, which sustain 160 requests/s together.":             1,
		"2 of 4 configurations keep p95 within 20 ms.":                                     1,
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
		if got := short(v); got != want {
			t.Errorf("%v prints as %s, want %s", v, got, want)
		}
	}
}

func TestBar(t *testing.T) {
	for part, want := range map[float64]int{0: 0, 0.5: barWide / 2, 1: barWide} {
		if got := len([]rune(bar(part))); got != want {
			t.Errorf("%v has %d letters, want %d", part, got, want)
		}
	}
}
