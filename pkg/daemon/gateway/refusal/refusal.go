// Package refusal defines the answers that the gateway itself gives, instead of an
// instance. The other packages of pkg/daemon/gateway return them as errors.
package refusal

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// Error is an answer of the gateway. docs/gateway.md lists the codes.
type Error struct {
	Code    string // also in the header Gfaas-Reason
	Message string
	Hint    string
	Retry   time.Duration // value of Retry-After; 0 means none
	Allow   string        // value of Allow, for a method that is not allowed

	Challenge string // value of WWW-Authenticate, for 401
	Status    int    // overrides the code's usual status
}

func (e *Error) Error() string { return e.Message }

// The codes of answers.
const (
	BadRequest     = "bad-request"
	Auth           = "auth"
	NoFunction     = string(queue.NoFunction)
	NoPath         = "no-path"
	Method         = "method"
	SlowBody       = "slow-body"
	TooLarge       = "too-large"
	QueueFull      = string(queue.QueueFull)
	AsyncFull      = "async-full"
	StartFailed    = string(queue.StartFailed)
	InstanceDied   = "instance-died"
	BadAnswer      = "bad-answer"
	BatchFailed    = "batch-failed"
	NoConnection   = "no-connection"
	NotLoaded      = "not-loaded"
	NotCallable    = "not-callable"
	Draining       = "draining"
	Busy           = "busy"
	Journal        = "journal"
	NoCall         = "no-call"
	InUse          = "in-use"
	CallID         = "call-id"
	NameTaken      = "name-taken"
	State          = "state"
	NotImplemented = "not-implemented"
	LargerThanGPU  = string(queue.TooLarge)
	MemoryInUse    = "gpu-memory-in-use"
	QueueTimeout   = string(queue.TooLate)
	Timeout        = "timeout"
	Cancelled      = "cancelled" // the caller has closed its connection
)

// StatusCancelled is the status under which metrics count calls whose callers closed their
// connections. No caller receives it.
const StatusCancelled = 499

// statuses holds the usual statuses of codes. Other codes have 503.
var statuses = map[string]int{
	BadRequest: http.StatusBadRequest,
	Auth:       http.StatusUnauthorized,
	NoFunction: http.StatusNotFound, NoPath: http.StatusNotFound, NoCall: http.StatusNotFound,
	Method: http.StatusMethodNotAllowed, NotCallable: http.StatusMethodNotAllowed,
	SlowBody: http.StatusRequestTimeout,
	InUse:    http.StatusConflict, CallID: http.StatusConflict, NameTaken: http.StatusConflict,
	TooLarge:  http.StatusRequestEntityTooLarge,
	QueueFull: http.StatusTooManyRequests, AsyncFull: http.StatusTooManyRequests,
	Cancelled:      StatusCancelled,
	NotImplemented: http.StatusNotImplemented,
	StartFailed:    http.StatusBadGateway, InstanceDied: http.StatusBadGateway, BadAnswer: http.StatusBadGateway, BatchFailed: http.StatusBadGateway,
	QueueTimeout: http.StatusGatewayTimeout, Timeout: http.StatusGatewayTimeout,
}

// HTTPStatus returns the status of the answer.
func (e *Error) HTTPStatus() int {
	return cmp.Or(e.Status, statuses[e.Code], http.StatusServiceUnavailable)
}

// Bad returns the refusal of a malformed request.
func Bad(format string, args ...any) *Error {
	return &Error{Code: BadRequest, Message: fmt.Sprintf(format, args...)}
}

// UnknownFunction returns the refusal of a request for a function that is not applied.
func UnknownFunction(name string) *Error {
	return &Error{Code: NoFunction, Message: fmt.Sprintf("no such function: %s", name), Hint: "'gfaas ls' lists the applied functions"}
}

// Ending returns the refusal of a request while the gateway drains.
func Ending() *Error {
	return &Error{Code: Draining, Message: "the gateway is shutting down", Retry: time.Second}
}

// Write answers a request with the error, in the given form. id is the ID of the call.
func (e *Error) Write(w http.ResponseWriter, form Form, id string) {
	body := e.Body(form, id)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Gfaas-Reason", e.Code)
	if name := requestID[form]; name != "" {
		h.Set(name, id)
	}
	if e.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(seconds(e.Retry)))
		h.Set("Retry-After-Ms", strconv.FormatInt(min(max(e.Retry.Milliseconds(), 1), time.Minute.Milliseconds()), 10))
	}
	if futile[e.Code] {
		h.Set("X-Should-Retry", "false")
	}
	if e.Allow != "" || e.Code == NotCallable { // an empty list: no method is allowed
		h.Set("Allow", e.Allow)
	}
	if e.Challenge != "" {
		h.Set("WWW-Authenticate", e.Challenge)
	}
	w.WriteHeader(e.HTTPStatus())
	_, _ = w.Write(body) // the caller may have closed its connection
}

// futile holds the codes of errors that a repetition of the request would probably get again. The client libraries
// of OpenAI and Anthropic repeat a request after 408, 409, 429 and 5xx, unless X-Should-Retry is false.
var futile = map[string]bool{StartFailed: true, QueueTimeout: true, LargerThanGPU: true}

// seconds rounds a time up to whole seconds, limited to 1 to 60.
func seconds(d time.Duration) int {
	return int(min(max((d+time.Second-1)/time.Second, 1), 60))
}
