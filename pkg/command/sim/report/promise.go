package report

import (
	_ "embed"
	"html/template"
	"io"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
)

//go:embed promise.html
var promiseText string

var promisePage = pageOf(promiseText)

// Promise is what the functions of a plan keep.
type Promise struct {
	Setting   string // how requests came, in a line
	Functions []Kept
}

// Kept is what one function keeps of its objective.
type Kept struct {
	Function            string
	RPS, SLOMS          float64 // SLOMS 0 is no objective
	P50MS, P95MS, P99MS float64
	Within              float64   // part of the requests
	Missed              bool      // the objective, or all requests
	Curve               []float64 // latencies in ms at Quantiles; nil where nothing serves it
}

type keptView struct {
	style
	Kept
	Cells []string
}

// Name is what the legend calls the function.
func (k keptView) Name() string { return k.Function }

// PromiseHTML writes a page with a table and the distributions of latency, each
// function's objective marked. The same promise gives the same bytes.
func PromiseHTML(w io.Writer, p Promise) error {
	v := struct {
		Setting string
		Rows    []keptView
		Shown   []keptView // those with a curve
		Curves  template.HTML
		Left    int
	}{Setting: p.Setting}
	shown := min(len(p.Functions), mostFunctions)
	v.Left = len(p.Functions) - shown
	v.Curves = template.HTML(promiseCurves(p.Functions[:shown]))
	for i, f := range p.Functions {
		objective := "none"
		if f.SLOMS > 0 {
			objective = human(f.SLOMS)
		}
		row := keptView{styleOf(i), f, []string{number.Trimmed(f.RPS, 3), objective, human(f.P50MS), human(f.P95MS), human(f.P99MS), number.Percent(f.Within, 2)}}
		if f.Curve == nil {
			row.Cells = []string{number.Trimmed(f.RPS, 3), objective, "", "", "", "not served"}
		}
		v.Rows = append(v.Rows, row)
	}
	v.Shown = v.Rows[:shown]
	return promisePage.ExecuteTemplate(w, "page", v)
}

// promiseCurves draws for each function which part of the requests took at most
// how long, and a mark where its objective crosses 95%.
func promiseCurves(functions []Kept) string {
	out := svg.Drawing{Length: pixels}
	var all [][]float64
	for _, f := range functions {
		if f.SLOMS > 0 {
			all = append(all, f.Curve, []float64{f.SLOMS})
		} else {
			all = append(all, f.Curve)
		}
	}
	a := axisOf(all)
	out.Open("svg", "viewBox", out.Path("0 0 ", width, " ", height), "role", "img", "aria-label", "Distributions of latency with the objectives")
	out.WriteByte('\n')
	grid(&out, a, "requests")
	for i, f := range functions {
		s := styleOf(i)
		s.begin(&out, f.Function)
		s.line(&out, a, f.Curve)
		if f.SLOMS > 0 {
			x := a.x(f.SLOMS)
			out.AddTitled("line", f.Function+": objective "+human(f.SLOMS), "x1", x, "x2", x, "y1", y(1), "y2", y(0), "stroke", s.Colour, "stroke-width", 1, "stroke-dasharray", "2 4")
			out.AddTitled("circle", f.Function+": 95% within "+human(f.SLOMS), "cx", x, "cy", y(0.95), "r", 4, "fill", "var(--paper)", "stroke", s.Colour, "stroke-width", 2)
		}
		s.end(&out)
	}
	out.Close("svg")
	return out.String()
}
