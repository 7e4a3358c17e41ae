package report

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the style and the script of the page
	"encoding/base64"
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

//go:embed page.css
var style string

//go:embed page.js
var script string

// mostInline is how large a page may get, in bytes, before the part of each
// function is packed.
const mostInline = 1 << 20

// Page is what a report shows.
type Page struct {
	Title     string
	Sections  []Section
	Fleets    []Fleet
	Notes     []string // what to know about the planning
	Simulated bool
}

// HTML is a page that stands alone: it loads nothing. Of a large profile the
// part of each function is packed, and drawn when it is opened.
func (p Page) HTML() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>%s</title>\n<style>%s%s</style>\n</head>\n<body>\n",
		escape(p.Title), style, colours())
	b.WriteString(picture.Definitions())
	fmt.Fprintf(&b, "<h1>%s</h1>\n<p class=\"note\">A frame marks the chosen configuration; strokes cross out those that miss the objective. Efficacy is throughput / (SM share × quota): what a whole GPU would sustain.</p>\n<p>%s</p>\n", escape(p.Title), key())
	if p.Simulated {
		b.WriteString("<p class=\"warn\">Measured on the simulated GPU: these figures are not a GPU's.</p>\n")
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "<p class=\"note\">%s</p>\n", escape(n))
	}
	if len(p.Sections) > 1 {
		p.overview(&b)
	}
	for _, f := range p.Fleets {
		fmt.Fprintf(&b, "<section>\n<h2>%s</h2>\n", escape(f.title()))
		for _, n := range f.notes() {
			fmt.Fprintf(&b, "<p>%s</p>\n", escape(n))
		}
		f.html(&b)
		b.WriteString("</section>\n")
	}
	p.functions(&b)
	b.WriteString("</body>\n</html>\n")
	return []byte(b.String())
}

// overview lists what is chosen for each function.
func (p Page) overview(b *strings.Builder) {
	b.WriteString("<section>\n<h2>Overview</h2>\n<div class=\"scroll\"><table>\n<tr><th class=\"word\">function</th><th>SM %</th><th>limit</th><th>quota</th><th>batch</th><th>requests/s</th><th>p95 ms</th><th>efficacy</th><th>GPUs</th></tr>\n")
	for i, s := range p.Sections {
		fmt.Fprintf(b, "<tr><td class=\"word\"><a href=\"#f%d\">%s</a></td>", i+1, escape(s.title()))
		if c := s.Choice; c.OK {
			fmt.Fprintf(b, "<td>%s</td><td>%s</td><td>%s</td><td>%d</td><td>%s</td><td>%s</td><td>%s</td>", number.Plain(c.Row.SMPct), number.Plain(c.LimitSMPct), number.Plain(c.Row.Quota), c.Row.Batch,
				number.Metric(c.Row.ThroughputRPS), number.Metric(c.Row.P95MS), number.Metric(c.Row.Efficacy()))
		} else {
			b.WriteString("<td colspan=\"7\" class=\"bad\">none meets the objective</td>")
		}
		fmt.Fprintf(b, "<td>%s</td></tr>\n", s.gpus())
	}
	b.WriteString("</table></div>\n<p class=\"note\">GPUs are those that each of the planner's demands takes, see below.</p>\n</section>\n")
}

// functions writes the part of each function; in a large page packed.
func (p Page) functions(b *strings.Builder) {
	bodies, size := make([]string, len(p.Sections)), 0
	for i, s := range p.Sections {
		bodies[i] = s.html()
		size += len(bodies[i])
	}
	large := len(p.Sections) > 1 && size > mostInline
	for i, s := range p.Sections {
		open, body := ` open="open"`, bodies[i]
		if large {
			open, body = "", "<p class=\"note\">A script draws this part when it is opened; gfaas-profile report --function shows it without.</p>\n<script type=\"text/plain\">"+pack(bodies[i])+"</script>\n"
		}
		fmt.Fprintf(b, "<details class=\"function\"%s><summary><h2>%s</h2></summary>\n<div class=\"body\" id=\"f%d\">\n%s</div>\n</details>\n", open, escape(s.title()), i+1, body)
	}
	if large {
		fmt.Fprintf(b, "<script>\n%s</script>\n", script)
	}
}

