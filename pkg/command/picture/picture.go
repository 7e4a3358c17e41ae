// Package picture draws plans and packings: each GPU as a square of its window ×
// its SMs, each instance as the rectangle it has of it, or the turns of its
// timetable.
package picture

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
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
	axisLeft   = 46.0 // beside a GPU, for its scale of SMs
	axisBottom = 34.0 // below, for the scale of the window
	barHeight  = 14.0 // below that, for the memory
	headHeight = 26.0 // above, for its caption
	gap        = 24.0
	oneSide    = 520.0 // of a picture of one GPU
	twoSide    = 400.0 // of each of two
	pageWidth  = 1280.0
)

// Up to manyGPUs are drawn one by one; of more, those that look alike are drawn
// once.
const manyGPUs = 24

// Footnote says how to read the squares.
func Footnote(p plan.Plan) string {
	text := "Each square is one GPU: across, the scheduling window; up, its SMs. A rectangle is what one instance has for itself; hatched is free."
	if p.Model == plan.ModelTokens {
		text = "Each square is one GPU: across, the scheduling window; up, the share of its SMs, whichever they are. An instance may have several turns; hatched is free."
	}
	for _, g := range p.GPUs {
		if len(g.Models) > 0 && g.MemMiB > 0 {
			return text + " The bar below is memory, its dark part weights that instances share."
		}
	}
	if showsMemory(p.GPUs) {
		text += " The bar below is memory."
	}
	return text
}

// showsMemory tells whether some GPU's memory is limited and its use known.
func showsMemory(gpus []plan.GPU) bool {
	return slices.ContainsFunc(gpus, func(g plan.GPU) bool { return g.MemMiB > 0 && inUse(g) > 0 })
}

// inUse is the memory that instances and the weights they share take, in MiB.
func inUse(g plan.GPU) (mib float64) {
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
	bare      bool // squares have no scales
	memories  bool // squares have a bar of their memory
	width     float64
	out       writer
}

// SVG draws a plan. The same plan gives the same bytes.
func SVG(p plan.Plan) []byte {
	pg := &page{plan: p, functions: functions(p), panels: panels(p.GPUs), memories: showsMemory(p.GPUs)}
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

// arrange chooses how large the squares are and how many go in a row, so that
// the last row is as full as can be.
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
		if left := func(columns int) int { return (columns - n%columns) % columns }; left(3) < left(4) {
			pg.columns = 3
		}
	case n <= 60:
		pg.columns, pg.bare = 6, true
	default:
		pg.columns, pg.bare = 10, true
	}
	if n > 2 { // what is left of a square's part of the row decides how it is drawn
		pg.side = (pageWidth-2*margin+gap)/float64(pg.columns) - pg.left() - gap
	}
	pg.width = 2*margin + float64(pg.columns)*pg.pitch() - gap
}

// left is the room for the scale beside a square.
func (pg *page) left() float64 {
	if pg.bare {
		return 0
	}
	return axisLeft
}

// pitch is how far apart squares are, across; down is how far, down.
func (pg *page) pitch() float64 { return pg.side + pg.left() + gap }

func (pg *page) down() float64 {
	below := 0.0
	if !pg.bare {
		below += axisBottom
	}
	if pg.memories {
		below += barHeight
	}
	return headHeight + pg.side + below + gap
}

// body draws from top to bottom.
func (pg *page) body() {
	w := &pg.out
	w.y = margin + titleSize
	w.title(Headline(pg.plan), pg.width-2*margin)
	w.paragraph(summary(pg.plan), pg.width-2*margin, textSize, grey)
	w.y += 2
	pg.legend()
	w.y += 14
	for i, pn := range pg.panels {
		column := i % pg.columns
		if column == 0 && i > 0 {
			w.y += pg.down()
		}
		pg.panel(pn, margin+pg.left()+float64(column)*pg.pitch(), w.y)
	}
	if len(pg.panels) > 0 {
		w.y += pg.down()
	}
	pg.unplaced()
	w.paragraph(Footnote(pg.plan), pg.width-2*margin, smallSize, grey)
}

// legend draws one entry a function: its number, colour, and rates.
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

// unplaced lists what the plan could not serve, wrapped to the page.
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

