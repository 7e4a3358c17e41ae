package ports

import (
	"context"
	"io"
	"net/http"

	"github.com/gfaas/gfaas/pkg/instance"
)

// Invoker sends calls to instances. It sends each once: whether a call is sent
// again is for its caller to say. Implementations are safe for concurrent use.
type Invoker interface {
	// Invoke sends a call to an instance that is ready and returns its answer,
	// whatever the status, as soon as its head is there. The caller closes the
	// body; the end of ctx cuts it. When no answer came the error is a *CallError,
	// but of a call that cannot be sent at all. r must not change during Invoke.
	Invoke(ctx context.Context, r *instance.Record, c Call) (*http.Response, error)
}

// Call is a request of any form.
type Call struct {
	Method string      // empty is POST
	Path   string      // escaped, with its first slash; empty is where the instance's contract is invoked
	Query  string      // escaped, without the question mark
	Header http.Header // sent as it is; Host and Content-Length are taken from it too
	Body   io.Reader   // streamed; nil is empty
}

// Progress is how far a call without an answer came.
type Progress int

const (
	// NotTried: this process could make no connection, for want of a descriptor or a
	// port, say. That tells nothing of the instance. Of the body nothing was read.
	NotTried Progress = iota
	// NotConnected: nobody took the connection. Of the body nothing was read.
	NotConnected
	// NotSent: the connection ended before anything of the call was sent.
	NotSent
	// Sent: the instance may have seen it, and may have done what it asks.
	Sent
	// Answered: it has seen it, and something of an answer came, if only answers 1xx.
	Answered
)

func (p Progress) String() string {
	return [...]string{"not tried", "not connected", "not sent", "sent", "answered"}[p]
}

// CallError says that a call got no answer, and how far it came.
type CallError struct {
	Progress Progress
	Err      error
}

func (e *CallError) Error() string { return e.Err.Error() }
func (e *CallError) Unwrap() error { return e.Err }
