// Package policy defines the interface of all event-driven policies: pkg/policy/token
// decides which clients may launch work on a GPU, pkg/policy/queue which invocation runs
// next, and pkg/policy/scale how many instances a function has. Daemons and the simulator
// step them. Planners (pkg/policy/place, pkg/policy/search) do not implement it.
package policy

import "time"

// Stepper is an event-driven policy. It does no I/O, reads no clock, and draws random
// numbers only from a seed in its configuration. A daemon and the simulator can therefore
// run the same code, and a recorded log of events replays to the same decisions. A Stepper
// is not safe for concurrent use.
type Stepper[Event, Action, Snapshot any] interface {
	// Step applies the events of one instant, in order, and appends the resulting actions
	// to actions, in order. now never decreases. Every decision carries its reason. A
	// policy that needs a step at a later time requests it by an action, which replaces its
	// previous request.
	Step(now time.Duration, events []Event, actions []Action) []Action
	// Snapshot returns the state of the policy, including the reasons why work is waiting.
	// It changes nothing.
	Snapshot() Snapshot
}
