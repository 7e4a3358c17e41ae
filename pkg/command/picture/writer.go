package picture

import (
	"fmt"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
)

// Colours of everything that is no instance.
const (
	ink   = "#1f2430"
	grey  = "#667085"
	line  = "#98a2b3"
	paper = "#ffffff"
	alarm = "#b42318"
)

// palette is that of Okabe and Ito, which people with any kind of colour
// blindness tell apart, without black. Functions beyond it get the same
// colours under a pattern.
var palette = []string{"#56B4E9", "#E69F00", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}

// patterns lie over the colours of functions beyond the palette.
var patterns = []string{"", "stripes", "dots", "checks"}

const definitions = `<defs>
<pattern id="free" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="8" height="8" fill="#f7f8fa"/><line x1="0" y1="0" x2="0" y2="8" stroke="#e4e7ec" stroke-width="2"/></pattern>
<pattern id="stripes" width="10" height="10" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><line x1="0" y1="0" x2="0" y2="10" stroke="#ffffff" stroke-opacity="0.4" stroke-width="3"/></pattern>
<pattern id="dots" width="9" height="9" patternUnits="userSpaceOnUse"><circle cx="3" cy="3" r="1.5" fill="#ffffff" fill-opacity="0.5"/></pattern>
<pattern id="checks" width="12" height="12" patternUnits="userSpaceOnUse"><path d="M0 0h6v6h-6zM6 6h6v6h-6z" fill="#ffffff" fill-opacity="0.25"/></pattern>
</defs>
`

// writer gathers elements; y is how far down the page they go.
type writer struct {
	b strings.Builder
	y float64
}

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func px(v float64) string { return number.Trimmed(v, 2) }

func (w *writer) text(x, y, size float64, anchor, colour, more, text string) {
	fmt.Fprintf(&w.b, "<text x=\"%s\" y=\"%s\" font-size=\"%s\" text-anchor=\"%s\" fill=\"%s\" %s>%s</text>\n",
		px(x), px(y), px(size), anchor, colour, more, escape.Replace(text))
}

func (w *writer) rect(x, y, width, height float64, fill, more string) {
	fmt.Fprintf(&w.b, "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"%s\" %s/>\n",
		px(x), px(y), px(width), px(height), fill, more)
}

// tile is a rectangle in a function's colour and pattern.
func (w *writer) tile(x, y, width, height float64, function int, more string) {
	w.rect(x, y, width, height, palette[function%len(palette)], more)
	if p := patterns[function/len(palette)%len(patterns)]; p != "" {
		w.rect(x, y, width, height, "url(#"+p+")", "")
	}
}

func (w *writer) document(width, height float64, description string) []byte {
	head := fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%s\" height=\"%s\" viewBox=\"0 0 %s %s\" font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', sans-serif\">\n<desc>%s</desc>\n",
		px(width), px(height), px(width), px(height), escape.Replace(description))
	back := fmt.Sprintf("<rect width=\"%s\" height=\"%s\" fill=\"%s\"/>\n", px(width), px(height), paper)
	return []byte(head + definitions + back + w.b.String() + "</svg>\n")
}

// paragraph writes a text over as many lines as it takes, and moves on.
func (w *writer) paragraph(text string, width, size float64, colour string) {
	for _, row := range wrap(text, width, size) {
		w.text(margin, w.y, size, "start", colour, "", row)
		w.y += size * lineHeight
	}
}

// textWidth is about how wide a text is, bold text too; fonts differ.
func textWidth(text string, size float64) float64 { return 0.66 * size * float64(len([]rune(text))) }
