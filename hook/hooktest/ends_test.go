package hooktest

import (
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestEnds has programs do what they may with contexts and streams around
// their end, and checks that nothing hangs and nothing is forgotten.
func TestEnds(t *testing.T) {
	h := newHost(t)
	h.start()
	for _, name := range []string{"detach", "reset", "foreign", "failed", "ahead"} {
		t.Run(name, func(t *testing.T) {
			h := h.within(t)
			slice := whole
			slice.Mem = gpu.GiB
			p := h.run(h.register(name, slice), "check/ends", name)
			h.eventually("it ends", p.over)
			if err := p.wait(); err != nil || p.out.String() != "done\n" {
				t.Errorf("%v: %s", err, p.out.String())
			}
		})
	}
}

// TestReleased has one of two holders of the primary context release it while
// the other computes: that one's lease holds as long as its kernel runs.
func TestReleased(t *testing.T) {
	h := newHost(t)
	h.start()
	p := h.run(h.register("released", whole), "check/ends", "release")
	h.eventually("it computes", func() bool { return strings.Contains(p.out.String(), "busy") || p.over() })
	looks, held := 0, 0
	h.eventually("it ends", func() bool {
		row, ok := h.row("released")
		if ok && !strings.Contains(p.out.String(), "done") {
			looks++
			if holds(row.State) {
				held++
			}
		}
		return p.over()
	})
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	if looks == 0 || held < looks*9/10 {
		t.Errorf("it held its lease at %d of %d looks", held, looks)
	}
}
