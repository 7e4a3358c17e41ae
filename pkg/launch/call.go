package launch

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Candidate is an instance that is ready to take a call.
type Candidate struct {
	Record   instance.Record
	Capacity float64 // calls a second that it answers; any unit, of all alike
}

// choose returns the place of a candidate by chance, in proportion to capacity; -1
// of none. Who makes one call does not know what others have sent: the gateway does,
// and has a call go where it is answered first. Random is rand.Float64.
func choose(candidates []Candidate, random func() float64) int {
	sum := 0.0
	for _, c := range candidates {
		sum += c.Capacity
	}
	at := random() * sum
	for i, c := range candidates {
		if at -= c.Capacity; at < 0 {
			return i
		}
	}
	return len(candidates) - 1
}

// Repeat says what may be done with a call that got no answer.
type Repeat int

const (
	// GiveUp: it may have been carried out and must not be twice, or what it said
	// is gone.
	GiveUp Repeat = iota
	// Elsewhere: no instance has seen it; it goes to another and does not count.
	Elsewhere
	// Once: it may have been carried out, and may be once more.
	Once
)

// Repeatable says what may be done with a call that came so far. Kept says that
// its body can be sent again from its start; repeats is how often it was sent
// again when it may have been carried out. A call is carried out twice at most,
// and only if nothing of an answer came and its method is one that says the same
// twice (GET, HEAD, OPTIONS, PUT, DELETE) or it has an Idempotency-Key.
func Repeatable(p ports.Progress, method string, header http.Header, kept bool, repeats int) Repeat {
	switch {
	case p == ports.NotTried, p == ports.NotConnected: // nothing of the body was read
		return Elsewhere
	case !kept, p == ports.Answered:
		return GiveUp
	case p == ports.NotSent:
		return Elsewhere
	case repeats > 0:
		return GiveUp
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return Once
	}
	if header.Get("Idempotency-Key") != "" {
		return Once
	}
	return GiveUp
}

// Caller sends calls to whichever instance is best, and to others as Repeatable
// allows.
type Caller struct {
	Invoker ports.Invoker
	Random  func() float64 // rand.Float64

	// Tell, if set, hears of each failure after which the call is sent again.
	Tell func(instance.Record, error)
}

// Answer is what an instance said.
type Answer struct {
	*http.Response                 // nil with an error
	Instance       instance.Record // the last that was tried
	Attempts       int             // how many may have seen the call
}

var errNone = errors.New("no instance is ready")

// Call sends a call to one of the candidates and returns its answer, or why the
// last that was tried gave none: a *ports.CallError but for a call that cannot be
// sent. Body returns the call's body from its start; nil is for a call whose Body
// can be read once only.
func (c *Caller) Call(ctx context.Context, candidates []Candidate, call ports.Call, body func() io.Reader) (Answer, error) {
	left := append([]Candidate(nil), candidates...)
	stale := map[string]bool{} // whose connection had ended before
	var a Answer
	last, repeats := errNone, 0
	for {
		at := choose(left, c.Random)
		if at < 0 {
			return a, last
		}
		if last != errNone && c.Tell != nil {
			c.Tell(a.Instance, last)
		}
		a.Instance = left[at].Record
		if body != nil {
			call.Body = body()
		}
		var err error
		if a.Response, err = c.Invoker.Invoke(ctx, &a.Instance, call); err == nil {
			a.Attempts++
			return a, nil
		}
		var failed *ports.CallError
		if !errors.As(err, &failed) || ctx.Err() != nil {
			return a, err
		}
		if failed.Progress >= ports.Sent {
			a.Attempts++
		}
		switch Repeatable(failed.Progress, call.Method, call.Header, body != nil, repeats) {
		case GiveUp:
			return a, err
		case Once:
			repeats++
		}
		last = err
		if failed.Progress == ports.NotSent && !stale[a.Instance.ID] {
			stale[a.Instance.ID] = true // a new connection may do
			continue
		}
		if failed.Progress == ports.Sent && len(left) == 1 {
			continue // there is no other; it may have lost no more than a connection
		}
		left = append(left[:at], left[at+1:]...)
	}
}
