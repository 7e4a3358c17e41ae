// Package report renders comparisons of policies and predictions for plans as self-contained HTML
// pages. HTML writes a comparison: a table, the distributions of latency, and the latencies of
// functions. PredictionHTML writes a prediction. Both need no script and no other file;
// pkg/command/sim calls them.
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
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/sim"
)

//go:embed page.html
var pageText string

// commonText holds the common parts of the pages.
//
//go:embed common.html
var commonText string

// maxSeries is the limit on the curves in a picture. It suffices for all policies, and for
// mostFunctions.
const maxSeries = 64

// pageOf returns the template of a page with curves. The reader can hide curves without a script.
func pageOf(text string) *template.Template {
	return page.Template(commonText+text, template.FuncMap{"toggles": func() template.CSS {
		var b strings.Builder
		for i := range maxSeries {
			fmt.Fprintf(&b, "body:has(#%s:not(:checked)) .%[1]s-curve { display: none; }\n", styleOf(i).ID)
		}
		return template.CSS(b.String())
	}})
}

var comparison = pageOf(pageText)

// Comparison describes results of the same trace on the same GPUs.
type Comparison struct {
	Setting string // the simulation, in one line
	Results []*sim.Result
}

// Quantiles returns the quantiles at which results must have their curves.
func Quantiles() []float64 {
	var quantiles []float64
	for i := range 200 {
		quantiles = append(quantiles, float64(i)/200)
	}
	return append(quantiles, 0.997, 0.998, 0.999, 0.9995, 0.9999, 1)
}

// colours, dashes and markers distinguish policies. The colours are those of Okabe and Ito, which
// most people can distinguish. Further curves repeat the colours with dashes.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "currentColor", "#8c6d31"}

var dashes = []string{"", "7 4", "2 3"}

// style describes how to draw the curve with that number.
type style struct {
	number           int
	ID, Colour, Dash string
	Marker           string // path data, for the legend
}

func styleOf(i int) style {
	var d svg.Drawing
	s := style{number: i, ID: fmt.Sprint("s", i), Colour: colours[i%len(colours)], Dash: dashes[i/len(colours)%len(dashes)]}
	s.Marker = d.Marker(s.shape(), 13, 5, 1.2)
	return s
}

// shape returns the shape of the curve's markers.
func (s style) shape() int { return s.number + s.number/len(colours) }

type view struct {
	Setting   string
	Winners   []string // sentences about the lowest latencies
	Rows      []row
	Curves    template.HTML
	Same      []string // sentences about overlapping curves
	Functions []functionView
	Omitted   int  // number of omitted functions
	Both      bool // some policies have instances, others caches of models
}

type row struct {
	style
	*sim.Result
	Cells []string
}

// Name returns the name in the legend.
func (r row) Name() string { return r.Policy }

// HTML writes the page. It is deterministic.
func HTML(w io.Writer, c Comparison) error {
	a := axisOf(lists.Map(c.Results, func(r *sim.Result) []float64 { return r.Curve }))
	v := view{Setting: c.Setting, Winners: winners(c.Results), Curves: template.HTML(curves(c.Results, a)), Same: same(c.Results, a)}
	for i, r := range c.Results {
		v.Rows = append(v.Rows, row{styleOf(i), r, cells(r)})
		v.Both = v.Both || queue.OneAtATime(r.Policy) != queue.OneAtATime(c.Results[0].Policy)
	}
	v.Functions, v.Omitted = functions(c.Results, a)
	return comparison.ExecuteTemplate(w, "page", v)
}

func cells(r *sim.Result) []string {
	l := r.LatencyMS
	return []string{formatMS(l.Mean), formatMS(l.P50), formatMS(l.P95), formatMS(l.P99), formatMS(l.Max), fmt.Sprint(r.ColdStarts), fmt.Sprint(r.HostWarmStarts),
		number.Percent(r.MissRatio, 1), number.Percent(r.GPUUtilization, 1), fmt.Sprint(r.Rejected), formatMS(r.Fairness.MaxGapMS)}
}

// human formats milliseconds for people.
func formatMS(ms float64) string {
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

// maxFunctions is the limit on functions with bars.
const maxFunctions = 24

type functionView struct {
	Name        string
	Invocations int64
	Bars        []bar
}

// bar is the mean latency of a function under a policy. Width is its position on the axis of the
// curves, in percent.
type bar struct {
	style
	Policy, Text string
	Width        float64
}

// functions returns the functions with the most invocations, with a bar for each policy, and the
// number of the others.
func functions(results []*sim.Result, a axis) (views []functionView, omitted int) {
	if len(results) == 0 {
		return nil, 0
	}
	list := slices.Clone(results[0].Functions)
	slices.SortStableFunc(list, func(a, b sim.FunctionResult) int { return int(b.Invocations - a.Invocations) })
	if len(list) > maxFunctions {
		omitted = len(list) - maxFunctions
		list = list[:maxFunctions]
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
			v.Bars = append(v.Bars, bar{style: styleOf(i), Policy: r.Policy, Text: formatMS(mean), Width: 100 * a.fraction(mean)})
		}
		views = append(views, v)
	}
	return views, omitted
}
