package ports

import (
	"context"
	"io"
	"net/http"

	"github.com/gfaas/gfaas/pkg/instance"
)

// Invoker sends calls to instances. It sends each call once; its caller decides about retries. Implementations are
// safe for concurrent use.
type Invoker interface {
	// Invoke sends a call to a ready instance and returns its answer, with any status, once the head has arrived. The
	// caller must close the body; the end of ctx interrupts it. If there is no answer, the error is a *CallError, unless
	// the call is invalid. r must not change during Invoke.
	Invoke(ctx context.Context, r *instance.Record, c Call) (*http.Response, error)
}

// Received is implemented by bodies of answers. Received reports whether the whole body has been received, so that reading
// it does not block.
type Received interface{ Received() bool }

// Call is an HTTP request to an instance.
type Call struct {
	Method string      // empty means POST
	Path   string      // escaped, with a leading slash; empty means the path that the instance's contract invokes
	Query  string      // escaped, without the question mark
	Header http.Header // sent unchanged, except that Host and Content-Length are taken from it
	Body   io.Reader   // streamed; nil means an empty body
}

// Progress describes how far a call without an answer got.
type Progress int

const (
	// NotTried means that this process could not open a connection, for example for lack of descriptors or ports. The
	// instance may be healthy. No part of the body was read.
	NotTried Progress = iota
	// NotConnected means that the instance did not accept the connection. No part of the body was read.
	NotConnected
	// NotSent means that the connection ended before any part of the call was sent.
	NotSent
	// Sent means that the instance may have received the call and acted on it.
	Sent
	// Answered means that part of an answer arrived, at least an interim (1xx) answer.
	Answered
)

func (p Progress) String() string {
	return [...]string{"not tried", "not connected", "not sent", "sent", "answered"}[p]
}

// CallError reports a call without an answer.
type CallError struct {
	Progress Progress
	Err      error
}

func (e *CallError) Error() string { return e.Err.Error() }
func (e *CallError) Unwrap() error { return e.Err }
