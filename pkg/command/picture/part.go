package picture

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// Definitions is what GPU and Swatch refer to. A page that has some of them
// needs it once, before them.
func Definitions() string {
	return `<svg width="0" height="0" style="position:absolute" aria-hidden="true">` + definitions + "</svg>\n"
}

// GPU draws one GPU of a plan for a page of others: a square without scales,
// and a bar of its memory below where that is limited and known.
func GPU(p plan.Plan, g plan.GPU, side float64) string {
	pg := &page{functions: functions(p), side: side, bare: true}
	pg.square(g, 1, 1)
	height := side + 2
	if showsMemory([]plan.GPU{g}) {
		pg.memory(g, 1, side+6)
		height += 14
	}
	return figure(side+2, height, fmt.Sprintf("%s on a GPU, %s of it in use", cli.Count(len(g.Instances), "instance"), number.Percent(area(g), 0)), pg.out.String())
}

// Part is a GPU of a plan for a page of others, or several that look alike.
type Part struct{ Picture, Caption string }

// Parts are the GPUs of a plan that host something: one by one, or, of many, one
// of each look, the most common first.
func Parts(p plan.Plan, side float64) (out []Part) {
	for _, pn := range panels(p.GPUs) {
		out = append(out, Part{GPU(p, pn.gpu, side), pn.names()[0] + ", " + number.Percent(area(pn.gpu), 0) + " in use"})
	}
	return out
}

// Swatch is the mark that GPU gives the function that is the i-th of the
// plan's demand.
func Swatch(i int) string {
	var w writer
	w.swatch(0, 0, i)
	return figure(swatch, swatch, fmt.Sprintf("colour %d", i+1), w.String())
}

func figure(width, height float64, label, content string) string {
	var d svg.Drawing
	d.Open("svg", "class", "gpu", "role", "img", "aria-label", label, "viewBox", d.Path("0 0 ", width, " ", height), "width", width, "height", height)
	d.WriteString("\n" + content + "</svg>\n")
	return d.String()
}

// Look is a GPU and how many of the plan look like it.
type Look struct {
	GPU   plan.GPU
	Count int
}

// Looks are the GPUs of a plan that host something, one of each look, the most
// common first.
func Looks(p plan.Plan) (out []Look) {
	at := map[string]int{}
	for _, g := range p.GPUs {
		if len(g.Instances) == 0 {
			continue
		}
		key := look(g)
		i, known := at[key]
		if !known {
			i, at[key] = len(out), len(out)
			out = append(out, Look{GPU: g})
		}
		out[i].Count++
	}
	slices.SortStableFunc(out, func(a, b Look) int { return cmp.Compare(b.Count, a.Count) })
	return out
}
