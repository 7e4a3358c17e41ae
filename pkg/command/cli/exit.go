package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Exit statuses of every binary; ExitText describes them in the help.
const (
	ExitOK          = 0
	ExitFailure     = 1 // any other failure, bad input included
	ExitUsage       = 2 // unknown flag, bad argument
	ExitNo          = 3 // the answer is no: demand is unplaced, or a check failed
	ExitUnavailable = 4 // Docker, a GPU or a daemon is unavailable
	ExitTimeout     = 5
	ExitLocked      = 6 // state file locked by another process
	ExitPartial     = 7 // partly done, can be resumed
)

// exitNames maps exit statuses to the error codes of JSON output. The code that a daemon
// returned with a refusal takes precedence over "failed"; see report.
var exitNames = map[int]string{
	ExitFailure: "failed", ExitUsage: "usage", ExitNo: "no", ExitUnavailable: "unavailable",
	ExitTimeout: "timeout", ExitLocked: "locked", ExitPartial: "partial",
}

// Error is an error with the program's exit status and a hint for the user. An Error with
// neither Err nor Hint ends the program without a message.
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

// Fail returns err with an exit status and a hint, which may be empty. It returns nil for a nil err.
func Fail(exit int, hint string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Exit: exit, Err: err, Hint: hint}
}

// Usagef returns an error with ExitUsage.
func Usagef(format string, args ...any) error {
	return &Error{Exit: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// Exit returns an error that ends the program with the status and without a message.
func Exit(status int) error { return &Error{Exit: status} }

const statusesKey = "exit statuses" // annotation of a command whose text replaces ExitText

// Statuses gives a command its own exit statuses. The function of maps an error of the command,
// including wrong usage, to a status; nil keeps the common ones. The text replaces ExitText in
// the command's help and man page. The error codes of -o json still follow the common statuses.
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

// NotesOf returns the last sections of a command's help text and man page.
func NotesOf(cmd *cobra.Command) []Note {
	sections := slices.Clone(notes)
	if own, ok := cmd.Annotations[statusesKey]; ok {
		sections[slices.IndexFunc(sections, func(n Note) bool { return n.Title == exitTitle })].Text = own
	}
	return sections
}

// refusal returns the code of a daemon's refusal and the position of the fault in the request.
// It returns empty strings for other errors.
func refusal(err error) (code, where string) {
	var r interface{ Refusal() (code, where string) }
	if errors.As(err, &r) {
		return r.Refusal()
	}
	return "", ""
}

// locked reports whether another process holds the state, according to an error from a lower layer.
func locked(err error) bool {
	var l interface{ Locked() bool }
	return errors.As(err, &l) && l.Locked()
}

// usage reports whether an error from a lower layer concerns the command's arguments.
func usage(err error) bool {
	var u interface{ Usage() bool }
	return errors.As(err, &u) && u.Usage()
}

// classify converts any error to an Error. It adds the exit status and the hint that the causes imply.
func classify(err error) *Error {
	classified := &Error{Exit: ExitFailure, Err: err, Hint: ports.Hint(err)}
	if e, ok := errors.AsType[*Error](err); ok {
		classified.Exit, classified.Hint = e.Exit, cmp.Or(e.Hint, classified.Hint)
		if e.Err == nil {
			classified.Err = nil // nothing is printed, not even the context that callers added
		}
		return classified
	}
	switch {
	case locked(err):
		classified.Exit = ExitLocked
	case usage(err):
		classified.Exit = ExitUsage
	case ports.Unavailable(err):
		classified.Exit = ExitUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		classified.Exit = ExitTimeout
	}
	return classified
}

// signalExit returns the exit status of a program that a signal ended.
func signalExit(sig syscall.Signal) int { return 128 + int(sig) }
