package picture

import (
	"strings"
	"testing"
)

// TestLayouts checks a fleet of 60 GPUs: 30 have the same layout, and the others all differ.
func TestLayouts(t *testing.T) {
	layouts := Layouts(fleet())
	total := 0
	for _, l := range layouts {
		total += l.Count
	}
	if layouts[0].Count != 30 || layouts[0].GPU.Index != 0 || len(layouts) != 31 || total != 60 {
		t.Errorf("layouts: got %d of %d GPUs, the first %+v; want 31 of 60, the first of 30 GPUs with GPU 0", len(layouts), total, layouts[0])
	}
}

// TestGPU checks that the picture of a GPU for another page contains every instance, its function's mark and, if known,
// the memory.
func TestGPU(t *testing.T) {
	p := example()
	for i, rects := range []int{4 + 1 + 2, 21 + 1 + 2} { // instances, free space, memory
		g := p.GPUs[i]
		g.MemMiB = 16384
		text := GPU(p, g, 200)
		checkXML(t, []byte(text))
		if got := strings.Count(text, "<rect"); got != rects {
			t.Errorf("GPU %d: %d rectangles, want %d:\n%s", i, got, rects, text)
		}
		for k := range g.Instances {
			g.Instances[k].MemMiB = 0
		}
		if got := strings.Count(GPU(p, g, 200), "<rect"); got != rects-2 {
			t.Errorf("GPU %d without memory: %d rectangles, want %d", i, got, rects-2)
		}
	}
	for i := range 30 {
		checkXML(t, []byte(Swatch(i)))
	}
	if !strings.Contains(Swatch(2), palette[2]) || !strings.Contains(Swatch(2), ">3</text>") {
		t.Errorf("mark of the third function: got %s, want the text 3 in the colour %s", Swatch(2), palette[2])
	}
	checkXML(t, []byte(Definitions()))
}
