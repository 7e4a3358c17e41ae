package cli

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Exit statuses of every binary (Notes says them to users).
const (
	ExitOK          = 0
	ExitFailure     = 1 // failed for another reason, bad input included
	ExitUsage       = 2 // unknown flag, bad argument
	ExitNo          = 3 // the answer is no: infeasible, gate tripped, verification failed
	ExitUnavailable = 4 // something needed is not there: Docker, GPU, daemon
	ExitTimeout     = 5
	ExitLocked      = 6 // state file locked by another process
	ExitPartial     = 7 // partly done, can be resumed
)

// exitNames are the codes of errors in JSON.
var exitNames = map[int]string{
	ExitFailure: "failed", ExitUsage: "usage", ExitNo: "no", ExitUnavailable: "unavailable",
	ExitTimeout: "timeout", ExitLocked: "locked", ExitPartial: "partial",
}

// Error is an error with the exit status it ends the program with and a hint
// at what to do about it. An Error with neither Err nor Hint ends the program
// silently: everything has been said.
type Error struct {
	Exit int
	Err  error
	Hint string
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Exit)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Fail is an error that ends the program with that status and hint.
func Fail(exit int, hint string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Exit: exit, Err: err, Hint: hint}
}

// Usagef is an error in how the command was called.
func Usagef(format string, args ...any) error {
	return &Error{Exit: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// Exit ends the program with that status and no message.
func Exit(status int) error { return &Error{Exit: status} }

// hinter is an error from below that knows its own remedy.
type hinter interface{ Hint() string }

// unavailable is an error from below that says something needed is missing.
type unavailable interface{ Unavailable() bool }

// locked is an error from below that says another process holds the state.
type locked interface{ Locked() bool }

// classify turns any error into an Error.
func classify(err error) *Error {
	var e *Error
	var h hinter
	errors.As(err, &h)
	if errors.As(err, &e) {
		out := &Error{Exit: e.Exit, Err: keepText(err, e), Hint: e.Hint}
		if out.Hint == "" && h != nil {
			out.Hint = h.Hint()
		}
		return out
	}
	out := &Error{Exit: ExitFailure, Err: err}
	if h != nil {
		out.Hint = h.Hint()
	}
	var u unavailable
	var l locked
	switch {
	case errors.As(err, &l) && l.Locked():
		out.Exit = ExitLocked
	case errors.As(err, &u) && u.Unavailable():
		out.Exit = ExitUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		out.Exit = ExitTimeout
	}
	return out
}

// keepText keeps what callers wrapped around an Error, and keeps a silent one
// silent.
func keepText(whole error, inner *Error) error {
	if inner.Err == nil {
		return nil
	}
	return whole
}

// signalExit is the status of a program that a signal ended.
func signalExit(sig syscall.Signal) int { return 128 + int(sig) }
