// Package picture draws plans and packings as SVG. SVG draws a plan as a page, GPU and Panels draw parts of it
// for other pages, and Bins.SVG draws a packing. The commands gfaas-place and gfaas-profile use it.
//
// A GPU is a square: the scheduling window across, the SMs up. An instance is one rectangle in it, or one
// rectangle for each turn of its timetable. All results are deterministic.
package picture

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// Lengths of the page, in pixels.
const (
	margin     = 40.0
	titleSize  = 26.0
	lineHeight = 1.4
	textSize   = 14.0
	smallSize  = 11.0
	axisLeft   = 46.0 // scale of SMs, left of a square
	axisBottom = 34.0 // scale of the window, below a square
	barHeight  = 14.0 // bar of the memory, below that scale
	headHeight = 26.0 // caption, above a square
	gap        = 24.0
	oneSide    = 520.0 // side of the square on a page with one GPU
	twoSide    = 400.0 // on a page with two GPUs
	pageWidth  = 1280.0
)

// manyGPUs is the largest number of GPUs that are drawn individually. If there are more, GPUs with the same
// layout are drawn once.
const manyGPUs = 24

// Footnote explains the squares.
func Footnote(p plan.Plan) string {
	text := "Each square is a GPU. Horizontal axis: time in a scheduling window. Vertical axis: SMs. A rectangle is allocated to one instance; hatched areas are free."
	if p.Model == plan.ModelTokens {
		text = "Each square is a GPU. Horizontal axis: time in a scheduling window. Vertical axis: share of the SMs, not particular SMs. A rectangle is a turn of an instance, which may have several turns; hatched areas are free."
	}
	switch {
	case slices.ContainsFunc(p.GPUs, func(g plan.GPU) bool { return len(g.Models) > 0 && g.MemMiB > 0 }):
		text += " The bar below a square is the allocated memory; its dark part is weights that instances share."
	case showsMemory(p.GPUs):
		text += " The bar below a square is the allocated memory."
	}
	return text
}

// showsMemory reports whether a GPU's memory is limited and its allocation is known.
func showsMemory(gpus []plan.GPU) bool {
	return slices.ContainsFunc(gpus, func(g plan.GPU) bool { return g.MemMiB > 0 && allocated(g) > 0 })
}

// allocated returns the memory of the instances and of the weights that they share, in MiB.
func allocated(g plan.GPU) (mib float64) {
	for _, in := range g.Instances {
		mib += in.MemMiB
	}
	return mib + weights(g)
}

func weights(g plan.GPU) (mib float64) {
	for _, m := range g.Models {
		mib += m.MemMiB
	}
	return mib
}

// Layout is a GPU in use, or one of several with the same layout.
type Layout struct {
	GPU   plan.GPU
	Count int // GPUs with this layout
}

// page holds the layout of a picture.
type page struct {
	plan      plan.Plan
	functions []string
	panels    []Layout // one for each square
	side      float64  // of a square
	columns   int
	bare      bool // no scales
	memories  bool // squares have a memory bar
	width     float64
	out       writer
}

// SVG draws a plan as a page. The result is deterministic.
func SVG(p plan.Plan) []byte {
	pg := &page{plan: p, functions: functions(p), panels: panels(p.GPUs), memories: showsMemory(p.GPUs)}
	pg.arrange()
	pg.body()
	return pg.out.document(pg.width, pg.out.y, summary(p))
}

// functions returns the functions of the demand, followed by other functions with instances, in the plan's
// order.
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

// Layouts returns one GPU of each layout in the plan, the most frequent first. It omits unused GPUs.
func Layouts(p plan.Plan) []Layout { return layouts(p.GPUs, true) }

// panels returns the GPUs in use: each of them or, for more than manyGPUs, one per layout, the most frequent
// first.
func panels(gpus []plan.GPU) []Layout { return layouts(gpus, len(gpus) > manyGPUs) }

// layouts returns the GPUs in use. If merge is true, it returns GPUs with the same layout once, the most
// frequent layout first.
func layouts(gpus []plan.GPU, merge bool) (out []Layout) {
	index := map[string]int{} // in out
	for _, g := range gpus {
		if len(g.Instances) == 0 {
			continue
		}
		key := layoutKey(g)
		if i, known := index[key]; known && merge {
			out[i].Count++
			continue
		}
		index[key] = len(out)
		out = append(out, Layout{g, 1})
	}
	if merge {
		slices.SortStableFunc(out, func(a, b Layout) int { return cmp.Compare(b.Count, a.Count) })
	}
	return out
}

