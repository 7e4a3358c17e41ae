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
	text := fmt.Sprintf("instance %s: %v", e.ID, e.Err)
	log := strings.TrimRight(string(e.Log), "\n")
	if log == "" {
		return text
	}
	return text + "\nit printed last:\n  " + strings.ReplaceAll(log, "\n", "\n  ")
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

// Unwrap makes it count as a timeout.
func (e *notReadyError) Unwrap() error { return context.DeadlineExceeded }
