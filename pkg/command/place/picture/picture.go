// Package picture draws plans: each GPU as a square of its window × its SMs,
// each instance as the rectangle it has of it.
package picture

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/plan"
)

// Lengths of the page, in pixels.
const (
	margin     = 40.0
	titleSize  = 26.0
	lineHeight = 1.4
	textSize   = 14.0
	smallSize  = 11.0
	axisLeft   = 30.0 // beside a GPU, for its scale of SMs
	axisBottom = 34.0 // below, for the scale of the window and the memory
	gap        = 24.0
	pageWidth  = 1280.0
)

// Up to manyGPUs are drawn one by one; of more, those that look alike are drawn
// once.
const manyGPUs = 24

const footnote = "Each square is one GPU: across, the scheduling window; up, its SMs. A rectangle is what one instance has for itself; hatched is free."

// panel is one square of the page: one GPU, or several that look alike.
type panel struct {
	gpu   plan.GPU
	count int
}

// page is a picture while it is laid out.
type page struct {
	plan      plan.Plan
	functions []string
	panels    []panel
	side      float64 // of a square
	columns   int
	width     float64
	out       writer
}

// SVG draws a plan of the model rect. The same plan gives the same bytes.
func SVG(p plan.Plan) []byte {
	pg := &page{plan: p, functions: functions(p), panels: panels(p.GPUs)}
	pg.arrange()
	pg.body()
	return pg.out.document(pg.width, pg.out.y, summary(p))
}

// functions are those of the demand, and whatever else runs, in their order.
func functions(p plan.Plan) []string {
	var names []string
	seen := map[string]bool{}
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, d := range p.Demand {
		add(d.Function)
	}
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			add(in.Function)
		}
	}
	return names
}

// panels are the GPUs with instances; when there are many, one of each look,
// the most common first.
func panels(gpus []plan.GPU) []panel {
	var out []panel
	at := map[string]int{}
	for _, g := range gpus {
		if len(g.Instances) == 0 {
			continue
		}
		key := look(g)
		i, known := at[key]
		if known && len(gpus) > manyGPUs {
			out[i].count++
			continue
		}
		at[key] = len(out)
		out = append(out, panel{gpu: g, count: 1})
	}
	if len(gpus) > manyGPUs {
		slices.SortStableFunc(out, func(a, b panel) int { return cmp.Compare(b.count, a.count) })
	}
	return out
}

func look(g plan.GPU) string {
	key := fmt.Sprint(g.MemMiB)
	for _, in := range g.Instances {
		key += fmt.Sprintf("|%s %v %v %v %v", in.Function, in.SMPct, in.QuotaRequest, at(in.X), at(in.Y))
	}
	return key
}

func at(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// arrange chooses how large the squares are and how many go in a row.
func (pg *page) arrange() {
	n := max(1, len(pg.panels))
	pg.columns, pg.side = n, 400
	if n > 2 {
		pg.columns = 3
		if n > 6 {
			pg.columns = 4
		}
		pg.side = (pageWidth-2*margin+gap)/float64(pg.columns) - axisLeft - gap
	}
	pg.width = max(860, 2*margin+float64(pg.columns)*(pg.side+axisLeft+gap)-gap)
}

// body draws from top to bottom.
func (pg *page) body() {
	w := &pg.out
	w.y = margin + titleSize
	w.text(margin, w.y, titleSize, "start", ink, "font-weight=\"700\"", headline(pg.plan))
	w.y += textSize + 10
	w.paragraph(summary(pg.plan), pg.width-2*margin, textSize, grey)
	w.y += 2
	pg.legend()
	w.y += 14
	for i, pn := range pg.panels {
		column := i % pg.columns
		if column == 0 && i > 0 {
			w.y += pg.side + axisBottom + 30 + gap
		}
		pg.panel(pn, margin+axisLeft+float64(column)*(pg.side+axisLeft+gap), w.y)
	}
	if len(pg.panels) > 0 {
		w.y += pg.side + axisBottom + 30 + gap
	}
	pg.unplaced()
	w.paragraph(footnote, pg.width-2*margin, smallSize, grey)
}
