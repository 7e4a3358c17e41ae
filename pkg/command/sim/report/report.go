// Package report draws a comparison of policies: one page of HTML that needs
// nothing else, with a table, the distributions of latency, and what each
// function got.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
)

//go:embed page.html
var pageText string

// commonText is what the pages have in common.
//
//go:embed common.html
var commonText string

func pageOf(text string) *template.Template {
	return template.Must(template.Must(template.New("page").Parse(commonText)).Parse(text))
}

var page = pageOf(pageText)

// Comparison is what is drawn: results of the same trace on the same GPUs.
type Comparison struct {
	Setting string // what was simulated on what, in a line
	Results []*sim.Result
}

// Quantiles are those at which the results' curves are to be given.
func Quantiles() []float64 {
	var out []float64
	for i := range 200 {
		out = append(out, float64(i)/200)
	}
	return append(out, 0.997, 0.998, 0.999, 0.9995, 0.9999, 1)
}

// styles tell policies apart: a colour each, then the same colours dashed.
// The colours are those of Okabe and Ito, which most eyes can tell apart.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31"}

var dashes = []string{"", "7 4", "2 3"}

type style struct{ Colour, Dash string }

func styleOf(i int) style {
	return style{colours[i%len(colours)], dashes[i/len(colours)%len(dashes)]}
}

type view struct {
	Setting   string
	Rows      []row
	Curves    template.HTML
	Functions []functionView
	Left      int  // functions that are not shown
	Both      bool // policies with containers, and some with caches of models
}

type row struct {
	style
	*sim.Result
	Cells []string
}

// HTML writes the page. The same results give the same bytes.
func HTML(w io.Writer, c Comparison) error {
	v := view{Setting: c.Setting, Curves: template.HTML(curves(c.Results))}
	for i, r := range c.Results {
		v.Rows = append(v.Rows, row{styleOf(i), r, cells(r)})
		v.Both = v.Both || queue.OneAtATime(r.Policy) != queue.OneAtATime(c.Results[0].Policy)
	}
	v.Functions, v.Left = functions(c.Results, axisOf(curvesOf(c.Results)))
	return page.Execute(w, v)
}

func cells(r *sim.Result) []string {
	l := r.LatencyMS
	return []string{human(l.Mean), human(l.P50), human(l.P95), human(l.P99), human(l.Max), fmt.Sprint(r.ColdStarts), fmt.Sprint(r.HostWarmStarts),
		number.Percent(r.MissRatio, 1), number.Percent(r.GPUUtilization, 1), fmt.Sprint(r.Rejected), human(r.Fairness.MaxGapMS)}
}

// human prints milliseconds for people.
func human(ms float64) string {
	switch {
	case ms >= 1e5:
		return fmt.Sprintf("%.0f s", ms/1e3)
	case ms >= 1e3:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", ms/1e3), ".0") + " s"
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", ms), ".0") + " ms"
}

// mostFunctions is how many functions get bars.
const mostFunctions = 24

type functionView struct {
	Name        string
	Invocations int64
	Bars        []bar
}

// bar is the mean latency of a function under a policy; Width is in percent of
// the axis of the curves.
type bar struct {
	style
	Policy, Text string
	Width        float64
}

// functions are those invoked most, with a bar for each policy.
func functions(results []*sim.Result, a axis) (out []functionView, left int) {
	if len(results) == 0 {
		return nil, 0
	}
	list := slices.Clone(results[0].Functions)
	slices.SortStableFunc(list, func(a, b sim.FunctionResult) int { return int(b.Invocations - a.Invocations) })
	if len(list) > mostFunctions {
		left = len(list) - mostFunctions
		list = list[:mostFunctions]
	}
	means := make([]map[string]float64, len(results))
	for i, r := range results {
		means[i] = map[string]float64{}
		for _, f := range r.Functions {
			means[i][f.Function] = f.MeanMS
		}
	}
	for _, f := range list {
		v := functionView{Name: f.Function, Invocations: f.Invocations}
		for i, r := range results {
			mean := means[i][f.Function]
			v.Bars = append(v.Bars, bar{style: styleOf(i), Policy: r.Policy, Text: human(mean), Width: 100 * a.part(mean)})
		}
		out = append(out, v)
	}
	return out, left
}
