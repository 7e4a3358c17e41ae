package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestPark: where memory can wait on the host, it makes room for another function's
// that way, and its instance is host-warm; where it does not go, the instance does.
func TestPark(t *testing.T) {
	for _, goes := range []bool{true, false} {
		var w *world
		var asked atomic.Bool
		w = newWorld(t, http.HandlerFunc(echo), func(c *Config) {
			c.Park, c.GPUs = true, []GPU{{Name: "sim", Mem: int64(gpu.GiB)}}
			c.Usage = func(context.Context) (wire.Status, error) {
				asked.Store(true)
				s := wire.Status{GPUs: []wire.GPUStatus{{GPU: "sim"}}}
				for _, id := range w.runtime.Running() {
					row := wire.ClientStatus{Instance: id, MemUsedMiB: 600}
					if goes {
						row.MemParkedMiB = 600
					}
					s.GPUs[0].Clients = append(s.GPUs[0].Clients, row)
				}
				return s, nil
			}
		})
		of := func(name string) function.Function {
			return fn(name, func(f *function.Function) { f.GPUMem = 600 * gpu.MiB })
		}
		w.apply(of("a"), of("b"))
		calls := []string{"a", "b", "a", "b"}
		if !goes {
			calls = calls[:2] // each takes as long as memory may
		}
		for _, name := range calls {
			if a := w.do("POST", "/function/"+name, "x"); a.status != 200 {
				t.Fatalf("%+v", a)
			}
		}
		warm := *w.Status().Functions[0].HostWarmStarts + *w.Status().Functions[1].HostWarmStarts
		if goes && warm != 2 || !goes && warm != 0 || !asked.Load() {
			t.Errorf("memory goes %v: %d host-warm starts", goes, warm)
		}
		w.close()
	}
}