// panel draws a GPU with its caption, whose upper left corner is at x, y.
func (pg *page) panel(pn panel, x, y float64) {
	w := &pg.out
	size := textSize
	if pg.bare {
		size = smallSize
	}
	use := number.Percent(area(pn.gpu), 0)
	if long := use + " in use"; textWidth(long+pn.names()[0], size) <= pg.side {
		use = long
	}
	w.text(x, y+16, size, "start", ink, `font-weight="600"`, pn.name(pg.side-textWidth(use, size)-6, size))
	w.text(x+pg.side, y+16, size, "end", grey, "", use)
	y += headHeight
	pg.square(pn.gpu, x, y)
	y += pg.side
	if !pg.bare {
		pg.axes(x, y)
		y += axisBottom - 8
	}
	pg.memory(pn.gpu, x, y+8)
}

// square draws what a GPU hosts.
func (pg *page) square(g plan.GPU, x, y float64) {
	pg.out.rect(x, y, pg.side, pg.side, "url(#free)", outline)
	all := tiles(g)
	for _, in := range g.Instances {
		pg.instance(in, all[in.ID], x, y)
	}
}

// names are what the panel may be called, the longest first.
func (pn panel) names() []string {
	if pn.count > 1 {
		return []string{fmt.Sprintf("%d GPUs like this", pn.count), fmt.Sprintf("%d alike", pn.count)}
	}
	return []string{
		fmt.Sprintf("%s · GPU %d", pn.gpu.Node, pn.gpu.Index),
		fmt.Sprintf("%s/%d", pn.gpu.Node, pn.gpu.Index),
		fmt.Sprintf("GPU %d", pn.gpu.Index),
	}
}

// name is what the panel is called in so much room.
func (pn panel) name(width, size float64) string {
	choices := pn.names()
	for _, c := range choices {
		if textWidth(c, size) <= width {
			return c
		}
	}
	return clip(choices[0], width, size)
}

// instance draws what one instance has of the GPU whose corner is at x, y, and
// in the largest part as much of its label as fits, in others its number.
func (pg *page) instance(in plan.Instance, parts []tile, x, y float64) {
	w := &pg.out
	function := slices.Index(pg.functions, in.Function)
	w.group(fmt.Sprintf("%s: %s%% of the SMs for %s of the window, batch %d, %s requests a second",
		in.ID, number.Trimmed(in.SMPct, 2), number.Trimmed(in.QuotaRequest, 3), in.Batch, number.Trimmed(in.RPS, 1)))
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

// readable is the size, in pixels, below which a text is left out.
const readable = 8.0

// label writes the first of some texts that fits the rectangle, upright or
// turned, and none where none does: the pointer shows all of it.
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

// fit is the largest size at which the lines fit.
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

// axes draws the scales of the square whose lower left corner is at x, y: SM
// percent up, the window across.
func (pg *page) axes(x, y float64) {
	w := &pg.out
	for _, v := range []float64{0, 0.5, 1} {
		w.text(x-6, y-pg.side*v+4, smallSize, "end", grey, "", number.Percent(v, 0))
		w.text(x+pg.side*v, y+14, smallSize, "middle", grey, "", number.Trimmed(v, 1))
	}
	w.text(x+pg.side/2, y+28, smallSize, "middle", grey, "", "time, of a scheduling window")
	middle := y - pg.side/4
	w.text(x-34, middle, smallSize, "middle", grey, svg.Raw(`transform="`+w.Path("rotate(-90 ", x-34, " ", middle, ")")+`"`), "SMs")
}

// memory draws a bar of the memory in use where that is known and limited,
// darker for weights that instances share.
func (pg *page) memory(g plan.GPU, x, y float64) {
	used := inUse(g)
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
	w.group("memory: " + text)
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

// Headline says what the plan comes to.
func Headline(p plan.Plan) string {
	text, verb := cli.Count(len(p.Demand), "function"), "serve"
	if n := len(p.Unplaced); n > 0 {
		text = fmt.Sprintf("%d of %s", len(p.Demand)-n, text)
	}
	if p.GPUsUsed == 1 {
		verb = "serves"
	}
	return fmt.Sprintf("%s %s %s", cli.Count(p.GPUsUsed, "GPU"), verb, text)
}

// summary says how good the plan is.
func summary(p plan.Plan) string {
	used, instances := 0.0, 0
	for _, g := range p.GPUs {
		used += area(g)
		instances += len(g.Instances)
	}
	text := fmt.Sprintf("The demand needs at least %s, however it is planned (%s bound)", cli.Count(p.Bound, "GPU"), p.BoundMethod)
	if p.GPUsUsed > 0 {
		text += fmt.Sprintf(" · %s · %s of SM time in use · algorithm %s", cli.Count(instances, "instance"), number.Percent(used/float64(p.GPUsUsed), 0), p.Algorithm)
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

// gib prints an amount of memory.
func gib(mib float64) string { return number.Trimmed(mib/1024, 1) }
