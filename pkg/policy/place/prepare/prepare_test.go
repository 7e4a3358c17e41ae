package prepare

import (
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestLimits checks that a row has the larger of gpu_mem and the measured memory.
func TestLimits(t *testing.T) {
	fn := function.Function{Name: "f", GPUMem: 1000 * gpu.MiB}
	file, size := fn, fn
	file.Model, size.Model = &function.Model{Name: "m", File: "m.safetensors"}, &function.Model{Name: "m", Size: 600 * gpu.MiB}
	for what, c := range map[string]struct {
		fn                    function.Function
		measured, model, want float64
		share                 bool
	}{
		"more measured":             {fn, 1200, 600, 1200, false},
		"more stated":               {fn, 800, 600, 1000, false},
		"nothing measured":          {fn, 0, 0, 1000, false},
		"nothing stated":            {function.Function{Name: "f"}, 800, 600, 800, true},
		"another function":          {function.Function{Name: "g", GPUMem: gpu.GiB}, 800, 0, 800, false},
		"weights of the daemon":     {file, 800, 600, 1600, true},
		"weights of each":           {file, 800, 600, 1000, false},
		"weights kept, as its own":  {size, 800, 600, 1000, true},
		"weights and more measured": {file, 1700, 600, 1700, true},
	} {
		rows := []profile.Row{{Function: "f", GPUMemMiB: c.measured, ModelMemMiB: c.model}}
		raised := Limits(rows, []function.Function{c.fn}, c.share)
		if rows[0].GPUMemMiB != c.want || slices.Contains(raised, "f") != (c.want > c.measured) {
			t.Errorf("%s: got %v MiB, raised %v; want %v MiB", what, rows[0].GPUMemMiB, raised, c.want)
		}
	}
}
