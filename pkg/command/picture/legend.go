package picture

import (
	"fmt"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
)

// swatch is the side of a function's mark.
const swatch = 20.0

// swatch draws the mark of a function: its colour and number.
func (w *writer) swatch(x, y float64, function int) {
	w.tile(x, y, swatch, swatch, function, `rx="3"`)
	w.text(x+swatch/2, y+14.5, smallSize, "middle", on(function),
		fmt.Sprintf(`font-weight="600" stroke="%s" stroke-width="3" paint-order="stroke"`, palette[function%len(palette)]), fmt.Sprint(function+1))
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
	pitch := swatch + 8 + widest + 16
	columns := max(1, int((pg.width-2*margin)/pitch))
	for i, label := range labels {
		column := i % columns
		if column == 0 && i > 0 {
			w.y += swatch + 8
		}
		x := margin + float64(column)*pitch
		w.swatch(x, w.y, i)
		name := pg.functions[i]
		fmt.Fprintf(&w.b, "<text x=\"%s\" y=\"%s\" font-size=\"%s\" fill=\"%s\"><tspan font-weight=\"600\">%s</tspan><tspan dx=\"8\" fill=\"%s\">%s</tspan></text>\n",
			px(x+swatch+8), px(w.y+15), px(textSize), ink, escape.Replace(clip(name, pg.width, textSize)), grey, escape.Replace(strings.TrimSpace(strings.TrimPrefix(label, name))))
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

// wrap breaks a text at blanks.
func wrap(text string, width, size float64) []string {
	var rows []string
	row := ""
	for _, word := range strings.Fields(text) {
		if row != "" && textWidth(row+" "+word, size) > width {
			rows = append(rows, row)
			row = ""
		}
		row = strings.TrimPrefix(row+" "+word, " ")
	}
	return append(rows, row)
}
