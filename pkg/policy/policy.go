// Package policy is the one contract of the policies that are driven by events: who
// may use the GPU now (token), which invocation goes next (queue), how many instances
// there are (scale). Planners (place, search) are pure functions and need none.
package policy

import "time"

// Stepper is a policy that is driven by events. It does no I/O, knows no clock and
// asks for no randomness but a seed's, so that a daemon and the simulator run
// the same bytes and a recorded log of events replays to the same decisions. It
// is not safe for concurrent use.
type Stepper[Event, Action, Snapshot any] interface {
	// Step applies what happened at one instant, in order, and appends to
	// actions what to do about it, in order. Instants never go back. Every
	// decision carries its reason. A policy that wants to be called at a time of
	// its own says so by an action, which replaces the one before it.
	Step(now time.Duration, events []Event, actions []Action) []Action
	// Snapshot says how everything stands, and of what waits why it does. It
	// changes nothing.
	Snapshot() Snapshot
}
