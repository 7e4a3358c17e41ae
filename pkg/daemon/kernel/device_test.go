package kernel

import (
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// TestLimitOnPTXOfModules checks that the modules of an executor are limited by the total length of their
// PTX. The least recently used are unloaded first, but none that the current job uses.
func TestLimitOnPTXOfModules(t *testing.T) {
	const size, limit = 16 << 20, maxPTX / (16 << 20) // length of a module, and how many fit
	w := (&device{}).newWorker(nil, nil)
	blank := strings.Repeat(" ", size-1)
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
		t.Errorf("one module more: got a job that loads %d modules and unloads %v, and %d bytes of PTX; want 1, [%d] and %d", len(j.Load), j.Unload, w.ptx, b, maxPTX)
	}
	w.turn++
	var j job.Job // a job that uses more than the limit
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
		t.Errorf("no module is loaded: got %d bytes of PTX, want 0", w.ptx)
	}
}
