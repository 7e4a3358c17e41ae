package picture

import (
	"fmt"
	"html/template"

	htmlpage "github.com/gfaas/gfaas/pkg/command/page"
	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// Definitions returns the SVG definitions that GPU and Swatch refer to. A page must contain them once, before
// the first drawing.
func Definitions() string {
	return `<svg width="0" height="0" style="position:absolute" aria-hidden="true">` + definitions + "</svg>\n"
}

// GPU draws one GPU of a plan for use in another page: a square without scales and, if the memory is limited
// and known, a bar of it below.
func GPU(p plan.Plan, g plan.GPU, side float64) string {
	pg := &page{functions: functions(p), side: side, bare: true}
	pg.square(g, 1, 1)
	height := side + 2
	if showsMemory([]plan.GPU{g}) {
		pg.memory(g, 1, side+6)
		height += 14
	}
	return figure(side+2, height, fmt.Sprintf("%s on a GPU, %s of it allocated", number.Count(len(g.Instances), "instance"), number.Percent(area(g), 0)), pg.out.String())
}

// Panel is a picture of a GPU, or of several GPUs with the same layout.
type Panel struct {
	Picture template.HTML
	Caption string
}

// Panels returns pictures of the GPUs in use: one per GPU or, for more than manyGPUs, one per layout, the most
// frequent first.
func Panels(p plan.Plan, side float64) (pictures []Panel) {
	for _, l := range panels(p.GPUs) {
		pictures = append(pictures, Panel{template.HTML(GPU(p, l.GPU, side)), l.names()[0] + ", " + number.Percent(area(l.GPU), 0) + " allocated"})
	}
	return pictures
}

// Swatch draws the mark that GPU uses for the i-th function of the plan's demand.
func Swatch(i int) string {
	var w writer
	w.swatch(0, 0, i)
	return figure(swatch, swatch, fmt.Sprintf("colour %d", i+1), w.String())
}

// Marked returns a table of the functions in the plan's order, with their marks in the first column. The first row is the
// heading.
func Marked(rows [][]string) htmlpage.Table {
	t := htmlpage.TableOf(rows)
	t.Head = append([]string{""}, t.Head...)
	for i, row := range t.Rows {
		t.Rows[i] = append([]any{template.HTML(Swatch(i))}, row...)
	}
	return t
}

func figure(width, height float64, label, content string) string {
	var d svg.Drawing
	d.Open("svg", "class", "gpu", "role", "img", "aria-label", label, "viewBox", d.Path("0 0 ", width, " ", height), "width", width, "height", height)
	d.WriteString("\n" + content + "</svg>\n")
	return d.String()
}
