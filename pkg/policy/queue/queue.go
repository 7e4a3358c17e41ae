// Package queue decides which invocation goes next and where: thirteen policies
// behind one interface, from first come first served to MQFQ-Sticky, LALB and
// CFS-affinity. A policy turns what happened into what to do; it does no I/O
// and knows no clock, so that the simulator and a gateway run the same bytes.
//
// The rules R1 to R20 that comments name are those of docs/simulation.md.
package queue

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// Policy decides. Step applies what happened at one instant, completions
// before arrivals (R1), and appends to actions what to do about it until
// nothing more can start. Instants never go back.
type Policy interface {
	Step(now time.Duration, events []Event, actions []Action) []Action
}

// EventKind says what happened.
type EventKind uint8

// The kinds of event.
const (
	Completed EventKind = iota // an invocation ended; its container is idle
	Arrived                    // an invocation came
	Woke                       // the time asked for with a Wake action
	Used                       // how busy a GPU was, for policies that adapt D
)

// Event is something that happened.
type Event struct {
	Kind      EventKind
	Function  int32         // Arrived, Completed
	GPU       int32         // Completed, Used
	Container int32         // Completed: as the Run action said
	ID        int64         // Arrived, Completed: the invocation's; ids grow
	At        time.Duration // Arrived: when, which may be earlier
	// Executed is, of a Completed event, how long it ran, starting and loading
	// excluded.
	Executed time.Duration
	Busy     float64 // Used: 0 to 1
}

// ActionKind says what to do.
type ActionKind uint8

// The kinds of action.
const (
	Run      ActionKind = iota // run an invocation on a GPU now
	Reject                     // no GPU can hold it
	Assign                     // it waits for that GPU alone from now on (LALB)
	Remove                     // remove an idle container, or a model from a cache
	Offload                    // move an idle container's memory to the host
	Prefetch                   // move an idle container's memory to the GPU
	Wake                       // come back with a Woke event at the time After
)

func (k ActionKind) String() string {
	return [...]string{"run", "reject", "assign", "remove", "offload", "prefetch", "wake"}[k]
}

// Action is something to do, and why.
type Action struct {
	Kind      ActionKind
	Start     residency.Start // Run: what the invocation is expected to find
	Elsewhere bool            // Run: a false miss: cached on another GPU (R18)
	Function  int32           // for Remove and Offload whose container it is
	GPU       int32
	Container int32 // Run, Remove, Offload; negative where there are no containers
	ID        int64
	Arrived   time.Duration // Run, Reject, Assign: when the invocation came
	Expected  time.Duration // Run: how long it should take, starting and loading included
	At        time.Duration // Wake
	Reason    Reason
}

// Reason is why an action is taken: the rule that decided and what it looked
// at. It is a value, so that nobody pays for text that is not printed.
type Reason struct {
	Rule     string
	Waiting  int32   // invocations of the function that wait, this one included
	InFlight int32   // invocations of it that run, without this one
	Value    float64 // what the rule compares: see Rule
}

// Function is what a policy knows of a function.
type Function struct {
	Warm, Cold, Load time.Duration
	Mem              int64 // bytes on the GPU
	Weight           float64
	Model            int32 // functions of one model share it in a cache
	Tenant           int32
}

// expected is how long an invocation takes by how it starts (R5).
func (f *Function) expected() [3]time.Duration {
	return [3]time.Duration{
		residency.Cold:     f.Cold,
		residency.HostWarm: f.Warm + f.Load,
		residency.GPUWarm:  f.Warm,
	}
}
