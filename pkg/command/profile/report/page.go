package report

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the page, its style and its script
	"encoding/base64"
	"html/template"
	"math"

	"github.com/gfaas/gfaas/pkg/command/page"
	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/command/svg"
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
// part of each function is packed, and drawn when it is opened. The same page
// gives the same bytes.
func (p Page) HTML() []byte {
	view := struct {
		Page
		Bodies []template.HTML
		Packed bool
	}{Page: p}
	size := 0
	for _, s := range p.Sections {
		body := execute("section", s.view())
		view.Bodies = append(view.Bodies, template.HTML(body))
		size += len(body)
	}
	if view.Packed = len(p.Sections) > 1 && size > mostInline; view.Packed {
		for i, body := range view.Bodies {
			view.Bodies[i] = template.HTML(pack(string(body)))
		}
	}
	return execute("page", view)
}

//go:embed page.html
var pageText string

var pages = page.Template(pageText, template.FuncMap{
	"own":         func() template.CSS { return template.CSS(style + colours()) },
	"script":      func() template.JS { return template.JS(script) },
	"key":         func() template.HTML { return template.HTML(key()) },
	"definitions": func() template.HTML { return template.HTML(picture.Definitions()) },
	"number":      func(i int) int { return i + 1 },
	"title":       func(of interface{ title() string }) string { return of.title() },
	"gpus":        func(of interface{ gpus() string }) string { return of.gpus() },
	"notes":       Fleet.notes,
	"summary":     func(v sectionView) []string { return v.summary() },
	"planned":     Outlook.view,
	"plain":       number.Plain,
	"metric":      number.Metric,
	"known":       known,
})

// execute makes the part of the page of that name. What a part is made of is
// complete and in memory, so that only a fault of the template can fail.
func execute(part string, of any) []byte {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, part, of); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// pack compresses a part of the page as the script unpacks it.
func pack(text string) string {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(text)) // a buffer takes all
	_ = z.Close()
	return base64.StdEncoding.EncodeToString(packed.Bytes())
}

// known prints a figure, a dash when it was not measured.
func known(v float64) string {
	if v == 0 {
		return "–"
	}
	return number.Plain(v)
}

// sectionView is what the page shows of a section.
type sectionView struct {
	Section
	Quota, SMPct float64         // that the curves are drawn at
	Key          template.HTML   // of the curves
	Loads        []template.HTML // latency over the load
	Tried        bool            // with trials
	Curves       []template.HTML // over SM share at the quota, then over quota at the SM share
	Heats        []heatView
}

// heatView is the heat maps of a metric, one a batch.
type heatView struct {
	Name, Unit string
	Maps       []template.HTML
}

// Chosen says whether a row is the one that is chosen.
func (v sectionView) Chosen(r profile.Row) bool {
	return v.Choice.OK && v.Choice.Row.Config == r.Config
}

// view draws the section.
func (s Section) view() sectionView {
	quotas, sms := s.quotas(), s.sms()
	v := sectionView{Section: s, Quota: quotas[len(quotas)-1], SMPct: sms[len(sms)-1]}
	if s.Choice.OK {
		v.Quota, v.SMPct = s.Choice.Row.Quota, s.Choice.Row.SMPct
	}
	for _, r := range s.underLoad() {
		v.Loads = append(v.Loads, template.HTML(s.load(r)))
		v.Tried = v.Tried || len(s.trialsOf(r)) > 0
	}
	var legend svg.Drawing
	for i, batch := range s.batches() {
		legend.WriteString("<span>")
		legend.Open("svg", "width", 26, "height", 12)
		legend.Add("path", "class", "line "+line(i), "d", "M0 6H26")
		legend.Add("path", "class", line(i), "d", legend.Marker(i, 13, 6, 1))
		legend.WriteString("</svg> batch " + number.Plain(batch) + "</span>")
	}
	v.Key = template.HTML(legend.String())
	curve := func(m metric, label string, over func(profile.Row) float64, keep func(profile.Row) bool) {
		v.Curves = append(v.Curves, template.HTML(s.curve(m, label, over, keep)))
	}
	for _, m := range metrics {
		curve(m, "SM share, %", func(r profile.Row) float64 { return r.SMPct }, func(r profile.Row) bool { return r.Quota == v.Quota })
	}
	if len(quotas) > 1 {
		for _, m := range metrics[:2] {
			curve(m, "quota, part of the time", func(r profile.Row) float64 { return r.Quota }, func(r profile.Row) bool { return r.SMPct == v.SMPct })
		}
	}
	for i, m := range []metric{metrics[2], metrics[0], metrics[1]} {
		h := heatView{Name: m.name, Unit: m.unit}
		for _, batch := range s.batches() {
			h.Maps = append(h.Maps, template.HTML(s.heat(m, int(batch), i == 0)))
		}
		v.Heats = append(v.Heats, h)
	}
	return v
}

// drawing begins a drawing; lengths have a tenth of a pixel.
func drawing(width, height float64, label string) *svg.Drawing {
	d := &svg.Drawing{Length: func(v float64) string { return number.Plain(math.Round(v*10) / 10) }}
	d.Open("svg", "role", "img", "aria-label", label, "viewBox", d.Path("0 0 ", width, " ", height), "width", width, "height", height)
	return d
}

func end(d *svg.Drawing) string {
	d.WriteString("</svg>\n")
	return d.String()
}

// caption writes a text; class may be empty.
func caption(d *svg.Drawing, x, y float64, anchor, class, text string) {
	attributes := []any{"x", x, "y", y, "text-anchor", anchor}
	if class != "" {
		attributes = append(attributes, "class", class)
	}
	d.AddText("text", text, attributes...)
}
