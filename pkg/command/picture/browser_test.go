package picture

import (
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/command/svg"
	"github.com/gfaas/gfaas/pkg/plan"
)

// crowd returns a plan with the given number of functions, some with long names. Each GPU has the given number of tiles,
// which become narrower.
func crowd(functions, tiles int) plan.Plan {
	p := plan.Plan{Version: 1, Algorithm: "fast", Model: plan.ModelRect, Bound: 1, BoundMethod: "area"}
	for k := 0; k < functions; {
		g := plan.GPU{Node: fmt.Sprint("a-node-with-a-name-", len(p.GPUs)), Index: len(p.GPUs), MemMiB: 40960}
		for i := range tiles {
			name := fmt.Sprint("f", k%functions)
			if k%3 == 1 {
				name = fmt.Sprintf("efficientnet_v2_m-%d", k%functions)
			}
			side := 100 / float64(tiles)
			in := instance(name, k, rect{sm: side, quota: 1, y: side * float64(i)})
			if k%2 == 1 {
				in.QuotaRequest /= 4
			}
			g.Instances = append(g.Instances, in)
			if k++; k <= functions {
				p.Demand = append(p.Demand, plan.Served{Function: name, RPS: 12345.6, ServedRPS: 10})
			}
		}
		p.GPUs = append(p.GPUs, g)
	}
	p.GPUsUsed = len(p.GPUs)
	return p
}

func TestMain(m *testing.M) { os.Exit(browsertest.Tests{M: m}.Run()) }

// TestTextsFit checks in a browser that every text lies within its tile and is readable.
func TestTextsFit(t *testing.T) {
	ctx, complaints := browsertest.Open(t)
	for name, p := range map[string]plan.Plan{
		"example": example(), "fleet": fleet(), "tokens": tokens(), "empty": {BoundMethod: "area"},
		"1 function": crowd(1, 1), "3 functions": crowd(3, 3), "12 functions": crowd(12, 6), "40 functions": crowd(40, 16),
		"slivers": crowd(60, 60), "many": crowd(100, 1),
	} {
		browsertest.Show(t, ctx, append([]byte("<style>body { margin: 0 }</style>"), SVG(p)...))
		for _, fault := range browsertest.Faults(t, ctx) {
			t.Errorf("%s: %s", name, fault)
		}
	}
	if all := complaints(); len(all) > 0 {
		t.Errorf("messages of the browser: got %q, want none", all)
	}
}

// TestMarksDiffer checks that 56 functions have different marks. The colours must have a minimum distance in OKLab
// (Ottosson 2020) in normal vision and, with a lower minimum, in deuteranopia and protanopia (Viénot 1999). Text must be
// readable on each.
func TestMarksDiffer(t *testing.T) {
	marks := map[string]bool{}
	for i := range 56 {
		marks[palette[i%len(palette)]+patterns[i/len(palette)%len(patterns)]] = true
	}
	if len(marks) != 56 {
		t.Errorf("56 functions have %d marks, want 56", len(marks))
	}
	for i, a := range palette {
		l := []float64{svg.Luminance(a) + 0.05, svg.Luminance(on(i)) + 0.05}
		if contrast := max(l[0], l[1]) / min(l[0], l[1]); contrast < 4.5 {
			t.Errorf("a text on %s has a contrast of %.2f, want at least 4.5", a, contrast)
		}
		for _, b := range palette[:i] {
			for eyes, least := range map[string]float64{"all": 0.12, "no green": 0.078, "no red": 0.078} {
				x, y := oklab(a, eyes), oklab(b, eyes)
				if d := math.Hypot(math.Hypot(x[0]-y[0], x[1]-y[1]), x[2]-y[2]); d < least {
					t.Errorf("colours %s and %s to eyes with %s: got a distance of %.3f, want at least %.3f", a, b, eyes, d, least)
				}
			}
		}
	}
}

// oklab returns a colour in OKLab, as seen with the given kind of vision.
func oklab(colour, eyes string) (lab [3]float64) {
	var r, g, b int
	_, _ = fmt.Sscanf(colour, "#%02X%02X%02X", &r, &g, &b)
	c := [3]float64{}
	for i, v := range []int{r, g, b} {
		if c[i] = float64(v) / 255 / 12.92; v > 10 {
			c[i] = math.Pow((float64(v)/255+0.055)/1.055, 2.4)
		}
	}
	times := func(m [3][3]float64) {
		was := c
		for i := range c {
			c[i] = max(0, m[i][0]*was[0]+m[i][1]*was[1]+m[i][2]*was[2])
		}
	}
	switch eyes {
	case "no green":
		times([3][3]float64{{0.29275, 0.70725}, {0.29275, 0.70725}, {-0.02234, 0.02234, 1}})
	case "no red":
		times([3][3]float64{{0.11238, 0.88762}, {0.11238, 0.88762}, {0.00401, -0.00401, 1}})
	}
	times([3][3]float64{{0.4122214708, 0.5363325363, 0.0514459929}, {0.2119034982, 0.6806995451, 0.1073969566}, {0.0883024619, 0.2817188376, 0.6299787005}})
	for i := range c {
		c[i] = math.Cbrt(c[i])
	}
	for i, m := range [3][3]float64{{0.2104542553, 0.7936177850, -0.0040720468}, {1.9779984951, -2.4285922050, 0.4505937099}, {0.0259040371, 0.7827717662, -0.8086757660}} {
		lab[i] = m[0]*c[0] + m[1]*c[1] + m[2]*c[2]
	}
	return lab
}
