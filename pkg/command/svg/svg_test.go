package svg

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/number"
)

func TestDrawing(t *testing.T) {
	var d Drawing
	d.Open("g", "class", `a"b`)
	d.Add("rect", "x", 1.256, "y", 2.0, "rx", 3, Raw(`fill="red"`))
	d.AddText("text", "a < b's", Raw(""))
	d.AddTitled("path", "<tip>", "d", d.Path("M", 1.0, " ", 2.5, "z"))
	d.Close("g")
	const want = `<g class="a&quot;b"><rect x="1.26" y="2" rx="3" fill="red"/><text >a &lt; b's</text><path d="M1 2.5z"><title>&lt;tip&gt;</title></path></g>`
	if d.String() != want {
		t.Errorf("got  %s\nwant %s", d.String(), want)
	}
	fixed := Drawing{Length: func(v float64) string { return number.Fixed(v, 1) }}
	if fixed.Add("r", "x", 2.0); fixed.String() != `<r x="2.0"/>` {
		t.Errorf(`got %s, want <r x="2.0"/>`, fixed.String())
	}
}