// pack compresses a part of the page as the script unpacks it.
func pack(text string) string {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(text)) // a buffer takes all
	_ = z.Close()
	return base64.StdEncoding.EncodeToString(packed.Bytes())
}

func (s Section) html() string {
	var b strings.Builder
	b.WriteString("<ul class=\"said\">\n")
	for _, line := range s.summary() {
		fmt.Fprintf(&b, "<li>%s</li>\n", escape(line))
	}
	b.WriteString("</ul>\n")
	if len(s.Plans) > 0 {
		b.WriteString("<h3>What the planner makes of it <small>the GPUs that demands take, and the least that any plan takes</small></h3>\n")
		s.Outlook.html(&b)
	}
	s.curves(&b)
	for i, m := range []metric{metrics[2], metrics[0], metrics[1]} {
		fmt.Fprintf(&b, "<h3>%s <small>%s, over SM share and quota</small></h3>\n<div class=\"row\">\n", m.name, m.unit)
		for _, batch := range s.batches() {
			b.WriteString(s.heat(m, int(batch), i == 0))
		}
		b.WriteString("</div>\n")
	}
	s.rows(&b)
	return b.String()
}

// curves draws what the heat maps show as lines: over SM share at the chosen
// quota, and latency over quota at the chosen SM share.
func (s Section) curves(b *strings.Builder) {
	quotas, sms := s.quotas(), s.sms()
	quota, sm := quotas[len(quotas)-1], sms[len(sms)-1]
	if s.Choice.OK {
		quota, sm = s.Choice.Row.Quota, s.Choice.Row.SMPct
	}
	fmt.Fprintf(b, "<h3>Curves <small>over SM share at quota %s, and over quota at SM share %s%%</small></h3>\n<div class=\"key\">", number.Plain(quota), number.Plain(sm))
	for i, batch := range s.batches() {
		fmt.Fprintf(b, `<span><svg width="26" height="12"><path class="line %s" d="M0 6H26"/><path class="%s" d="%s"/></svg> batch %s</span>`,
			line(i), line(i), marker(i, 13, 6), number.Plain(batch))
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
	fmt.Fprintf(b, "<details><summary>All %d rows</summary>\n<div class=\"scroll\"><table>\n<tr><th>SM %%</th><th>quota</th><th>batch</th><th>requests/s</th><th>p50 ms</th><th>p95 ms</th><th>p99 ms</th><th>errors</th><th>memory MiB</th><th>efficacy</th></tr>\n", len(s.Rows))
	for _, r := range s.Rows {
		pick, late := "", ""
		if s.Choice.OK && s.Choice.Row.Config == r.Config {
			pick = ` class="pick"`
		}
		if !s.Goal.Meets(r) {
			late = ` class="bad"`
		}
		fmt.Fprintf(b, "<tr%s><td>%s</td><td>%s</td><td>%d</td><td>%s</td><td>%s</td><td%s>%s</td><td>%s</td><td>%d</td><td>%s</td><td>%s</td></tr>\n",
			pick, number.Plain(r.SMPct), number.Plain(r.Quota), r.Batch, number.Plain(r.ThroughputRPS), known(r.P50MS), late, number.Plain(r.P95MS), known(r.P99MS), r.Errors, known(r.GPUMemMiB), number.Metric(r.Efficacy()))
	}
	b.WriteString("</table></div>\n</details>\n")
}

// known prints a figure, a dash when it was not measured.
func known(v float64) string {
	if v == 0 {
		return "–"
	}
	return number.Plain(v)
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
func px(v float64) string { return number.Plain(math.Round(v*10) / 10) }

func escape(s string) string { return html.EscapeString(s) }
