package kernel

import (
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// What is kept of modules is bounded by the bytes of their text too: those used least
// recently go, and none that the job uses.
func TestBytesOfModules(t *testing.T) {
	const size, kept = 16 << 20, maxPTX / (16 << 20)
	w := (&device{}).newWorker(nil, nil)
	blank := strings.Repeat(" ", size-1)
	link := func(name string) (j job.Job) {
		w.turn++
		w.link(name+blank, &j)
		return j
	}
	for i := range kept {
		if j := link(string(rune('a' + i))); len(j.Load) != 1 || len(j.Unload) != 0 {
			t.Fatalf("module %d: %d are loaded, %d go", i, len(j.Load), len(j.Unload))
		}
	}
	link("a") // so that b is the one
	b := w.modules[moduleKey("b"+blank)].number
	if j := link("A"); len(j.Load) != 1 || len(j.Unload) != 1 || j.Unload[0] != b || j.Load[0].Number != b || w.ptx != maxPTX {
		t.Errorf("one more: %d are loaded, %v go, want %d; %d bytes are there", len(j.Load), j.Unload, b, w.ptx)
	}
	w.turn++
	var j job.Job // a job that uses more than is kept
	for i := range kept + 2 {
		w.link(string(rune('A'+i))+blank, &j)
	}
	if len(j.Load) != kept+1 || len(j.Unload) != kept-1 || len(w.modules) != kept+2 {
		t.Errorf("%d are loaded, %d go, %d are there", len(j.Load), len(j.Unload), len(w.modules))
	}
	for key := range w.modules {
		w.forget(key)
	}
	if w.ptx != 0 {
		t.Errorf("%d bytes are left of none", w.ptx)
	}
}
