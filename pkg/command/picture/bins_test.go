package picture

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/svg"
)

func TestBins(t *testing.T) {
	b := Bins{Headline: "14 bins", Summary: "at least 14", Unplaced: []string{"wide: quota 2 is larger than <the> bin"}}
	for i := range 5 {
		b.Bins = append(b.Bins, Bin{Times: max(1, 10*(i%2)-5), Boxes: []Box{
			{0, 0, 0.5, 1, 0, []string{fmt.Sprint("tall-", i), "0.5×100"}},
			{0.5, 0.75, 0.5, 0.25, 1, []string{fmt.Sprint("flat-", i), "0.5×25"}},
		}})
	}
	drawn := b.SVG()
	checkXML(t, drawn)
	text := string(drawn)
	for _, want := range []string{"14 bins", "bin 1<", "5 bins like this", "bin 7<", "<title>[flat-4 0.5×25]</title>", "62%", "Not placed: wide"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	// The flat box of the first bin is in the upper right quarter of its square.
	side := (pageWidth-2*margin+gap)/3 - gap
	var want svg.Drawing
	want.Open("rect", "x", margin+side/2, "y", margin+titleSize+textSize+10+textSize*lineHeight+headHeight, "width", side/2, "height", side/4, "fill", palette[1])
	box := strings.TrimSuffix(want.String(), ">")
	if !strings.Contains(text, box) {
		t.Errorf("the picture has no %s, want it", box)
	}
	checkXML(t, Bins{Headline: "0 bins"}.SVG())
}
