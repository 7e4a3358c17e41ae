package report

import (
	"html/template"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
)

// legend is a list of symbols with their meaning.
type legend struct{ svg.Drawing }

// entry adds a symbol, which draw draws in an area of 26 × 14 pixels with the centre (13, 7), and its meaning.
func (l *legend) entry(meaning string, draw func(b *svg.Drawing)) {
	l.WriteString("<span>")
	l.Open("svg", "width", 26, "height", 14, "aria-hidden", "true")
	draw(&l.Drawing)
	l.WriteString("</svg> ")
	l.WriteString(template.HTMLEscapeString(meaning))
	l.WriteString("</span>")
}

// stroke returns a function that draws a path with a class of the style sheet.
func stroke(class, path string) func(b *svg.Drawing) {
	return func(b *svg.Drawing) { b.Add("path", "class", class, "d", path) }
}

// mark returns a function that draws a marker of a shape, with a class of the style sheet.
func mark(class string, shape int) func(b *svg.Drawing) {
	return func(b *svg.Drawing) { b.Add("path", "class", class, "d", b.Marker(shape, 13, 7, 1.2)) }
}

// ring draws the ring around the chosen configuration or around the goodput.
func ring(b *svg.Drawing) { b.Add("circle", "class", "chosen", "cx", 13, "cy", 7, "r", 5) }

func (l *legend) html() template.HTML { return template.HTML(l.String()) }

// curveKey returns the legend of the curves.
func (s Section) curveKey() template.HTML {
	var l legend
	for i, batch := range s.batches() {
		l.entry("batch "+number.Plain(batch), func(b *svg.Drawing) {
			b.Add("path", "class", "line "+line(i), "d", "M0 7H26")
			b.Add("path", "class", line(i), "d", b.Marker(i, 13, 7, 1))
		})
	}
	if s.Choice.OK {
		l.entry("chosen configuration", ring)
	}
	return l.html()
}

// loadKey returns the legend of the charts of latency over load.
func (v sectionView) loadKey() template.HTML {
	var l legend
	l.entry("p95 of single requests at rest", mark("within", svg.Diamond))
	l.entry("goodput", ring)
	l.entry("objective", stroke("slo", "M0 7H26"))
	l.entry("measured throughput", stroke("most", "M13 0V14"))
	l.entry("model: queue with this latency at rest and this goodput", stroke("queue", "M0 7H26"))
	if v.Tried {
		l.entry("trial within the objective", mark("within", svg.Circle))
		l.entry("trial that missed it (at the upper edge: more than 5% of the requests failed)", mark("over", svg.Triangle))
	}
	return l.html()
}

// heatKey returns the legend of the marks in the heat maps.
func (v sectionView) heatKey() template.HTML {
	var l legend
	if v.Choice.OK {
		l.entry("chosen configuration", func(b *svg.Drawing) {
			b.Add("rect", "class", "chosen", "x", 3, "y", 2, "width", 20, "height", 10)
		})
	}
	if v.Goal.SLOMS > 0 {
		l.entry("misses the objective", stroke("miss", "M3 12L23 2"))
	}
	l.entry("not measured", func(b *svg.Drawing) {
		b.Add("rect", "class", "hole", "x", 3, "y", 2, "width", 20, "height", 10)
	})
	return l.html()
}
