// Package picture draws plans and packings: each GPU as a square of its window ×
// its SMs, each instance as the rectangle it has of it, or the turns of its
// timetable.
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

// footnote says how to read the squares.
func footnote(p plan.Plan) string {
	text := "Each square is one GPU: across, the scheduling window; up, its SMs. A rectangle is what one instance has for itself; hatched is free."
	if p.Model == plan.ModelTokens {
		text = "Each square is one GPU: across, the scheduling window; up, the share of its SMs, whichever they are. An instance may have several turns; hatched is free."
	}
	for _, g := range p.GPUs {
		if len(g.Models) > 0 && g.MemMiB > 0 {
			return text + " The bar below is memory, its dark part weights that instances share."
		}
	}
	return text
}

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

// SVG draws a plan. The same plan gives the same bytes.
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
	number := map[string]int{}
	for i, in := range g.Instances {
		number[in.ID] = i
	}
	for _, entry := range g.Schedule {
		key += fmt.Sprint("|", entry.Duration)
		for _, id := range entry.Instances {
			key += fmt.Sprint(" ", number[id])
		}
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
		switch pg.columns = 3; {
		case n > 60:
			pg.columns = 10
		case n > manyGPUs:
			pg.columns = 6
		case n > 6:
			pg.columns = 4
		}
		// What is left of a square's part of the row decides how it is drawn.
		pg.side = (pageWidth-2*margin+gap)/float64(pg.columns) - axisLeft - gap
		if pg.small() {
			pg.side = (pageWidth-2*margin+gap)/float64(pg.columns) - gap
		}
	}
	pg.width = max(860, 2*margin+float64(pg.columns)*pg.pitch()-gap)
}

// small squares have no scales.
func (pg *page) small() bool { return pg.columns > 4 }

// left is the room for the scale beside a square, below for that below it.
func (pg *page) left() float64 {
	if pg.small() {
		return 0
	}
	return axisLeft
}

func (pg *page) below() float64 {
	if pg.small() {
		return 14
	}
	return axisBottom
}

// pitch is how far apart squares are, across.
func (pg *page) pitch() float64 { return pg.side + pg.left() + gap }

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
			w.y += pg.side + pg.below() + 30 + gap
		}
		pg.panel(pn, margin+pg.left()+float64(column)*pg.pitch(), w.y)
	}
	if len(pg.panels) > 0 {
		w.y += pg.side + pg.below() + 30 + gap
	}
	pg.unplaced()
	w.paragraph(footnote(pg.plan), pg.width-2*margin, smallSize, grey)
}
