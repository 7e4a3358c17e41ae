package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Exit statuses of every binary. The help of a command lists those that the command can have; see Meaning.
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

const (
	statusesKey = "exit statuses" // annotation of a command whose text replaces the common one
	meaningKey  = "exit status "  // with a status: annotation that describes the status
)

func annotate(cmd *cobra.Command, key, text string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[key] = text
}

// Meaning describes an exit status, from ExitNo to ExitPartial, in the help and the man page of a command and of its
// subcommands. Without a description, they do not list the status. The text is a phrase without a full stop.
func Meaning(cmd *cobra.Command, status int, text string) {
	annotate(cmd, meaningKey+strconv.Itoa(status), text)
}

// UsesDaemons describes the exit statuses of programs that use or run a daemon: ExitUnavailable, ExitTimeout and
// ExitLocked.
func UsesDaemons(root *cobra.Command) {
	Meaning(root, ExitUnavailable, "something that the command needs is unavailable, such as a GPU, Docker or a daemon")
	Meaning(root, ExitTimeout, "timeout")
	Meaning(root, ExitLocked, "another process has locked a file that the command needs, such as the state file")
}

// meaning returns the description of an exit status of a command, or "" if it has none.
func meaning(cmd *cobra.Command, status int) string {
	for ; cmd != nil; cmd = cmd.Parent() {
		if text := cmd.Annotations[meaningKey+strconv.Itoa(status)]; text != "" {
			return text
		}
	}
	return ""
}

// exitNote returns the section about the exit statuses of a command.
func exitNote(cmd *cobra.Command) Note {
	note := Note{Title: "EXIT STATUS"}
	if own, ok := cmd.Annotations[statusesKey]; ok {
		note.Text = own
		return note
	}
	note.Entries = []Entry{{"0", "success"}, {"1", "failure, including invalid input"}, {"2", "wrong usage"}}
	for status := ExitNo; status <= ExitPartial; status++ {
		if text := meaning(cmd, status); text != "" {
			note.Entries = append(note.Entries, Entry{strconv.Itoa(status), text})
		}
	}
	note.Entries = append(note.Entries, Entry{"130, 143", "ended early by SIGINT (130) or SIGTERM (143)"})
	if slices.ContainsFunc(cmd.Commands(), describesStatus) {
		note.Text = "Some commands have other exit statuses, which their own help lists."
	}
	return note
}

// describesStatus reports whether a command or one of its subcommands has exit statuses of its own.
func describesStatus(cmd *cobra.Command) bool {
	for key := range cmd.Annotations {
		if key == statusesKey || strings.HasPrefix(key, meaningKey) {
			return true
		}
	}
	return slices.ContainsFunc(cmd.Commands(), describesStatus)
}

// Statuses gives a command its own exit statuses. The function of maps an error of the command,
// including wrong usage, to a status; nil keeps the common ones. The text replaces the common one in
// the command's help and man page. The error codes of -o json still follow the common statuses.
func (env *Env) Statuses(cmd *cobra.Command, text string, of func(*Error) int) {
	annotate(cmd, statusesKey, text)
	if env.statuses == nil {
		env.statuses = map[*cobra.Command]func(*Error) int{}
	}
	env.statuses[cmd] = of
}

// NotesOf returns the last sections of a command's help text and man page.
func NotesOf(cmd *cobra.Command) []Note {
	return append(slices.Clone(notes), exitNote(cmd))
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
