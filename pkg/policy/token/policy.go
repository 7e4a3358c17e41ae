package token

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Policy decides who may use one GPU now. A policy is a value without I/O,
// clock or timer; it is not safe for concurrent use.
type Policy interface {
	// Step tells what happened and when, and returns what to do about it, in
	// order.
	Step(now time.Duration, ev Event) []Action
	// Clients is how all clients stand, by id.
	Clients() []ClientStatus
	// Debt is what the instance carried over its limit into this window.
	Debt(instance string) time.Duration
	// Charged is all the GPU time that the instance was charged since it was
	// made known, up to the last window or the last lease that ended.
	Charged(instance string) time.Duration
	// SMRunning is the percent of SMs that leases hold now, those draining
	// included.
	SMRunning() float64
	// Window is the length of a window.
	Window() time.Duration
}

// The names of the policies: of a Scheduler, and of an Introspective.
const (
	MultiToken    = "multi-token"
	Introspection = "introspective"
)

// policies are all there are, by name.
var policies = map[string]func(c Config, now time.Duration) Policy{
	MultiToken:    func(c Config, now time.Duration) Policy { return New(c, now) },
	Introspection: func(c Config, now time.Duration) Policy { return NewIntrospective(c, Published, now) },
}

// Names are the policies there are.
func Names() []string {
	var names []string
	for name := range policies {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Make makes the policy of that name, whose first window starts at now.
func Make(name string, c Config, now time.Duration) (Policy, error) {
	if f := policies[name]; f != nil {
		return f(c, now), nil
	}
	return nil, fmt.Errorf("policy %q: expected %s", name, strings.Join(Names(), " or "))
}
