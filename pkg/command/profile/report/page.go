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

// maxInline is the largest size of a page, in bytes, whose sections are not compressed.
const maxInline = 1 << 20

// Page is the content of a report.
type Page struct {
	Title     string
	Sections  []Section
	Shared    []SharedOutlook
	Notes     []string // notes about the planning
	Simulated bool
}

// HTML returns the report as a self-contained page, which loads no other resources. For a large profile, it
// compresses each section, and the page's script renders a section when the user opens it. The result is
// deterministic.
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
	if view.Packed = len(p.Sections) > 1 && size > maxInline; view.Packed {
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
	"loadKey":     func(v sectionView) template.HTML { return v.loadKey() },
	"heatKey":     func(v sectionView) template.HTML { return v.heatKey() },
	"definitions": func() template.HTML { return template.HTML(picture.Definitions()) },
	"number":      func(i int) int { return i + 1 },
	"title":       func(of interface{ title() string }) string { return of.title() },
	"gpus":        func(of interface{ gpus() string }) string { return of.gpus() },
	"notes":       SharedOutlook.notes,
	"summary":     func(v sectionView) []string { return v.summary() },
	"planned":     Outlook.view,
	"plain":       number.Plain,
	"metric":      number.Metric,
	"known":       known,
})

// execute renders a named part of the page. It panics on an error, which can only be a bug in the template,
// because the data is complete and in memory.
func execute(name string, of any) []byte {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, of); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// pack compresses a part of the page with gzip and encodes it in base64. The page's script decodes it.
func pack(text string) string {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(text)) // a buffer returns no errors
	_ = z.Close()
	return base64.StdEncoding.EncodeToString(packed.Bytes())
}

// known formats a measurement, or a dash if there is none.
func known(v float64) string {
	if v == 0 {
		return "–"
	}
	return number.Plain(v)
}

// sectionView is the page's form of a section.
type sectionView struct {
	Section
	Quota, SMPct float64         // held constant in the curves
	Key          template.HTML   // legend of the curves
	Loads        []template.HTML // charts of latency over load
	Tried        bool            // the charts contain trials
	Curves       []template.HTML // over SM share at the quota, then over quota at the SM share
	Heats        []heatView
}

// heatView is a metric's heat maps, one for each batch size.
type heatView struct {
	Name, Unit string
	Maps       []template.HTML
}

// Chosen reports whether a row is the chosen configuration.
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
	v.Key = s.curveKey()
	curve := func(m metric, label string, x func(profile.Row) float64, include func(profile.Row) bool) {
		v.Curves = append(v.Curves, template.HTML(s.curve(m, label, x, include)))
	}
	for _, m := range metrics {
		curve(m, "SM share, %", func(r profile.Row) float64 { return r.SMPct }, func(r profile.Row) bool { return r.Quota == v.Quota })
	}
	if len(quotas) > 1 {
		for _, m := range metrics[:2] {
			curve(m, "quota, fraction of time", func(r profile.Row) float64 { return r.Quota }, func(r profile.Row) bool { return r.SMPct == v.SMPct })
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

// drawing begins a drawing. It rounds lengths to a tenth of a pixel.
func drawing(width, height float64, label string) *svg.Drawing {
	d := &svg.Drawing{Length: func(v float64) string { return number.Plain(math.Round(v*10) / 10) }}
	d.Open("svg", "role", "img", "aria-label", label, "viewBox", d.Path("0 0 ", width, " ", height), "width", width, "height", height)
	return d
}

func end(d *svg.Drawing) string {
	d.WriteString("</svg>\n")
	return d.String()
}

// caption adds a text to a drawing. The class may be empty.
func caption(d *svg.Drawing, x, y float64, anchor, class, text string) {
	attributes := []any{"x", x, "y", y, "text-anchor", anchor}
	if class != "" {
		attributes = append(attributes, "class", class)
	}
	d.AddText("text", text, attributes...)
}
