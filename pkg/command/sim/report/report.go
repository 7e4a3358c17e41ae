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

	"github.com/gfaas/gfaas/pkg/command/page"
	"github.com/gfaas/gfaas/pkg/command/svg"
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

// mostSeries is how many curves a picture may have: as many as there are
// functions that get one, or policies.
const mostSeries = 64

// pageOf is a page of curves. A script is not needed to take some away.
func pageOf(text string) *template.Template {
	return page.Template(commonText+text, template.FuncMap{"toggles": func() template.CSS {
		var b strings.Builder
		for i := range mostSeries {
			fmt.Fprintf(&b, "body:has(#%s:not(:checked)) .%[1]s-curve { display: none; }\n", styleOf(i).ID)
		}
		return template.CSS(b.String())
	}})
}

var comparison = pageOf(pageText)

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

// colours, dashes and markers tell policies apart. The colours are those of Okabe
// and Ito, which most eyes can tell apart; after them come the same colours dashed.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "currentColor", "#8c6d31"}

var dashes = []string{"", "7 4", "2 3"}

// style is how the i-th curve is drawn.
type style struct {
	number           int
	ID, Colour, Dash string
	Marker           string // data of a path, for a key
}

func styleOf(i int) style {
	var d svg.Drawing
	s := style{number: i, ID: fmt.Sprint("s", i), Colour: colours[i%len(colours)], Dash: dashes[i/len(colours)%len(dashes)]}
	s.Marker = d.Marker(s.kind(), 13, 5, 1.2)
	return s
}

// kind is that of the curve's markers.
func (s style) kind() int { return s.number + s.number/len(colours) }

type view struct {
	Setting   string
	Rows      []row
	Curves    template.HTML
	Same      []string // which curves lie on each other
	Functions []functionView
	Left      int  // functions that are not shown
	Both      bool // policies with containers, and some with caches of models
}

type row struct {
	style
	*sim.Result
	Cells []string
}

// Name is what the legend calls the row.
func (r row) Name() string { return r.Policy }

// HTML writes the page. The same results give the same bytes.
func HTML(w io.Writer, c Comparison) error {
	v := view{Setting: c.Setting, Curves: template.HTML(curves(c.Results)), Same: same(c.Results, axisOf(curvesOf(c.Results)))}
	for i, r := range c.Results {
		v.Rows = append(v.Rows, row{styleOf(i), r, cells(r)})
		v.Both = v.Both || queue.OneAtATime(r.Policy) != queue.OneAtATime(c.Results[0].Policy)
	}
	v.Functions, v.Left = functions(c.Results, axisOf(curvesOf(c.Results)))
	return comparison.ExecuteTemplate(w, "page", v)
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
