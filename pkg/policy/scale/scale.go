// Package scale decides how many instances a function has. A scaler hears, once
// a second, how many requests came and what is deployed, and says what to
// start and what to stop: Lazy as Dilu does (section 3.4.2), Heuristic as
// FaST-GShare does (section 3.4.1), Eager at once and both ways. It does no I/O
// and knows no clock.
package scale

import (
	"errors"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/profile"
)

// Instance is one that is deployed, starting or serving.
type Instance struct {
	ID string
	// Request is the configuration it holds for certain, Limit the one it may
	// rise to while the GPU has room (the same when it never rises).
	Request, Limit profile.Row
}

// Action starts Start instances like Like, stops those named in Stop, or both.
type Action struct {
	Start  int
	Like   Instance // without ID
	Stop   []string
	Reason string
}

// Scaler decides horizontal scaling. A call a second: rps is how many requests
// came in the second that just ended, deployed what runs and starts, oldest
// first.
type Scaler interface {
	Step(rps float64, deployed []Instance) []Action
}

// slack is the part of a load that may be missing because of rounding.
const slack = 1e-9

// Unit is what lazy and eager scaling start: the configuration of the smallest
// quota, which may rise to the largest quota of the same SM share, batch and
// model of GPU. Of several rows of the smallest quota it is the one of the
// smallest SM share, then of the smallest batch. Rows that sustain nothing are
// passed over.
func Unit(rows []profile.Row) (Instance, error) {
	able := slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return !(r.ThroughputRPS > 0) })
	if len(able) == 0 {
		return Instance{}, errors.New("no configuration sustains any request")
	}
	request := slices.MinFunc(able, smaller)
	limit := request
	for _, r := range able {
		if r.SMPct == request.SMPct && r.Batch == request.Batch && r.GPU == request.GPU && r.Quota > limit.Quota {
			limit = r
		}
	}
	return Instance{Request: request, Limit: limit}, nil
}

func smaller(a, b profile.Row) int {
	for _, d := range []float64{a.Quota - b.Quota, a.SMPct - b.SMPct, float64(a.Batch - b.Batch)} {
		if d != 0 {
			return int(math.Copysign(1, d))
		}
	}
	switch {
	case a.GPU < b.GPU:
		return -1
	case a.GPU > b.GPU:
		return 1
	}
	return 0
}

// need is how many instances of a throughput sustain a load.
func need(rps, throughput float64) int {
	return int(min(math.Ceil(rps*(1-slack)/throughput), math.MaxInt32))
}

// sustained is what the requests of instances sustain together, in requests a
// second.
func sustained(deployed []Instance) float64 {
	sum := 0.0
	for _, in := range deployed {
		sum += in.Request.ThroughputRPS
	}
	return sum
}

// newest names the n instances that were started last, newest first.
func newest(deployed []Instance, n int) []string {
	names := make([]string, 0, n)
	for i := len(deployed) - 1; i >= len(deployed)-n; i-- {
		names = append(names, deployed[i].ID)
	}
	return names
}
