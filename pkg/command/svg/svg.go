// Package svg writes SVG drawings for pictures and reports: elements, attributes, lengths and texts.
package svg

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
)

// Drawing is a buffer of SVG elements. Attributes alternate between names and values: a float64 is formatted as a
// length, an int or a string is written as is. A Raw replaces a name and its value.
type Drawing struct {
	strings.Builder
	Length func(float64) string // formats lengths; nil: at most two decimals
}

// Raw is a sequence of formatted attributes. It may be empty.
type Raw string

// escape escapes text for an element or an attribute.
var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

// Open begins an element.
func (d *Drawing) Open(name string, attributes ...any) {
	d.begin(name, attributes)
	d.WriteByte('>')
}

// Close ends an element that Open began.
func (d *Drawing) Close(name string) { d.WriteString("</" + name + ">") }

// Add adds an element without content.
func (d *Drawing) Add(name string, attributes ...any) {
	d.begin(name, attributes)
	d.WriteString("/>")
}

// AddText adds an element with text content.
func (d *Drawing) AddText(name, text string, attributes ...any) {
	d.Open(name, attributes...)
	d.WriteString(escape.Replace(text))
	d.Close(name)
}

// AddTitled adds an element with a tooltip.
func (d *Drawing) AddTitled(name, title string, attributes ...any) {
	d.Open(name, attributes...)
	d.AddText("title", title)
	d.Close(name)
}

func (d *Drawing) begin(name string, attributes []any) {
	d.WriteString("<" + name)
	for i := 0; i < len(attributes); i++ {
		if raw, ok := attributes[i].(Raw); ok {
			d.WriteString(" " + string(raw))
			continue
		}
		fmt.Fprintf(d, ` %s="%s"`, attributes[i], escape.Replace(d.value(attributes[i+1])))
		i++
	}
}

// Path returns the data of a path or a transformation from texts and lengths.
func (d *Drawing) Path(parts ...any) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(d.value(p))
	}
	return b.String()
}

// Shapes of markers.
const (
	Circle = iota
	Square
	Triangle
	Diamond
	shapes // their number
)

// Marker returns the path of a marker at x, y, with a width of about 6 times size. The shape is taken modulo the
// number of shapes.
func (d *Drawing) Marker(shape int, x, y, size float64) string {
	switch r := 3 * size; shape % shapes {
	case Circle:
		return d.Path("M", x-r, " ", y, "a", r, " ", r, " 0 1 0 ", 2*r, " 0a", r, " ", r, " 0 1 0 ", -2*r, " 0z")
	case Square:
		return d.Path("M", x-0.9*r, " ", y-0.9*r, "h", 1.8*r, "v", 1.8*r, "h", -1.8*r, "z")
	case Triangle:
		return d.Path("M", x, " ", y-1.27*r, "l", 1.2*r, " ", 2.07*r, "h", -2.4*r, "z")
	default:
		return d.Path("M", x, " ", y-1.27*r, "l", 1.27*r, " ", 1.27*r, "l", -1.27*r, " ", 1.27*r, "l", -1.27*r, " ", -1.27*r, "z")
	}
}

// On returns the colour of text on a colour such as #56B4E9: white or black, whichever has the higher contrast.
func On(colour string) string {
	if background := Luminance(colour) + 0.05; 1.05/background > background/0.05 {
		return "#ffffff"
	}
	return "#000000"
}

// Luminance returns the relative luminance (0 to 1) of a colour such as #56B4E9, as defined in WCAG 2.
func Luminance(colour string) float64 {
	v, _ := strconv.ParseUint(colour[1:], 16, 24) // callers pass valid colours
	part := func(shift int) float64 {
		c := float64(v>>shift&255) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
}

func (d *Drawing) value(v any) string {
	length, ok := v.(float64)
	switch {
	case !ok:
		return fmt.Sprint(v)
	case d.Length == nil:
		return number.Trimmed(length, 2)
	}
	return d.Length(length)
}
