package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
)

// target is a function that is applied, or was and has instances yet, as calls and
// the engine know it.
type target struct {
	name   string
	number int32
	tally
	series series

	// What calls look at.
	forgotten atomic.Bool  // nothing is counted of it any more
	timeout   atomic.Int64 // a time.Duration
	queue     atomic.Int64 // calls that may wait
	idle      atomic.Int64 // a time.Duration: an upgraded connection that is idle for so long is closed; 0 is never
	probes    atomic.Pointer[function.Probes]

	// The engine's, under its lock.
	function  function.Function
	since     time.Time      // when it became known
	gone      bool           // it is not applied any more
	spec      queue.Function // what the policy knows
	instances int            // starting ones included
	*generation
}

// generation is what belongs to one version of a function: it begins when the function is
// applied, and ends when it is removed or applied with other instances. The next version
// begins anew. What is counted (tally, series) is of the name, and goes on; and so do
// instances of plans, which are not the gateway's to stop.
type generation struct {
	life context.Context // until it ends
	end  context.CancelFunc

	contract string // as its last instance had it; empty before there was one
	costs    costs
	fails    int            // starts that failed in a row
	failure  error          // the last of those
	held     int            // instances that ended too soon, for which no others are started yet
	kept     int            // with held: how many are kept meanwhile, of scale.min
	scaling  *autoscaling   // nil where the policy alone scales it
	unit     scale.Instance // what its scaler starts
}

// renew begins another version of a function. Locked.
func (e *engine) renew(t *target) {
	if t.generation != nil {
		t.generation.end()
	}
	t.generation = &generation{}
	t.generation.life, t.generation.end = context.WithCancel(e.g.life)
	e.g.restarts.forget(t.name, keeping(t.name))
}

// outdated reports whether an instance is the gateway's own and of a version of its
// function that has ended. Locked.
func (s *server) outdated() bool { return s.own && s.generation != s.target.generation }

// isOf reports whether an instance that a gateway started is of a version of a function.
func isOf(r instance.Record, fn function.Function) bool {
	now := launch.Intended(fn, instance.Placement{})
	return (r.Definition == "" || r.Definition == now.Definition) && r.Slice.Mem == fn.GPUMem
}

// pause is how long an answer may take to begin, and then to go on.
func (t *target) pause() time.Duration { return time.Duration(t.timeout.Load()) }

// same reports whether a change of a function makes no new version of it.
func same(a, b function.Function) bool { return reflect.DeepEqual(a.Versioned(), b.Versioned()) }

// refusal is the answer to a call that the policy rejected. Locked.
func (e *engine) refusal(t *target, rule string) *Error {
	switch rule {
	case queue.TooLarge:
		if inUse := e.memoryInUse(t); inUse != nil {
			return inUse
		}
		return &Error{Status: http.StatusServiceUnavailable, Code: codeLargerThan,
			Message: fmt.Sprintf("function %s needs %v and no GPU has that much memory", t.name, t.function.GPUMem)}
	case queue.QueueFull:
		return &Error{Status: http.StatusTooManyRequests, Code: codeQueueFull, Retry: e.backlog(t),
			Message: fmt.Sprintf("%d calls of function %s wait already", t.queue.Load(), t.name)}
	case queue.TooLate:
		return &Error{Status: http.StatusGatewayTimeout, Code: codeQueueTimeout,
			Message: "no place on an instance was free within " + e.g.cfg.QueueTimeout.String()}
	case queue.StartFailed:
		return startFailed(t, t.failure)
	}
	return noFunction(t.name)
}

func startFailed(t *target, cause error) *Error {
	var gone *ports.NotFoundError
	if errors.As(cause, &gone) { // it was removed while the call waited
		return noFunction(t.name)
	}
	e := &Error{Status: http.StatusBadGateway, Code: codeStartFailed, Message: fmt.Sprintf("no instance of function %s could be started", t.name)}
	if cause != nil {
		e.Message += ": " + cause.Error()
	}
	return e
}

// backlog is how long what waits for a function will take, about. Locked.
func (e *engine) backlog(t *target) time.Duration {
	places := max(len(e.g.cfg.GPUs)*e.g.cfg.Concurrency, 1)
	return max(time.Duration(t.queue.Load())*t.spec.Warm/time.Duration(places), time.Second)
}
