package gateway

import (
	"net/http"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// A probe is a request that asks about a function without using it, such as a health
// check (function.Probes). It goes to an instance that is ready, past the policy and its
// queues, so it neither starts an instance nor keeps one loaded: the policy counts as
// idle what only answers probes.

// probeRetry is after what a client may ask again whether a function has an instance.
const probeRetry = 10 * time.Second

// notLoaded refuses a probe of a function without an instance that is ready.
func notLoaded(t *target) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Code: codeNotLoaded, Retry: probeRetry,
		Message: "function " + t.name + " has no instance that is ready, and a probe starts none", Hint: `"probes" in function.yaml says which requests are probes`}
}

// warm returns the instance that a probe of a function is sent to: of those that are
// ready and in GPU memory the one with the fewest calls. It returns nil if there is none.
// Locked.
func (e *engine) warm(t *target) *server {
	var best *server
	for _, s := range e.servers {
		if s.target == t && s.state == serverReady && !s.out && !s.outdated() && (best == nil || len(s.calls) < len(best.calls)) {
			best = s
		}
	}
	return best
}

// isWarm reports whether a probe of a function can be sent.
func (e *engine) isWarm(t *target) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.warm(t) != nil
}

// probe gives a probe its instance, or refuses it.
func (e *engine) probe(c *call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.warm(c.target)
	switch {
	case e.closed || e.g.draining.Load():
		c.turn <- draining()
	case s == nil:
		c.turn <- notLoaded(c.target)
	default:
		c.on, c.found, c.rule = s, residency.GPUWarm, "probe"
		s.probes = append(s.probes, c)
		c.turn <- nil
	}
}

// probed takes a probe that is over off its instance.
func (e *engine) probed(c *call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.on != nil {
		c.on.probes = slices.DeleteFunc(c.on.probes, func(other *call) bool { return other == c })
	}
}

// cutProbes cuts the probes of an instance that is to answer no more. Locked.
func (e *engine) cutProbes(s *server) {
	for _, c := range s.probes {
		go c.cut(errDied)
	}
}
