// Package token decides which clients may use a GPU now. It has two policies behind one
// contract (Policy):
//
//   - multi-token, the scheduler of FaST-GShare (section 3.3.2), grants leases of GPU time.
//     multitoken.go has its rules.
//   - introspective, Dilu's fast vertical scaling (section 3.4.1), meters the kernel blocks that
//     each instance may launch. introspective.go has its rules.
//
// A policy does no I/O: the caller passes events and performs the returned actions.
// pkg/daemon/token runs one policy per GPU; pkg/sim/planned simulates policies.
//
// A policy consists of types with one task each. Each type uses only types to its left:
//
//	multi-token:    ledger (accounts of the window), timetable (turns), handover and rounds,
//	                admission, multiToken
//	introspective:  meter (counters; measure.go has speeds and launch cycles), scaling
//	                (Algorithm 2), tokens, trials, introspective
package token

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
)

// Policy shares one GPU among clients. Step applies all of its events and then decides once.
// Snapshot describes the state after the last Step.
type Policy = policy.Stepper[Event, Action, Snapshot]

// The names of the policies.
const (
	MultiToken    = "multi-token"
	Introspection = "introspective"
)

// policies maps the name of each policy to its constructor.
var policies = map[string]func(c Config, now time.Duration) Policy{
	MultiToken: func(c Config, now time.Duration) Policy { return newMultiToken(c, now) },
	Introspection: func(c Config, now time.Duration) Policy {
		return newIntrospective(c, cmp.Or(c.Introspective, published), now)
	},
}

// Names returns the names of the policies in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(policies)) }

// New returns a new policy, whose first window starts at now. It returns an error if the name
// is unknown.
func New(name string, c Config, now time.Duration) (Policy, error) {
	if f := policies[name]; f != nil {
		return f(c, now), nil
	}
	return nil, fmt.Errorf("policy %q: expected %s", name, strings.Join(Names(), " or "))
}
