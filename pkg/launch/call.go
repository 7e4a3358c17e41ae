package launch

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Candidate is a ready instance that can receive a call.
type Candidate struct {
	Record   instance.Record
	Capacity float64 // calls per second; only the ratios between candidates matter
}

// choose returns the index of a random candidate, weighted by capacity, or -1 if there are none. It
// chooses at random because a single client does not know the load that others cause. (The gateway
// knows the load, and chooses the instance with the earliest expected answer instead.) random is
// rand.Float64.
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

// Repeat is a decision about a call that received no answer.
type Repeat int

const (
	// NoRepeat: do not repeat the call. The instance may have executed it and a second execution is
	// not allowed, or the body or a part of the answer is lost.
	NoRepeat Repeat = iota
	// Elsewhere: no instance has received the call. Send it to another one; this is no repetition.
	Elsewhere
	// RepeatOnce: the instance may have executed the call, and one repetition is allowed.
	RepeatOnce
)

// Repeatable decides about a call that failed with the given progress. Replayable is true if the body can
// be sent again from its start. Repeats counts the repetitions of the call after possible
// executions. A call may be executed twice only if no part of an answer arrived and it is
// idempotent: its method is GET, HEAD, OPTIONS, PUT or DELETE, or it has an Idempotency-Key. No call
// is executed three times.
func Repeatable(p ports.Progress, method string, header http.Header, replayable bool, repeats int) Repeat {
	switch {
	case p == ports.NotTried, p == ports.NotConnected: // the body is unread
		return Elsewhere
	case !replayable, p == ports.Answered:
		return NoRepeat
	case p == ports.NotSent:
		return Elsewhere
	case repeats > 0:
		return NoRepeat
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return RepeatOnce
	}
	if header.Get("Idempotency-Key") != "" {
		return RepeatOnce
	}
	return NoRepeat
}

// Caller sends calls to ready instances and repeats them on others, within the rules of Repeatable.
type Caller struct {
	Invoker ports.Invoker
	Random  func() float64 // rand.Float64

	// OnRepeat, if set, receives each failure after which Call sends the call again.
	OnRepeat func(instance.Record, error)
}

// Answer is an instance's answer to a call.
type Answer struct {
	*http.Response                 // nil after an error
	Instance       instance.Record // the last instance that was tried
	Attempts       int             // attempts that an instance may have received
}

var errNone = errors.New("no instance is ready")

// Call sends a call to a candidate and returns the answer. If every attempt fails, it
// returns the error of the last one: a *ports.CallError, unless the call is invalid. The function body
// returns the call's body from its start; it is nil if call.Body can be read only once.
func (c *Caller) Call(ctx context.Context, candidates []Candidate, call ports.Call, body func() io.Reader) (Answer, error) {
	remaining := append([]Candidate(nil), candidates...)
	stale := map[string]bool{} // instances whose connection had ended before the call was sent
	var a Answer
	last, repeats := errNone, 0
	for {
		at := choose(remaining, c.Random)
		if at < 0 {
			return a, last
		}
		if last != errNone && c.OnRepeat != nil {
			c.OnRepeat(a.Instance, last)
		}
		a.Instance = remaining[at].Record
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
		case NoRepeat:
			return a, err
		case RepeatOnce:
			repeats++
		}
		last = err
		if failed.Progress == ports.NotSent && !stale[a.Instance.ID] {
			stale[a.Instance.ID] = true // try once more with a new connection
			continue
		}
		if failed.Progress == ports.Sent && len(remaining) == 1 {
			continue // the only candidate; it may have lost just the connection
		}
		remaining = append(remaining[:at], remaining[at+1:]...)
	}
}
