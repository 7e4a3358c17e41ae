package token

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
)

// Policy decides who may use one GPU now. Its Step decides once, after all of
// the events; a Snapshot is as of the last Step.
type Policy = policy.Live[Event, Action, Snapshot]

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
