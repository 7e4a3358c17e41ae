package report

import (
	_ "embed"
	"html/template"
	"io"

	"github.com/gfaas/gfaas/pkg/number"
)

//go:embed prediction.html
var predictionText string

var predictionPage = pageOf(predictionText)

// Prediction describes the predicted latencies of a plan.
type Prediction struct {
	Setting   string // the arrivals, in one line
	Functions []FunctionPrediction
}

// FunctionPrediction is the prediction for one function.
type FunctionPrediction struct {
	Function  string    `json:"function"`
	RPS       float64   `json:"rps"`
	SLOMS     float64   `json:"slo_ms"` // 0 means no objective
	P50MS     float64   `json:"p50_ms"`
	P95MS     float64   `json:"p95_ms"`
	P99MS     float64   `json:"p99_ms"`
	Within    float64   `json:"within"`     // fraction of the requests within the objective
	ServedRPS float64   `json:"served_rps"` // answers per second up to the last request of any function
	Missed    bool      `json:"-"`          // misses its objective, or is not served
	Curve     []float64 `json:"-"`          // latencies in ms at Quantiles; nil if not served
}

type predictionView struct {
	style
	FunctionPrediction
	Cells []string
}

// Name returns the name in the legend.
func (k predictionView) Name() string { return k.Function }

// PredictionHTML writes a page with a table and the distributions of latency, with each function's
// objective marked. It is deterministic.
func PredictionHTML(w io.Writer, p Prediction) error {
	v := struct {
		Setting string
		Rows    []predictionView
		Shown   []predictionView // functions with a curve
		Curves  template.HTML
		Omitted int
	}{Setting: p.Setting}
	shown := min(len(p.Functions), maxFunctions)
	v.Omitted = len(p.Functions) - shown
	v.Curves = template.HTML(predictionCurves(p.Functions[:shown]))
	for i, f := range p.Functions {
		objective := "none"
		if f.SLOMS > 0 {
			objective = formatMS(f.SLOMS)
		}
		row := predictionView{styleOf(i), f, []string{number.Trimmed(f.RPS, 3), objective, formatMS(f.P50MS), formatMS(f.P95MS), formatMS(f.P99MS), number.Percent(f.Within, 2)}}
		if f.Curve == nil {
			row.Cells = []string{number.Trimmed(f.RPS, 3), objective, "", "", "", "not served"}
		}
		v.Rows = append(v.Rows, row)
	}
	v.Shown = v.Rows[:shown]
	return predictionPage.ExecuteTemplate(w, "page", v)
}

// predictionCurves draws the distribution of latency for each function, and a mark where its
// objective crosses 95%.
func predictionCurves(functions []FunctionPrediction) string {
	var curves [][]float64
	for _, f := range functions {
		if f.SLOMS > 0 {
			curves = append(curves, f.Curve, []float64{f.SLOMS})
		} else {
			curves = append(curves, f.Curve)
		}
	}
	a := axisOf(curves)
	drawing := newDrawing("Distributions of latency with the objectives", a, "requests")
	for i, f := range functions {
		s := styleOf(i)
		s.openGroup(drawing, f.Function)
		s.drawCurve(drawing, a, f.Curve)
		if f.SLOMS > 0 {
			x := a.x(f.SLOMS)
			drawing.AddTitled("line", f.Function+": objective "+formatMS(f.SLOMS), "x1", x, "x2", x, "y1", y(1), "y2", y(0), "stroke", s.Colour, "stroke-width", 1, "stroke-dasharray", "2 4")
			drawing.AddTitled("circle", f.Function+": objective, 95% of the requests within "+formatMS(f.SLOMS), "cx", x, "cy", y(0.95), "r", 4, "fill", "var(--paper)", "stroke", s.Colour, "stroke-width", 2)
		}
		s.closeGroup(drawing)
	}
	drawing.Close("svg")
	return drawing.String()
}
