package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses of every binary (ExitText says them to users).
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

// exitNames are the codes of errors in JSON; where a command failed, that of who
// refused comes first.
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

const statusesKey = "exit statuses" // annotation of a command: in place of the common text

// Statuses gives a command exit statuses of its own: of returns that of an error of the
// command's, wrong usage included; nil leaves the common ones. text describes them in the
// command's help and man page. Under -o json errors keep the names of the common statuses.
func (env *Env) Statuses(cmd *cobra.Command, text string, of func(*Error) int) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[statusesKey] = text
	if env.statuses == nil {
		env.statuses = map[*cobra.Command]func(*Error) int{}
	}
	env.statuses[cmd] = of
}

// NotesOf returns the sections that the help text and the man page of a command end with.
func NotesOf(cmd *cobra.Command) []Note {
	out := slices.Clone(notes)
	if own, has := cmd.Annotations[statusesKey]; has {
		out[slices.IndexFunc(out, func(n Note) bool { return n.Title == exitTitle })].Text = own
	}
	return out
}

// HintOf is what an error from below says to do about it; empty when it says
// nothing.
func HintOf(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// Unavailable says whether an error from below is about something needed that
// is missing.
func Unavailable(err error) bool {
	var u interface{ Unavailable() bool }
	return errors.As(err, &u) && u.Unavailable()
}

// refusal is what a daemon that refused calls its reason, and the place in what it was
// sent; both are empty of other errors.
func refusal(err error) (code, where string) {
	var r interface{ Refusal() (code, where string) }
	if errors.As(err, &r) {
		return r.Refusal()
	}
	return "", ""
}

// locked says whether an error from below is about another process that holds
// the state.
func locked(err error) bool {
	var l interface{ Locked() bool }
	return errors.As(err, &l) && l.Locked()
}

// classify turns any error into an Error.
func classify(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return &Error{Exit: e.Exit, Err: keepText(err, e), Hint: cmp.Or(e.Hint, HintOf(err))}
	}
	out := &Error{Exit: ExitFailure, Err: err, Hint: HintOf(err)}
	switch {
	case locked(err):
		out.Exit = ExitLocked
	case Unavailable(err):
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
