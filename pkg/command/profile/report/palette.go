package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/svg"
)

// levels is the number of colours of a heat map. Their classes are h0 (worst) to h15, and t0 to t15 for
// text on them.
const levels = 16

// light and dark hold the colours from bad to good on a light and on a dark background. Their contrast to
// the background grows evenly, so that they differ even without hues.
var (
	light = [][3]float64{{253, 247, 214}, {161, 218, 180}, {65, 166, 186}, {34, 94, 168}, {8, 29, 88}}
	dark  = [][3]float64{{44, 48, 74}, {48, 86, 140}, {38, 140, 150}, {110, 200, 120}, {245, 238, 150}}
)

// colour interpolates between the stops; fraction is the fraction of the way.
func colour(stops [][3]float64, fraction float64) string {
	at := min(max(fraction, 0), 1) * float64(len(stops)-1)
	i := min(int(at), len(stops)-2)
	weight := at - float64(i)
	var c [3]int
	for k := range c {
		c[k] = int(math.Round(stops[i][k] + weight*(stops[i+1][k]-stops[i][k])))
	}
	return fmt.Sprintf("#%02x%02x%02x", c[0], c[1], c[2])
}

// level returns the class of a colour at a fraction of the way, and the class of text on it.
func level(fraction float64) (class, text string) {
	n := int(math.Round(min(max(fraction, 0), 1) * (levels - 1)))
	return fmt.Sprint("h", n), fmt.Sprint("t", n)
}

// lines holds the colours of the batch sizes (classes b0 to b5) on a light and on a dark background.
// Markers also tell the sizes apart.
var lines = [][2]string{
	{"#225ea8", "#7fb2ff"}, {"#d95f0e", "#ff9d5c"}, {"#238b45", "#6fd08c"}, {"#88419d", "#d59be8"}, {"#c51b8a", "#ff8ac6"}, {"#636363", "#b9bec6"},
}

// line returns the class of the i-th batch size.
func line(i int) string { return fmt.Sprintf("b%d", i%len(lines)) }

// colours returns the style sheet of all colour classes.
func colours() string {
	var b strings.Builder
	write := func(stops [][3]float64, column int) {
		for i := range levels {
			c := colour(stops, float64(i)/(levels-1))
			fmt.Fprintf(&b, ".h%d { fill: %s; } .t%[1]d { fill: %[3]s; } ", i, c, svg.On(c))
		}
		for i, c := range lines {
			fmt.Fprintf(&b, ".%s { fill: %s; } .line.%s { fill: none; stroke: %s; } ", line(i), c[column], line(i), c[column])
		}
	}
	write(light, 0)
	b.WriteString("\n@media screen and (prefers-color-scheme: dark) { ")
	write(dark, 1)
	b.WriteString("}\n")
	return b.String()
}

// key returns the legend of the heat maps.
func key() string {
	var b strings.Builder
	b.WriteString(`<span class="key">worse <svg width="160" height="12" role="img" aria-label="colours from worse to better">`)
	for i := range levels {
		fmt.Fprintf(&b, `<rect class="h%d" x="%d" width="10" height="12"/>`, i, 10*i)
	}
	b.WriteString("</svg> better</span>")
	return b.String()
}
