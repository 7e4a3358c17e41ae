package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/svg"
)

// levels is how many colours a heat map has: classes h0 (worst) to h15, t0 to t15
// for texts on them.
const levels = 16

// light and dark are the colours from bad to good on paper of either kind.
// They move away from the paper evenly, so that they can be told apart without
// seeing hues.
var (
	light = [][3]float64{{253, 247, 214}, {161, 218, 180}, {65, 166, 186}, {34, 94, 168}, {8, 29, 88}}
	dark  = [][3]float64{{44, 48, 74}, {48, 86, 140}, {38, 140, 150}, {110, 200, 120}, {245, 238, 150}}
)

// colour lies at a part of the way through the stops.
func colour(stops [][3]float64, part float64) string {
	at := min(max(part, 0), 1) * float64(len(stops)-1)
	i := min(int(at), len(stops)-2)
	rest := at - float64(i)
	var c [3]int
	for k := range c {
		c[k] = int(math.Round(stops[i][k] + rest*(stops[i+1][k]-stops[i][k])))
	}
	return fmt.Sprintf("#%02x%02x%02x", c[0], c[1], c[2])
}

// level is the class of a part of the way, and that of a text on it.
func level(part float64) (class, text string) {
	n := int(math.Round(min(max(part, 0), 1) * (levels - 1)))
	return fmt.Sprint("h", n), fmt.Sprint("t", n)
}

// lines are the colours of the batch sizes, classes b0 to b5, on light paper and
// on dark; markers tell them apart too.
var lines = [][2]string{
	{"#225ea8", "#7fb2ff"}, {"#d95f0e", "#ff9d5c"}, {"#238b45", "#6fd08c"}, {"#88419d", "#d59be8"}, {"#c51b8a", "#ff8ac6"}, {"#636363", "#b9bec6"},
}

// line is the class of the i-th batch size.
func line(i int) string { return fmt.Sprintf("b%d", i%len(lines)) }

// colours are the style of all classes of colours.
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

// key shows what the colours of heat maps mean.
func key() string {
	var b strings.Builder
	b.WriteString(`<span class="key">worse <svg width="160" height="12" role="img" aria-label="colours from worse to better">`)
	for i := range levels {
		fmt.Fprintf(&b, `<rect class="h%d" x="%d" width="10" height="12"/>`, i, 10*i)
	}
	b.WriteString("</svg> better</span>")
	return b.String()
}
