package figure

import (
	"math"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
)

// Lengths in the picture, in pixels.
const (
	width     = 760
	margin    = 16
	plotLeft  = margin
	plotRight = width - 120 // the value of a bar is written beside it
	rowHeight = 38
	barHeight = 12
	legend    = 36
	axisSpace = 46
)

const (
	oursColour   = "#56B4E9"
	theirsColour = "#D55E00"
)

// SVG returns a picture of the rows: a bar for each result, and a mark for the published figure.
// Rows with the same unit that follow each other share an axis.
func SVG(title string, rows []Row) string {
	var groups [][]Row
	for _, r := range rows {
		if last := len(groups) - 1; last < 0 || groups[last][0].Unit != r.Unit {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], r)
	}
	height := float64(2*margin + legend + rowHeight*len(rows) + axisSpace*len(groups))
	d := &svg.Drawing{}
	d.Open("svg", "xmlns", "http://www.w3.org/2000/svg", "viewBox", d.Path("0 0 ", width, " ", height), "width", width, "height", height,
		"font-family", "sans-serif", "font-size", 12, "role", "img", "aria-label", title)
	d.WriteByte('\n')
	d.Add("rect", "width", width, "height", height, "fill", "#ffffff")
	d.AddText("text", title, "x", margin, "y", margin+8, "font-size", 15, "font-weight", "bold")
	d.Add("rect", "x", margin, "y", margin+18, "width", 18, "height", 10, "fill", oursColour)
	d.AddText("text", "ours", "x", margin+24, "y", margin+27)
	d.Add("path", "d", d.Marker(svg.Diamond, margin+76, margin+23, 1.6), "fill", theirsColour)
	d.AddText("text", "published", "x", margin+86, "y", margin+27)
	d.WriteByte('\n')
	y := float64(margin + legend)
	for _, group := range groups {
		y = drawGroup(d, group, y)
	}
	d.Close("svg")
	d.WriteByte('\n')
	return d.String()
}

// drawGroup draws rows with one axis from y downwards, and returns the y below them.
func drawGroup(d *svg.Drawing, rows []Row, y float64) float64 {
	a := axisOf(rows)
	bottom := y + float64(rowHeight*len(rows)) + 8
	for _, v := range a.ticks() {
		d.Add("line", "x1", a.x(v), "x2", a.x(v), "y1", y, "y2", bottom, "stroke", "#dddddd")
		d.AddText("text", rows[0].WithUnit(v), "x", a.x(v), "y", bottom+14, "text-anchor", "middle", "fill", "#555555")
	}
	if a.log {
		d.AddText("text", "logarithmic", "x", width-margin, "y", bottom+14, "text-anchor", "end", "fill", "#555555")
	}
	d.WriteByte('\n')
	for _, r := range rows {
		drawRow(d, a, r, y)
		y += rowHeight
	}
	return bottom + axisSpace - 8
}

func drawRow(d *svg.Drawing, a axis, r Row, y float64) {
	d.Open("g")
	tip := r.Figure + ", " + r.Quantity + ": ours " + r.WithUnit(r.Ours)
	if r.Theirs.Text != "" {
		tip += ", published " + r.Published()
	}
	d.AddText("title", tip)
	d.AddText("text", r.Figure+": "+r.Quantity, "x", plotLeft, "y", y+16)
	top := y + 21
	zero, end := a.x(a.origin()), a.x(r.Ours)
	d.Add("rect", "x", math.Min(zero, end), "y", top, "width", math.Abs(end-zero), "height", barHeight, "fill", oursColour)
	right := math.Max(zero, end)
	marks := r.Theirs.ends()
	if len(marks) == 2 {
		d.Add("line", "x1", a.x(marks[0]), "x2", a.x(marks[1]), "y1", top+barHeight/2, "y2", top+barHeight/2, "stroke", theirsColour, "stroke-width", 2)
	}
	for _, v := range marks {
		d.Add("path", "d", d.Marker(svg.Diamond, a.x(v), top+barHeight/2, 1.6), "fill", theirsColour)
		right = math.Max(right, a.x(v)+6)
	}
	d.AddText("text", r.WithUnit(r.Ours), "x", right+6, "y", top+10)
	d.Close("g")
	d.WriteByte('\n')
}

// axis is the common axis of some rows. It is logarithmic if all values are positive and differ by
// a large factor.
type axis struct {
	low, high float64
	log       bool
}

// largeFactor is the factor between values from which an axis is logarithmic.
const largeFactor = 30

func axisOf(rows []Row) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range rows {
		for _, v := range append(r.Theirs.ends(), r.Ours) {
			low, high = math.Min(low, v), math.Max(high, v)
		}
	}
	if low > 0 && high/low > largeFactor {
		return axis{math.Pow(10, math.Floor(math.Log10(low)*2)/2), high, true}
	}
	a := axis{low: math.Min(low, 0), high: math.Max(high, 0)}
	if a.low == a.high {
		a.high = 1
	}
	return a
}

// origin returns the value at which bars begin.
func (a axis) origin() float64 {
	if a.log {
		return a.low
	}
	return 0
}

func (a axis) x(v float64) float64 {
	fraction := (v - a.low) / (a.high - a.low)
	if a.log {
		fraction = math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return plotLeft + 30 + fraction*(plotRight-plotLeft-30)
}

// ticks returns round values on the axis.
func (a axis) ticks() (values []float64) {
	if a.log {
		for v := math.Pow(10, math.Ceil(math.Log10(a.low)-1e-9)); v <= a.high*(1+1e-9); v *= 10 {
			values = append(values, v)
		}
		return values
	}
	step := math.Pow(10, math.Floor(math.Log10(a.high-a.low)))
	if (a.high-a.low)/step < 2.5 {
		step /= 2
	}
	if (a.high-a.low)/step > 6 {
		step *= 2
	}
	for v := math.Ceil(a.low/step-1e-9) * step; v <= a.high+step*1e-9; v += step {
		clean := v
		if number.Short(v) == "-0" || math.Abs(v) < step*1e-9 {
			clean = 0
		}
		values = append(values, clean)
	}
	return values
}
