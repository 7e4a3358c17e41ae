// Package joint chooses configurations and packs them together: column
// generation over what one GPU can host, with a proven bound, then rounding
// and a search over what is left. It knows functions and GPUs by number only.
package joint

import (
	"math"

	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
)

// One is the whole window, and all SMs of a GPU, in the unit of shares.
const One = 1_000_000_000

// Option is a configuration that may serve a function.
type Option struct {
	W, H int64   // quota and SM share, in billionths
	Mem  int64   // bytes, without what the keeper of shared weights holds
	Rate float64 // requests a second that an instance sustains
	On   []bool  // by class: whether its GPUs can host it
}

// Func is a function: what it wants and what may serve it.
type Func struct {
	Demand  float64  // requests a second
	Options []Option // of an instance's part on one GPU: a span of N has N times the rate
	Model   int      // of Problem.Keepers; NoModel if its instances share nothing
	Span    int      // GPUs of one node that an instance is on; 0 is 1
}

// Class is GPUs that are alike.
type Class struct {
	Room  int64 // bytes; Unlimited if memory does not count
	Count int   // how many there are; Elastic for as many as it takes
	Nodes []int // how many of them each node has; may be nil when no function spans
}

// What a class may have without end, and a function without a model.
const (
	Unlimited = math.MaxInt64
	Elastic   = -1
	NoModel   = -1
)

// Problem is what to plan.
type Problem struct {
	Funcs   []Func
	Classes []Class
	Keepers []int64 // by model: bytes of weights kept once on each GPU that hosts it
	Tokens  bool    // instances share a GPU by a timetable instead of rectangles
}

// Item is an instance on a GPU.
type Item struct {
	Func, Option int
	At           maxrect.Rect     // where, under rectangles
	Turns        []timetable.Turn // when, under tokens, in billionths
	Gang         int              // tells a spanning function's instances apart; 0 for others
}

// GPU is what one GPU hosts.
type GPU struct {
	Class int
	Node  int // that it must be on; AnyNode if it does not matter
	Items []Item
}

// AnyNode is the node of a GPU without spanning instances.
const AnyNode = -1

// Group is a number of GPUs that host the same.
type Group struct {
	GPU   GPU
	Count int
}

// Solution is a plan and what is known of it.
type Solution struct {
	Groups []Group
	Left   []float64 // requests a second of each function that are not served
	// Lacking is, for each function with something left, an option that would
	// have room on some GPU were it not for its memory; -1 if none.
	Lacking []int
	Bound   int       // GPUs below which nothing serves all
	Method  string    // of the bound
	Price   []float64 // of a request a second of each function, in GPUs
}

// Options are what the planner may spend.
type Options struct {
	Seed    uint64
	Work    int64       // bounds the search, in steps of the planner's own; 0 is what ends well under a second
	Expired func() bool // ends the search early; nil is never
}

// none is how much of a demand may be missing because of rounding.
const none = 1e-9

// left is what of a function's demand is not served after so much.
func (f *Func) left(served float64) float64 {
	if gap := f.Demand - served; gap > none*f.Demand {
		return gap
	}
	return 0
}
