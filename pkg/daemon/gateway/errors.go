package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Error is an answer of the gateway's own.
type Error struct {
	Status  int
	Code    string // also in Gfaas-Reason
	Message string
	Hint    string
	Retry   time.Duration // for Retry-After; 0 is none
	Allow   string        // for a method that is not allowed

	Challenge string // WWW-Authenticate, for 401
}

func (e *Error) Error() string { return e.Message }

// The codes that answers of the gateway's own have.
const (
	codeBadRequest   = "bad-request"
	codeAuth         = "auth"
	codeNoFunction   = "no-function"
	codeNoPath       = "no-path"
	codeMethod       = "method"
	codeSlowBody     = "slow-body"
	codeTooLarge     = "too-large"
	codeQueueFull    = "queue-full"
	codeAsyncFull    = "async-full"
	codeStartFailed  = "start-failed"
	codeInstanceDied = "instance-died"
	codeBadAnswer    = "bad-answer"
	codeNoConnection = "no-connection"
	codeNotLoaded    = "not-loaded"
	codeDraining     = "draining"
	codeBusy         = "busy"
	codeJournal      = "journal"
	codeNoCall       = "no-call"
	codeInUse        = "in-use"
	codeCallID       = "call-id"
	codeState        = "state"
	codeNotHere      = "not-implemented"
	codeLargerThan   = "too-large-for-gpu"
	codeMemoryInUse  = "gpu-memory-in-use"
	codeQueueTimeout = "queue-timeout"
	codeTimeout      = "timeout"
	codeCancelled    = "cancelled" // nobody is there to read it
)

func badRequest(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: codeBadRequest, Message: fmt.Sprintf(format, args...)}
}

func noFunction(name string) *Error {
	return &Error{Status: http.StatusNotFound, Code: codeNoFunction, Message: fmt.Sprintf("no such function: %s", name),
		Hint: "'gfaas ls' lists what is applied"}
}

func noPath(path string) *Error {
	return &Error{Status: http.StatusNotFound, Code: codeNoPath, Message: fmt.Sprintf("nothing is at %s", path),
		Hint: "functions are at /function/NAME"}
}

func draining() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Code: codeDraining, Message: "the gateway is about to end", Retry: time.Second}
}

// noConnection is of a call whose instance is well, as far as anybody knows.
func noConnection(instance string, err error) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Code: codeNoConnection, Retry: time.Second,
		Message: "no connection can be made to instance " + instance + ": " + err.Error()}
}

// errorBody is an error as all of gfaas prints it.
type errorBody struct {
	Error errorText `json:"error"`
}

type errorText struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// write answers with the error.
func (e *Error) write(w http.ResponseWriter) {
	body, err := json.Marshal(errorBody{errorText{e.Code, e.Message, e.Hint}})
	if err != nil { // there is none: all of it is text
		body = nil
	}
	body = append(body, '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Gfaas-Reason", e.Code)
	if e.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(retrySeconds(e.Retry)))
	}
	if e.Allow != "" {
		h.Set("Allow", e.Allow)
	}
	if e.Challenge != "" {
		h.Set("WWW-Authenticate", e.Challenge)
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(body) // nobody is there to be told
}

// retrySeconds is a time to wait in whole seconds, 1 to 60.
func retrySeconds(d time.Duration) int {
	return int(min(max((d+time.Second-1)/time.Second, 1), 60))
}
