package launch

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// StartError says why an instance did not start.
type StartError struct {
	ID  string
	Err error
	Log []byte // the last lines it printed

	// Remains says that undoing failed too: something of the instance may
	// still be there, and Stop is due.
	Remains bool
}

func (e *StartError) Error() string {
	return fmt.Sprintf("instance %s: %v%s", e.ID, e.Err, Printed(e.Log))
}

// Printed is the end of a message about an instance that printed log last.
func Printed(log []byte) string {
	text := strings.TrimRight(string(log), "\n")
	if text == "" {
		return ""
	}
	return "\nit printed last:\n  " + strings.ReplaceAll(text, "\n", "\n  ")
}

func (e *StartError) Unwrap() error { return e.Err }

// notReadyError says that an instance ran but did not become ready in time.
type notReadyError struct {
	after time.Duration
	last  error
}

func (e *notReadyError) Error() string {
	return fmt.Sprintf("not ready after %v: %v", e.after, e.last)
}

// Hint says what to do about it.
func (e *notReadyError) Hint() string {
	return "give it longer (--timeout of gfaas up, --start-timeout of gfaas-profile run), or see whether it serves $PORT by its contract"
}

// Unwrap makes it count as a timeout.
func (e *notReadyError) Unwrap() error { return context.DeadlineExceeded }
