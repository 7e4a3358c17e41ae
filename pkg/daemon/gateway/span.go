package gateway

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/gfaas/gfaas/pkg/instance"
)

// A function that spans several GPUs is served by instances of a plan (gfaas up)
// alone. To a policy an instance is on one GPU: it takes a slot and memory there. One
// on several would have to get both on all of them at once, which no policy of the
// papers decides; a plan has. The policy knows such an instance on its first GPU; on
// the others it is told of the memory.

// unserved is the answer to a call of a function that spans several GPUs and has no
// instance; else nil. Locked.
func (e *engine) unserved(t *target) *Error {
	if t.function.GPUs <= 1 || e.count(t) > 0 {
		return nil
	}
	return &Error{Status: http.StatusBadGateway, Code: codeStartFailed,
		Message: fmt.Sprintf("an instance of function %s spans %d GPUs: none of a plan is there, and the gateway starts instances of one GPU", t.name, t.function.GPUs),
		Hint:    "'gfaas-place plan' says where, 'gfaas up PLAN.json' starts it; the gateway uses it from then on"}
}

// further is the GPUs beyond its first that an instance is on, of those served here.
func (g *Gateway) further(r instance.Record) (out []int32) {
	for _, name := range r.GPUs[min(1, len(r.GPUs)):] {
		if i := slices.IndexFunc(g.cfg.GPUs, func(gpu GPU) bool { return gpu.Name == name }); i >= 0 {
			out = append(out, int32(i))
		}
	}
	return out
}

// occupy tells the policy what is taken of the memory of an instance's further GPUs,
// now that it has come or gone. Locked.
func (e *engine) occupy(s *server) {
	for _, gpu := range s.further {
		e.setOccupied(gpu, e.occupied(gpu))
	}
}

// respan tells the policy how many instances there are of a function that spans
// several GPUs: it is to start no more. Locked.
func (e *engine) respan(t *target) {
	if t.function.GPUs > 1 && !t.gone {
		e.respec(t)
	}
}
