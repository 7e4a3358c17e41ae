package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/profile"
)

const style = `
body { font: 15px/1.45 system-ui, sans-serif; color: #1d2530; background: #fff; margin: 0 auto; padding: 24px; max-width: 1180px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 0; } h3 { font-size: 15px; margin: 22px 0 6px; }
h3 small, .note { color: #5b6675; font-weight: normal; }
.warn { background: #fff4d6; border-left: 4px solid #d9a400; padding: 8px 12px; margin: 12px 0; }
section { border-top: 1px solid #d5dae1; margin-top: 28px; padding-top: 20px; }
.said { margin: 8px 0 0; padding: 0; list-style: none; } .said li:first-child { font-weight: 600; }
.row { display: flex; flex-wrap: wrap; gap: 10px 20px; }
svg { font: 11px system-ui, sans-serif; fill: #3b4654; max-width: 100%; height: auto; }
.cap { font-weight: 600; font-size: 12px; } .light { fill: #fff; } .dark { fill: #1d2530; }
.hole { fill: #f1f3f5; } .miss { stroke: #b3261e; stroke-width: 1.2; opacity: .75; }
.chosen { fill: none; stroke: #e8590c; stroke-width: 2.5; }
.line { fill: none; stroke-width: 1.8; } .axis { fill: none; stroke: #7b8694; } .grid { stroke: #e4e8ed; }
path.slo { stroke: #b3261e; stroke-dasharray: 5 4; } text.slo { fill: #b3261e; }
.key { display: inline-flex; gap: 14px; flex-wrap: wrap; margin: 2px 0 6px; color: #3b4654; font-size: 13px; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: 2px 10px; text-align: right; } tr:nth-child(even) { background: #f6f8fa; }
tr.pick { outline: 2px solid #e8590c; } td.bad { color: #b3261e; } summary { cursor: pointer; margin-top: 14px; }
`

// HTML is the page for some functions. Simulated says so at the top.
func HTML(title string, sections []Section, simulated bool) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>%s</title>\n<style>%s</style>\n</head>\n<body>\n", escape(title), style)
	fmt.Fprintf(&b, "<h1>%s</h1>\n<p class=\"note\">Orange frames the chosen configuration; red strokes cross out those that miss the objective; dark is good. Efficacy is throughput / (SM share × quota): what a whole GPU would sustain.</p>\n", escape(title))
	if simulated {
		b.WriteString("<p class=\"warn\">Measured on the simulated GPU: these figures are not a GPU's.</p>\n")
	}
	for _, s := range sections {
		s.html(&b)
	}
	b.WriteString("</body>\n</html>\n")
	return []byte(b.String())
}

func (s Section) html(b *strings.Builder) {
	fmt.Fprintf(b, "<section>\n<h2>%s</h2>\n<ul class=\"said\">\n", escape(s.Title()))
	for _, line := range s.summary() {
		fmt.Fprintf(b, "<li>%s</li>\n", escape(line))
	}
	b.WriteString("</ul>\n")
	s.curves(b)
	for i, m := range []metric{metrics[2], metrics[0], metrics[1]} {
		fmt.Fprintf(b, "<h3>%s <small>%s, over SM share and quota</small></h3>\n<div class=\"row\">\n", m.name, m.unit)
		for _, batch := range s.batches() {
			b.WriteString(s.heat(m, int(batch), i == 0))
		}
		b.WriteString("</div>\n")
	}
	s.rows(b)
	b.WriteString("</section>\n")
}

// curves draws what the heat maps show as lines: over SM share at the chosen
// quota, and latency over quota at the chosen SM share.
func (s Section) curves(b *strings.Builder) {
	quotas, sms := s.quotas(), s.sms()
	quota, sm := quotas[len(quotas)-1], sms[len(sms)-1]
	if s.Choice.OK {
		quota, sm = s.Choice.Row.Quota, s.Choice.Row.SMPct
	}
	fmt.Fprintf(b, "<h3>Curves <small>over SM share at quota %s, and over quota at SM share %s%%</small></h3>\n<div class=\"key\">", num(quota), num(sm))
	for i, batch := range s.batches() {
		fmt.Fprintf(b, `<span><svg width="26" height="12"><path class="line" stroke="%s" d="M0 6H26"/><path fill="%s" d="%s"/></svg> batch %s</span>`,
			lines[i%len(lines)], lines[i%len(lines)], marker(i, 13, 6), num(batch))
	}
	b.WriteString("</div>\n<div class=\"row\">\n")
	for _, m := range metrics {
		b.WriteString(s.curve(m, "SM share, %", func(r profile.Row) float64 { return r.SMPct }, func(r profile.Row) bool { return r.Quota == quota }))
	}
	if len(quotas) > 1 {
		for _, m := range metrics[:2] {
			b.WriteString(s.curve(m, "quota", func(r profile.Row) float64 { return r.Quota }, func(r profile.Row) bool { return r.SMPct == sm }))
		}
	}
	b.WriteString("</div>\n")
}

// rows lists every measurement.
func (s Section) rows(b *strings.Builder) {
	fmt.Fprintf(b, "<details><summary>All %d rows</summary>\n<table>\n<tr><th>SM %%</th><th>quota</th><th>batch</th><th>requests/s</th><th>p50 ms</th><th>p95 ms</th><th>p99 ms</th><th>errors</th><th>memory MiB</th><th>efficacy</th></tr>\n", len(s.Rows))
	for _, r := range s.Rows {
		pick, late := "", ""
		if s.Choice.OK && s.Choice.Row.Config == r.Config {
			pick = ` class="pick"`
		}
		if !s.Goal.Meets(r) {
			late = ` class="bad"`
		}
		fmt.Fprintf(b, "<tr%s><td>%s</td><td>%s</td><td>%d</td><td>%s</td><td>%s</td><td%s>%s</td><td>%s</td><td>%d</td><td>%s</td><td>%s</td></tr>\n",
			pick, num(r.SMPct), num(r.Quota), r.Batch, num(r.ThroughputRPS), known(r.P50MS), late, num(r.P95MS), known(r.P99MS), r.Errors, known(r.GPUMemMiB), short(r.Efficacy()))
	}
	b.WriteString("</table>\n</details>\n")
}

// known prints a figure, a dash when it was not measured.
func known(v float64) string {
	if v == 0 {
		return "–"
	}
	return num(v)
}

func open(b *strings.Builder, width, height float64, label string) {
	fmt.Fprintf(b, `<svg role="img" aria-label="%s" viewBox="0 0 %s %s" width="%s" height="%s">`, escape(label), px(width), px(height), px(width), px(height))
}

func text(b *strings.Builder, x, y float64, anchor, class, what string) {
	if class != "" {
		class = ` class="` + class + `"`
	}
	fmt.Fprintf(b, `<text x="%s" y="%s" text-anchor="%s"%s>%s</text>`, px(x), px(y), anchor, class, escape(what))
}

// px prints a length with a tenth of a pixel.
func px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func escape(s string) string { return html.EscapeString(s) }