// layoutKey returns a text that is the same for GPUs with the same layout.
func layoutKey(g plan.GPU) string {
	key := fmt.Sprint(g.MemMiB)
	for _, in := range g.Instances {
		key += fmt.Sprintf("|%s %v %v %v %v", in.Function, in.SMPct, in.QuotaRequest, orZero(in.X), orZero(in.Y))
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

func orZero(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// arrange chooses the size of the squares and their number per row. It leaves few gaps in the last row.
func (pg *page) arrange() {
	n := max(1, len(pg.panels))
	switch {
	case n <= 2:
		pg.columns, pg.side = n, twoSide
		if n == 1 {
			pg.side = oneSide
		}
	case n <= manyGPUs:
		pg.columns = 4
		if unused := func(columns int) int { return (columns - n%columns) % columns }; unused(3) < unused(4) {
			pg.columns = 3
		}
	case n <= 60:
		pg.columns, pg.bare = 6, true
	default:
		pg.columns, pg.bare = 10, true
	}
	if n > 2 { // a row has the same width for any number of columns
		pg.side = (pageWidth-2*margin+gap)/float64(pg.columns) - pg.leftMargin() - gap
	}
	pg.width = 2*margin + float64(pg.columns)*pg.pitch() - gap
}

// leftMargin returns the width of the scale left of a square.
func (pg *page) leftMargin() float64 {
	if pg.bare {
		return 0
	}
	return axisLeft
}

// pitch returns the horizontal distance between squares; rowHeight returns the vertical distance.
func (pg *page) pitch() float64 { return pg.side + pg.leftMargin() + gap }

func (pg *page) rowHeight() float64 {
	height := headHeight + pg.side + gap
	if !pg.bare {
		height += axisBottom
	}
	if pg.memories {
		height += barHeight
	}
	return height
}

// body draws the page from top to bottom.
func (pg *page) body() {
	w := &pg.out
	w.y = margin + titleSize
	w.title(Headline(pg.plan), pg.width-2*margin)
	w.paragraph(summary(pg.plan), pg.width-2*margin, textSize, grey)
	w.y += 2
	pg.legend()
	w.y += 14
	for i, l := range pg.panels {
		column := i % pg.columns
		if column == 0 && i > 0 {
			w.y += pg.rowHeight()
		}
		pg.panel(l, margin+pg.leftMargin()+float64(column)*pg.pitch(), w.y)
	}
	if len(pg.panels) > 0 {
		w.y += pg.rowHeight()
	}
	pg.unplaced()
	w.paragraph(Footnote(pg.plan), pg.width-2*margin, smallSize, grey)
}

// legend draws an entry for each function: its number, colour and rates.
func (pg *page) legend() {
	w := &pg.out
	if len(pg.functions) == 0 {
		return
	}
	served := map[string]string{}
	for _, d := range pg.plan.Demand {
		served[d.Function] = number.Trimmed(d.RPS, 1) + " rps"
		if d.ServedRPS < d.RPS*(1-1e-6) {
			served[d.Function] = fmt.Sprintf("%s of %s rps", number.Trimmed(d.ServedRPS, 1), number.Trimmed(d.RPS, 1))
		}
	}
	widest := 0.0
	labels := make([]string, len(pg.functions))
	for i, name := range pg.functions {
		labels[i] = strings.TrimSpace(name + "  " + served[name])
		widest = max(widest, textWidth(labels[i], textSize))
	}
	room := pg.width - 2*margin
	columns := min(max(1, int((room+16)/(swatch+8+widest+16))), len(labels))
	pitch := (room + 16) / float64(columns)
	for i, label := range labels {
		column := i % columns
		if column == 0 && i > 0 {
			w.y += swatch + 8
		}
		x := margin + float64(column)*pitch
		w.swatch(x, w.y, i)
		name := pg.functions[i]
		w.Open("text", "x", x+swatch+8, "y", w.y+15, "font-size", textSize, "fill", ink)
		w.AddText("tspan", clip(name, pitch-swatch-8-16-textWidth(strings.TrimPrefix(label, name), textSize), textSize), "font-weight", 600)
		w.AddText("tspan", strings.TrimSpace(strings.TrimPrefix(label, name)), "dx", 8, "fill", grey)
		w.WriteString("</text>\n")
	}
	w.y += swatch + 8
}

// unplaced lists the unserved demand, wrapped to the width of the page.
func (pg *page) unplaced() {
	w := &pg.out
	if len(pg.plan.Unplaced) == 0 {
		return
	}
	w.text(margin, w.y, textSize, "start", alarm, `font-weight="700"`, "Not placed")
	w.y += 22
	for _, u := range pg.plan.Unplaced {
		for i, row := range wrap(fmt.Sprintf("%s, %s rps: %s", u.Function, number.Trimmed(u.RPS, 1), u.Reason), pg.width-2*margin-16, textSize) {
			x := margin
			if i > 0 {
				x += 16
			}
			w.text(x, w.y, textSize, "start", ink, "", row)
			w.y += 20
		}
	}
	w.y += 10
}

// panel draws a GPU with its caption, whose upper left corner is x, y.
func (pg *page) panel(l Layout, x, y float64) {
	w := &pg.out
	size := textSize
	if pg.bare {
		size = smallSize
	}
	use := number.Percent(area(l.GPU), 0)
	if long := use + " allocated"; textWidth(long+l.names()[0], size) <= pg.side {
		use = long
	}
	w.text(x, y+16, size, "start", ink, `font-weight="600"`, l.name(pg.side-textWidth(use, size)-6, size))
	w.text(x+pg.side, y+16, size, "end", grey, "", use)
	y += headHeight
	pg.square(l.GPU, x, y)
	y += pg.side
	if !pg.bare {
		pg.axes(x, y)
		y += axisBottom - 8
	}
	pg.memory(l.GPU, x, y+8)
}

// square draws the instances of a GPU.
func (pg *page) square(g plan.GPU, x, y float64) {
	pg.out.rect(x, y, pg.side, pg.side, "url(#free)", outline)
	all := tiles(g)
	for _, in := range g.Instances {
		pg.instance(in, all[in.ID], x, y)
	}
}

// names returns possible captions of the square, the longest first.
func (l Layout) names() []string {
	if l.Count > 1 {
		return []string{fmt.Sprintf("%d GPUs like this", l.Count), fmt.Sprintf("%d alike", l.Count)}
	}
	return []string{
		fmt.Sprintf("%s · GPU %d", l.GPU.Node, l.GPU.Index),
		fmt.Sprintf("%s/%d", l.GPU.Node, l.GPU.Index),
		fmt.Sprintf("GPU %d", l.GPU.Index),
	}
}

// name returns the longest caption of the square that fits the width.
func (l Layout) name(width, size float64) string {
	choices := l.names()
	for _, c := range choices {
		if textWidth(c, size) <= width {
			return c
		}
	}
	return clip(choices[0], width, size)
}

// instance draws an instance's rectangles on the GPU whose corner is x, y. The largest one shows as much of
// the label as fits, and the others show the function's number.
func (pg *page) instance(in plan.Instance, parts []tile, x, y float64) {
	w := &pg.out
	function := slices.Index(pg.functions, in.Function)
	w.group(fmt.Sprintf("%s: %s%% of the SMs for %s%% of the window, batch %d, %s requests/s",
		in.ID, number.Trimmed(in.SMPct, 2), number.Trimmed(100*in.QuotaRequest, 1), in.Batch, number.Trimmed(in.RPS, 1)))
	share := fmt.Sprintf("%s%%×%s", number.Trimmed(in.SMPct, 1), number.Trimmed(in.QuotaRequest, 2))
	place := []string{fmt.Sprint(function + 1)}
	whole := [][]string{{in.Function, share, number.Trimmed(in.RPS, 1) + " rps"}, {in.Function, share}, {in.Function + " " + share}, {in.Function}, place}
	for i, t := range parts {
		left, top, width, height := x+t.x*pg.side, y+pg.side*(1-(t.y+t.h)/100), t.w*pg.side, t.h/100*pg.side
		w.tile(left, top, width, height, function, edge)
		if i == largest(parts) {
			pg.label(left, top, width, height, function, whole)
		} else {
			pg.label(left, top, width, height, function, [][]string{place})
		}
	}
	w.endGroup()
}

// readable is the smallest font size, in pixels. label omits smaller texts.
const readable = 8.0

// label writes the first of the given texts that fits the rectangle, upright or rotated. If none fits, it
// writes nothing; the tooltip contains the full text.
func (pg *page) label(x, y, width, height float64, function int, choices [][]string) {
	for _, lines := range choices {
		for _, turned := range []bool{false, true} {
			w, h := width-6, height-2
			if turned {
				w, h = height-6, width-2
			}
			if size := fit(lines, w, h); size >= readable && (!turned || height > 1.6*width) {
				pg.write(x+width/2, y+height/2, min(size, 15), turned, function, lines)
				return
			}
		}
	}
}

// fit returns the largest font size at which the lines fit.
func fit(lines []string, width, height float64) float64 {
	size := height / (1.2 * float64(len(lines)))
	for _, l := range lines {
		size = min(size, width/textWidth(l, 1))
	}
	return size
}

func (pg *page) write(x, y, size float64, turned bool, function int, lines []string) {
	w := &pg.out
	if turned {
		w.Open("g", "transform", w.Path("rotate(-90 ", x, " ", y, ")"))
		w.WriteByte('\n')
	}
	top := y - 1.2*size*float64(len(lines)-1)/2 + 0.35*size
	for i, l := range lines {
		more := halo(function)
		if i == 0 {
			more += ` font-weight="600"`
		}
		w.text(x, top+1.2*size*float64(i), size, "middle", on(function), more, l)
	}
	if turned {
		w.endGroup()
	}
}

// axes draws the scales of the square whose lower left corner is x, y: percentages of the SMs on the
// vertical axis, fractions of the window on the horizontal axis.
func (pg *page) axes(x, y float64) {
	w := &pg.out
	for _, v := range []float64{0, 0.5, 1} {
		w.text(x-6, y-pg.side*v+4, smallSize, "end", grey, "", number.Percent(v, 0))
		w.text(x+pg.side*v, y+14, smallSize, "middle", grey, "", number.Trimmed(v, 1))
	}
	w.text(x+pg.side/2, y+28, smallSize, "middle", grey, "", "time, fraction of a window")
	middle := y - pg.side/4
	w.text(x-34, middle, smallSize, "middle", grey, svg.Raw(`transform="`+w.Path("rotate(-90 ", x-34, " ", middle, ")")+`"`), "SMs")
}

// memory draws a bar of the allocated memory, with shared weights in a darker colour. It draws nothing if
// the allocation is unknown or the memory unlimited.
func (pg *page) memory(g plan.GPU, x, y float64) {
	used := allocated(g)
	if g.MemMiB <= 0 || used == 0 {
		return
	}
	w := &pg.out
	text := fmt.Sprintf("%s of %s GiB", gib(used), gib(g.MemMiB))
	length := pg.side
	if !pg.bare {
		length = max(20, pg.side-textWidth(text, smallSize)-8)
		w.text(x+pg.side, y+8, smallSize, "end", grey, "", text)
	}
	part := func(mib float64) float64 { return length * min(1, mib/g.MemMiB) }
	w.group("allocated memory: " + text)
	w.rect(x, y, length, 8, "#e4e7ec", `rx="2"`)
	w.rect(x, y, part(used), 8, grey, `rx="2"`)
	if shared := weights(g); shared > 0 {
		w.rect(x, y, part(shared), 8, ink, `rx="2"`)
	}
	w.endGroup()
}

// clip shortens a text to a width.
func clip(text string, width, size float64) string {
	runes := []rune(text)
	for len(runes) > 1 && textWidth(string(runes), size) > width {
		runes = runes[:len(runes)-1]
	}
	if len(runes) < len([]rune(text)) {
		return string(runes[:len(runes)-1]) + "…"
	}
	return text
}

// Headline returns the result of the plan as a title.
func Headline(p plan.Plan) string {
	text, verb := number.Count(len(p.Demand), "function"), "serve"
	if n := len(p.Unplaced); n > 0 {
		text = fmt.Sprintf("%d of %s", len(p.Demand)-n, text)
	}
	if p.GPUsUsed == 1 {
		verb = "serves"
	}
	return fmt.Sprintf("%s %s %s", number.Count(p.GPUsUsed, "GPU"), verb, text)
}

// summary compares the plan with its bound and describes its utilization.
func summary(p plan.Plan) string {
	used, instances := 0.0, 0
	for _, g := range p.GPUs {
		used += area(g)
		instances += len(g.Instances)
	}
	text := fmt.Sprintf("Any plan needs at least %s (%s bound)", number.Count(p.Bound, "GPU"), p.BoundMethod)
	if p.GPUsUsed > 0 {
		text += fmt.Sprintf(" · %s · %s of SM time allocated · algorithm %s", number.Count(instances, "instance"), number.Percent(used/float64(p.GPUsUsed), 0), p.Algorithm)
	}
	return text
}

func area(g plan.GPU) float64 {
	sum := 0.0
	for _, in := range g.Instances {
		sum += in.SMPct / 100 * in.QuotaRequest
	}
	return sum
}

// gib formats an amount of memory in GiB.
func gib(mib float64) string { return number.Trimmed(mib/1024, 1) }
