package gateway

import (
	"fmt"
	"net/http"
)

// A function that spans several GPUs is served by instances of a plan (gfaas up)
// alone. To a policy an instance is on one GPU: it takes a slot and memory there. One
// on several would have to get both on all of them at once, which no policy of the
// papers decides; a plan has.

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

// respan tells the policy how many instances there are of a function that spans
// several GPUs: it is to start no more. Locked.
func (e *engine) respan(t *target) {
	if t.function.GPUs > 1 && !t.gone {
		e.respec(t)
	}
}
