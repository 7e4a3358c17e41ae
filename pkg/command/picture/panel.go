package picture

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// panel draws a GPU with the upper left corner of its square at x, y+30.
func (pg *page) panel(pn panel, x, y float64) {
	w := &pg.out
	size := textSize
	if pg.small() {
		size = smallSize
	}
	use := number.Percent(area(pn.gpu), 0)
	w.text(x, y+16, size, "start", ink, `font-weight="600"`, pn.name(pg.side-textWidth(use, size)-6, size))
	w.text(x+pg.side, y+16, size, "end", grey, "", use)
	y += 26
	pg.square(pn.gpu, x, y)
	pg.axes(x, y)
	pg.memory(pn.gpu, x, y+pg.side+pg.below()-10)
}

// square draws what a GPU hosts.
func (pg *page) square(g plan.GPU, x, y float64) {
	pg.out.rect(x, y, pg.side, pg.side, "url(#free)", fmt.Sprintf(`stroke="%s"`, line))
	all := tiles(g)
	for _, in := range g.Instances {
		pg.instance(in, all[in.ID], x, y)
	}
}

// name is what the panel is called in so much room.
func (pn panel) name(width, size float64) string {
	choices := []string{
		fmt.Sprintf("%s · GPU %d", pn.gpu.Node, pn.gpu.Index),
		fmt.Sprintf("%s/%d", pn.gpu.Node, pn.gpu.Index),
		fmt.Sprintf("GPU %d", pn.gpu.Index),
	}
	if pn.count > 1 {
		choices = []string{fmt.Sprintf("%d GPUs like this", pn.count), fmt.Sprintf("%d alike", pn.count)}
	}
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
	fmt.Fprintf(&w.b, "<g><title>%s</title>\n", escape.Replace(fmt.Sprintf("%s: %s%% of the SMs for %s of the window, batch %d, %s requests a second",
		in.ID, number.Trimmed(in.SMPct, 2), number.Trimmed(in.QuotaRequest, 3), in.Batch, number.Trimmed(in.RPS, 1))))
	share := fmt.Sprintf("%s%%×%s", number.Trimmed(in.SMPct, 1), number.Trimmed(in.QuotaRequest, 2))
	place := []string{fmt.Sprint(function + 1)}
	whole := [][]string{{in.Function, share, number.Trimmed(in.RPS, 1) + " rps"}, {in.Function, share}, {in.Function + " " + share}, {in.Function}, place}
	for i, t := range parts {
		left, top, width, height := x+t.x*pg.side, y+pg.side*(1-(t.y+t.h)/100), t.w*pg.side, t.h/100*pg.side
		w.tile(left, top, width, height, function, fmt.Sprintf(`stroke="%s" stroke-width="1.2"`, paper))
		if i == largest(parts) {
			pg.label(left, top, width, height, function, whole)
		} else {
			pg.label(left, top, width, height, function, [][]string{place})
		}
	}
	w.b.WriteString("</g>\n")
}

// label writes the first of some texts that fits the rectangle, upright or
// turned; the last is tried down to the smallest size.
func (pg *page) label(x, y, width, height float64, function int, choices [][]string) {
	for i, lines := range choices {
		least := 8.5
		if i == len(choices)-1 {
			least = 5
		}
		for _, turned := range []bool{false, true} {
			w, h := width-6, height-2
			if turned {
				w, h = height-6, width-2
			}
			if size := fit(lines, w, h); size >= least && (!turned || height > 1.6*width) {
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
		fmt.Fprintf(&w.b, "<g transform=\"rotate(-90 %s %s)\">\n", px(x), px(y))
	}
	top := y - 1.2*size*float64(len(lines)-1)/2 + 0.35*size
	for i, l := range lines {
		more := fmt.Sprintf(`stroke="%s" stroke-width="3" paint-order="stroke"`, palette[function%len(palette)])
		if i == 0 {
			more += ` font-weight="600"`
		}
		w.text(x, top+1.2*size*float64(i), size, "middle", on(function), more, l)
	}
	if turned {
		w.b.WriteString("</g>\n")
	}
}

// on is the colour of text on a function's colour.
func on(function int) string {
	switch palette[function%len(palette)] {
	case "#0072B2", "#009E73", "#D55E00":
		return paper
	}
	return "#101828"
}

// axes draws the scales: SM percent up, the window across.
func (pg *page) axes(x, y float64) {
	if pg.small() {
		return
	}
	w := &pg.out
	for _, v := range []float64{0, 0.5, 1} {
		w.text(x-6, y+pg.side*(1-v)+4, smallSize, "end", grey, "", number.Trimmed(100*v, 0))
		w.text(x+pg.side*v, y+pg.side+14, smallSize, "middle", grey, "", number.Trimmed(v, 1))
	}
	w.text(x-6, y+pg.side*0.75+4, smallSize, "end", grey, "", "SM%")
	w.text(x+pg.side*0.25, y+pg.side+14, smallSize, "middle", grey, "", "window")
}

// memory draws a bar of the memory in use where it is limited, darker for
// weights that instances share.
func (pg *page) memory(g plan.GPU, x, y float64) {
	if g.MemMiB <= 0 {
		return
	}
	used, weights := 0.0, 0.0
	for _, in := range g.Instances {
		used += in.MemMiB
	}
	for _, m := range g.Models {
		weights += m.MemMiB
	}
	w := &pg.out
	text := fmt.Sprintf("%s of %s GiB", gib(used+weights), gib(g.MemMiB))
	length := pg.side
	if !pg.small() {
		length = max(20, pg.side-textWidth(text, smallSize)-8)
		w.text(x+pg.side, y+8, smallSize, "end", grey, "", text)
	}
	part := func(mib float64) float64 { return length * min(1, mib/g.MemMiB) }
	w.rect(x, y, length, 8, "#e4e7ec", `rx="2"`)
	w.rect(x, y, part(used+weights), 8, grey, `rx="2"`)
	if weights > 0 {
		w.rect(x, y, part(weights), 8, ink, `rx="2"`)
	}
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
