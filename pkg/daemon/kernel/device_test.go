package kernel

import (
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// TestLimitOnPTXOfModules checks that the modules of an executor are limited by the total length of their
// PTX. The least recently used are unloaded first, but none that the current job uses.
func TestLimitOnPTXOfModules(t *testing.T) {
	const size = 16 << 20       // length of a module's PTX
	const limit = maxPTX / size // number of modules that fit
	w := (&device{}).newWorker(nil, nil)
	blank := strings.Repeat(" ", size-1) // pads a name of one letter to that length
	link := func(name string) (j job.Job) {
		w.turn++
		w.link(name+blank, &j)
		return j
	}
	for i := range limit {
		if j := link(string(rune('a' + i))); len(j.Load) != 1 || len(j.Unload) != 0 {
			t.Fatalf("module %d: got a job that loads %d modules and unloads %d, want 1 and 0", i, len(j.Load), len(j.Unload))
		}
	}
	link("a") // so that b is the least recently used
	b := w.modules[moduleKey("b"+blank)].number
	if j := link("A"); len(j.Load) != 1 || len(j.Unload) != 1 || j.Unload[0] != b || j.Load[0].Number != b || w.ptx != maxPTX {
		t.Errorf("one module more than fits: got a job that loads %d modules and unloads %v, and %d bytes of PTX; want 1, [%d] and %d", len(j.Load), j.Unload, w.ptx, b, maxPTX)
	}
	// A job that uses two modules more than fit. One of them, A, is loaded already, and the others replace
	// all that this job does not use.
	w.turn++
	var j job.Job
	for i := range limit + 2 {
		w.link(string(rune('A'+i))+blank, &j)
	}
	if len(j.Load) != limit+1 || len(j.Unload) != limit-1 || len(w.modules) != limit+2 {
		t.Errorf("job with %d modules: got %d loaded, %d unloaded and %d remaining; want %d, %d and %d", limit+2,
			len(j.Load), len(j.Unload), len(w.modules), limit+1, limit-1, limit+2)
	}
	for key := range w.modules {
		w.forget(key)
	}
	if w.ptx != 0 {
		t.Errorf("after all modules were unloaded: got %d bytes of PTX, want 0", w.ptx)
	}
}
