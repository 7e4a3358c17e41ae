package picture

import (
	"fmt"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/svg"
)

// Colours of everything except instances.
const (
	ink   = "#1f2430"
	grey  = "#667085"
	line  = "#98a2b3"
	paper = "#ffffff"
	alarm = "#b42318"
)

// Edges of containers and of their contents.
const (
	outline = svg.Raw(`stroke="` + line + `"`)
	edge    = svg.Raw(`stroke="` + paper + `" stroke-width="1.2"`)
)

// palette starts with the colours of Okabe and Ito without black, which differ for people with any kind of
// colour blindness. Each further colour is the one farthest from all before it, in every kind of vision,
// on which text is readable. Functions beyond the palette use it again with a pattern.
var palette = []string{
	"#56B4E9", "#E69F00", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
	"#551100", "#220088", "#7700FF", "#AA0066", "#FFCCDD", "#445500", "#CC33FF",
}

// patterns lie over the colours of functions beyond the palette. They contain no hatching, which marks free
// space.
var patterns = []string{"", "dots", "checks", "bars"}

const definitions = `<defs>
<pattern id="free" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="8" height="8" fill="#f7f8fa"/><line x1="0" y1="0" x2="0" y2="8" stroke="#e4e7ec" stroke-width="2"/></pattern>
<pattern id="dots" width="9" height="9" patternUnits="userSpaceOnUse"><circle cx="3" cy="3" r="1.5" fill="#ffffff" fill-opacity="0.5"/></pattern>
<pattern id="checks" width="12" height="12" patternUnits="userSpaceOnUse"><path d="M0 0h6v6h-6zM6 6h6v6h-6z" fill="#ffffff" fill-opacity="0.25"/></pattern>
<pattern id="bars" width="10" height="10" patternUnits="userSpaceOnUse"><line x1="0" y1="5" x2="10" y2="5" stroke="#ffffff" stroke-opacity="0.4" stroke-width="3"/></pattern>
</defs>
`

// writer collects elements. y is the current vertical position on the page.
type writer struct {
	svg.Drawing
	y float64
}

func (w *writer) text(x, y, size float64, anchor, colour string, more svg.Raw, text string) {
	w.AddText("text", text, "x", x, "y", y, "font-size", size, "text-anchor", anchor, "fill", colour, more)
	w.WriteByte('\n')
}

func (w *writer) rect(x, y, width, height float64, fill string, more svg.Raw) {
	w.Add("rect", "x", x, "y", y, "width", width, "height", height, "fill", fill, more)
	w.WriteByte('\n')
}

// group begins a group with a tooltip.
func (w *writer) group(title string) {
	w.Open("g")
	w.AddText("title", title)
	w.WriteByte('\n')
}

func (w *writer) endGroup() { w.WriteString("</g>\n") }

// tile draws a rectangle in a function's colour and pattern.
func (w *writer) tile(x, y, width, height float64, function int, more svg.Raw) {
	w.rect(x, y, width, height, palette[function%len(palette)], more)
	if p := patterns[function/len(palette)%len(patterns)]; p != "" {
		w.rect(x, y, width, height, "url(#"+p+")", "")
	}
}

func (w *writer) document(width, height float64, description string) []byte {
	var d svg.Drawing
	d.Open("svg", "xmlns", "http://www.w3.org/2000/svg", "width", width, "height", height, "viewBox", d.Path("0 0 ", width, " ", height),
		svg.Raw(`font-family="Inter, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', sans-serif"`))
	d.WriteByte('\n')
	d.AddText("desc", description)
	d.WriteString("\n" + definitions)
	d.Add("rect", "width", width, "height", height, "fill", paper)
	d.WriteString("\n" + w.String() + "</svg>\n")
	return []byte(d.String())
}

// title writes the headline at w.y and advances w.y.
func (w *writer) title(text string, width float64) {
	for _, row := range wrap(text, width, titleSize) {
		w.text(margin, w.y, titleSize, "start", ink, `font-weight="700"`, row)
		w.y += titleSize * 1.15
	}
	w.y += textSize + 10 - titleSize*1.15
}

// paragraph writes a text on as many lines as it needs and advances w.y.
func (w *writer) paragraph(text string, width, size float64, colour string) {
	for _, row := range wrap(text, width, size) {
		w.text(margin, w.y, size, "start", colour, "", row)
		w.y += size * lineHeight
	}
}

// textWidth returns an upper estimate of a text's width, also in bold. It is based on DejaVu Sans, which is
// wider than most fonts.
func textWidth(text string, size float64) (width float64) {
	for _, r := range text {
		switch {
		case strings.ContainsRune(" .,:;'|!iIjl", r):
			width += 0.4
		case strings.ContainsRune("rtf-_()[]/·", r):
			width += 0.5
		case strings.ContainsRune("mwMW%@×…", r) || r >= 0x1100: // scripts with wide letters
			width += 1.1
		case r >= 'A' && r <= 'Z':
			width += 0.85
		default:
			width += 0.72
		}
	}
	return width * size
}

// on returns the colour of text on a function's colour.
func on(function int) string { return svg.On(palette[function%len(palette)]) }

// halo returns the attributes of an outline that separates text from a function's pattern.
func halo(function int) svg.Raw {
	return svg.Raw(fmt.Sprintf(`stroke="%s" stroke-width="3" paint-order="stroke"`, palette[function%len(palette)]))
}

// swatch is the side of a function's mark, in pixels.
const swatch = 20.0

// swatch draws a function's mark: its colour and number.
func (w *writer) swatch(x, y float64, function int) {
	w.tile(x, y, swatch, swatch, function, `rx="3"`)
	w.text(x+swatch/2, y+14.5, smallSize, "middle", on(function), `font-weight="600" `+halo(function), fmt.Sprint(function+1))
}

// wrap breaks a text into lines at blanks.
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
